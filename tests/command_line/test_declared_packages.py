"""What the package imports is what pip installs with it, or an extra that is named."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = importlib.metadata.packages_distributions()


def test_every_package_that_is_imported_is_declared() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = {re.split(r"[<>=\[; ]", line)[0].lower() for group in groups for line in group}
    imported = set()
    for path in (ROOT / "annotated_transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").partition(".")[0])
    foreign = imported - sys.stdlib_module_names - {"annotated_transformer"}
    names = {name: [each.lower() for each in DISTRIBUTIONS.get(name, [name])] for name in foreign}
    assert {name for name, known in names.items() if declared.isdisjoint(known)} == set()
