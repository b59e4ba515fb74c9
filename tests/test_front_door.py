"""The names that `from annotated_transformer import ...` gives are the ones the book uses,
in any order of import."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("first", ["decoding.translator", "decoding.search"])
def test_beam_search_is_the_function_whatever_was_imported_before(first):
    code = (
        f"import annotated_transformer.{first}, annotated_transformer as a; "
        "from annotated_transformer import beam_search; "
        "from annotated_transformer.decoding.search import beam_search as same; "
        "assert beam_search is same is a.beam_search and callable(same)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_every_name_is_there_and_no_other_than_the_registry_is_a_module():
    code = (
        "import annotated_transformer as a; from types import ModuleType; "
        "shown = [name for name in dir(a) if name[:2] != '__']; assert shown == a.__all__; "
        "assert [n for n in shown if isinstance(getattr(a, n), ModuleType)] == ['corpus']; "
        "from annotated_transformer import *; assert corpus.names()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
