"""What chapters show: the source of a symbol, under a link to its file, in the book's style."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from annotated_transformer.errors import ConfigError
from annotated_transformer.model import attention
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.feed_forward import PositionwiseFeedForward
from lab.display import SOURCES, Table, in_column, show

ROOT = Path(__file__).parents[2]


def test_show_prints_the_source_that_runs(capsys):
    show(attention.causal_mask)
    printed = capsys.readouterr().out
    assert printed.startswith("def causal_mask(")
    namespace = dict(vars(attention))
    exec(printed.replace("def causal_mask", "def again"), namespace)
    assert torch.equal(namespace["again"](4), attention.causal_mask(4))


def test_a_listing_that_is_broken_to_fit_is_the_same_program():
    wide = """
def f(first: dict[str, int], second: dict[str, int], third: str = "a, b", fourth: str = "c, d"):
    \"\"\"A first line.

    A paragraph that is far wider than a column of the page: it is filled anew, and its words stay.
    \"\"\"
    return (first, [second, third, "a text with a comma, wide enough, that stays"], fourth)
"""
    narrow = in_column(wide)
    assert max(map(len, wide.splitlines())) > 90 > 80 >= max(map(len, narrow.splitlines()))
    assert narrow.split() == wide.split()
    one, other = (ast.parse(source).body[0] for source in (wide, narrow))
    assert ast.dump(one.args) == ast.dump(other.args)
    assert ast.dump(one.body[1]) == ast.dump(other.body[1])


def test_show_takes_the_indentation_off_a_method(capsys):
    show(MultiHeadAttention.split_heads)
    assert capsys.readouterr().out.startswith("def split_heads(self")


def test_a_notebook_shows_one_listing_under_the_links_to_its_files(monkeypatch):
    published = []
    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=published.append))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    show(attention.causal_mask, attention.padding_mask, PositionwiseFeedForward)
    markdown, plain = published[0]["text/markdown"], published[0]["text/plain"]
    links, code = markdown.split("\n\n```python\n")
    assert code == plain + "\n```"
    assert [line.partition("](")[0] for line in links.split("\n\n")] == [
        "[`annotated_transformer/model/attention.py`",
        "[`annotated_transformer/model/feed_forward.py`",
    ]
    assert ast.parse(plain).body[1].name == "padding_mask"


def test_the_links_of_listings_lead_to_the_repository():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    assert f"{config['url']}/blob/{config['branch']}/" == SOURCES


def test_show_of_what_has_no_source_is_refused():
    with pytest.raises(ConfigError, match="got 3"):
        show(3)


def test_a_table_is_one_in_a_notebook_and_aligned_text_in_a_terminal():
    table = Table(("row", "paper"), [("base", 65), ("big", "+213")])
    lines = "| row | paper |", "| --- | ---: |", "| base | 65 |", "| big | +213 |"
    assert tuple(table._repr_markdown_().splitlines()) == lines
    assert repr(table).splitlines() == ["row   paper", "base     65", "big    +213"]
    site = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    assert site["nb_render_markdown_format"] == "myst", "CommonMark, the default, shows its bars"
