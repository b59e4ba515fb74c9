"""Private names that are used outside the module that defines them: python -m tools.private_names.

A private name begins with one underscore. It may be used in the file that defines it, and in a
class whose base classes define it. The program looks at the package, the chapters, the benchmarks,
the tools and the tests; it prints each use anywhere else as file:line name, then their number, and
exits with status 1 if there is one. Attributes, imports and the strings that `getattr`, `setattr`
and `patch.object` are given count alike.

A private name that no file here defines belongs to another library. Such names are listed apart:
those of ALLOWED with the reason why nothing public does, and any other counts as a use.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("annotated_transformer", "book", "benchmarks", "tools", "tests", "conftest.py")
# Underscore and all, these are documented: what every NamedTuple has, what Jupyter asks of an
# object that it shows, and os._exit, by which a forked process ends.
PUBLIC = {"_asdict", "_fields", "_field_defaults", "_make", "_replace", "_repr_html_", "_exit"}
BY_STRING = {"getattr", "setattr", "hasattr", "delattr", "object"}  # object: patch.object
ALLOWED = {
    "_C": "PyTorch's compiled part, for the next name",
    "_cuda_clearCublasWorkspaces": "nothing else frees cuBLAS's workspaces around a recording",
    "_version": "PyTorch's count of a tensor's changes in place has no other name",
    "_cdata": "which storage a tensor lies in: the addresses of tensors without memory are alike",
    "_python_dispatch": "where PyTorch keeps TorchDispatchMode, which it documents",
    "_pytree": "where PyTorch keeps tree_leaves, to look into what an operation is given",
    "_dynamo": "PyTorch counts its compiled graphs nowhere else",
    "_subclasses": "where PyTorch keeps FakeTensorMode, which its compiler's manual documents",
    "_forward_pre_hooks": "PyTorch lists a module's hooks nowhere else",
    "_internal": "where PyTorch keeps its process group that only pretends to exchange",
    "_ensure_iopub_up": "nbval's limit on a kernel's start is lifted in the method that has it",
    "_async_cleanup_kernel": "nbclient ends a kernel in no public method",
}


class Use(NamedTuple):
    """A private name in a file that neither defines nor inherits it."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


def is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[^_].*", name)) and not name.endswith("__") and name not in PUBLIC


def definitions(tree: ast.AST) -> set[str]:
    """The private names that a file gives a meaning: functions, classes, variables, arguments,
    attributes of `self` and `cls`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return set(filter(is_private, found))


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and private name of each attribute, import and string that names an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            names = [a for a in given if isinstance(a, str)] if name in BY_STRING else []
        else:
            continue
        for name in filter(is_private, names):
            yield node.lineno, name


def module_names(tree: ast.AST) -> set[str]:
    """The dotted modules from which a file imports, and `module.name` of what it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def base_classes(tree: ast.AST) -> set[str]:
    """Names of the classes from which the classes of a file are derived."""
    return {
        base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }


def all_uses(paths: dict[str, Path]) -> tuple[list[Use], list[Use]]:
    """The uses of our own private names and those of other libraries', by file and line."""
    trees = {
        name: ast.parse(path.read_text(encoding="utf-8"), name) for name, path in paths.items()
    }
    defined = {name: definitions(tree) for name, tree in trees.items()}
    of_module = {name.removesuffix(".py").replace("/", "."): name for name in trees}
    of_module |= {dotted.removesuffix(".__init__"): name for dotted, name in of_module.items()}

    def inherited(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """What the files of its base classes define, and those of theirs."""
        bases, found = base_classes(trees[name]), set()
        for dotted in module_names(trees[name]):
            module, _, imported = dotted.rpartition(".")
            other = of_module.get(module)
            if imported in bases and other and other not in seen:
                found |= defined[other] | inherited(other, seen | {name})
        return found

    ours: list[Use] = []
    others: list[Use] = []
    for name, tree in trees.items():
        known = defined[name] | inherited(name)
        for line, private in sorted(uses(tree)):
            if private not in known:
                is_ours = any(private in names for names in defined.values())
                (ours if is_ours else others).append(Use(name, line, private))
    return ours, others


def tracked() -> dict[str, Path]:
    """The Python files of the repository, by their names."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name: ROOT / name for name in listed.splitlines() if name.endswith(".py")}


def main() -> int:
    ours, others = all_uses(tracked())
    wrong = ours + [use for use in others if use.name not in ALLOWED]
    for use in wrong:
        print(use)
    for name, why in ALLOWED.items():
        places = [f"{use.file}:{use.line}" for use in others if use.name == name]
        print(f"allowed: {name}, {why}: {', '.join(places)}")
    print(f"private names used outside their module: {len(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
