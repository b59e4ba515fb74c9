"""The house rules that a program can read: who may import whom, and how long a file may be."""

import ast
import os
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "annotated_transformer"
LAB = ROOT / "book" / "lab"
# Lower first: a folder, or a module of the root, imports from what stands before its own level; a
# comma ends a level. `lab` is the book's own, which is in no wheel.
LEVELS = (
    "errors, files views, settings, config, model data, fast checkpoint, decoding, training, "
    "extras, command_line, __main__, lab"
)
LEVEL = {name: n for n, names in enumerate(LEVELS.split(", ")) for name in names.split()}
PICTURES = {f"lab.pictures.{path.stem}" for path in (LAB / "pictures").glob("[!_]*.py")}
ONLY_IN = {  # heavy or optional libraries, each loaded inside the one module that needs it
    "matplotlib": {"lab.attention_map", "lab.display", *PICTURES},
    "sentencepiece": {"data.tokenizer"},
    "sacrebleu": {"decoding.evaluation"},
    "safetensors": {"checkpoint.weights"},
    "sacremoses": {"data.paired_vocabulary"},
    "datasets": {"data.corpus"},
    "unearth": {"data.package_index"},
    "tensorboard": {"training.log"},
    "ctranslate2": {"extras.formats.ctranslate2"},
    "onnx": {"extras.formats.onnx"},
}
SOURCES = sorted([*PACKAGE.rglob("*.py"), *LAB.rglob("*.py")])
CORE = ("model", "data", "fast", "checkpoint", "decoding", "training", "command_line")
CORE_ALONE = "not slow and not with_extras"
MAX_LINES = 300
SHORT_FILES = [path for name in ("model", "training") for path in (PACKAGE / name).rglob("*.py")]
MAX_MODULES = 13


def module(path: Path) -> str:
    """config, model.attention: the name below the package, "" for the package itself; lab.display:
    a module of the book's lab."""
    root = LAB.parent if LAB in path.parents else PACKAGE
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module(path): path for path in SOURCES if module(path)}  # without the front door


def imports(path: Path) -> set[str]:
    """All modules that the file names in an import, anywhere: "torch.nn",
    "annotated_transformer.config", ..."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            root = "annotated_transformer." if node.level else ""
            base = f"{root}{node.module or ''}".removesuffix(".")
            for name in node.names:
                full = f"{base}.{name.name}"
                found.add(full if full.removeprefix("annotated_transformer.") in MODULES else base)
    return found


def ours(path: Path) -> set[str]:
    names = {name for name in imports(path) if top(name) in ("annotated_transformer", "lab")}
    return {name.removeprefix("annotated_transformer").removeprefix(".") for name in names}


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_place(name: str) -> None:
    assert top(name) in LEVEL


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name: str) -> None:
    others = {other for other in ours(MODULES[name]) if top(other) not in (top(name), "")}
    up = {other for other in others if LEVEL.get(top(other), 99) >= LEVEL[top(name)]}
    assert not up, f"{name} imports {sorted(up)}, which stand beside or above it"


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: ours(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # raises CycleError


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_modules_not_the_front_door(name: str) -> None:
    """The lab uses the package as a reader does, and --version is the front door's."""
    doors = {""} if top(name) == "lab" or name == "command_line.arguments" else set()
    assert ours(MODULES[name]) - doors <= set(MODULES), "imports a name from a folder"


def extra(name: str) -> str:
    """The folder of extras that a module is in: page, for extras.page.writing."""
    return name.split(".")[1] if name.startswith("extras.") else ""


def mentions_of_extras(path: Path) -> list[str]:
    """Imports of extras, and strings that are the dotted name of one or of its folder."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    pattern = r"(?:annotated_transformer\.)?extras(?:\.\w+)*"
    names = [text for text in strings if re.fullmatch(pattern, text)]
    return names + [name for name in ours(path) if top(name) == "extras"]


@pytest.mark.parametrize("name", [name for name in MODULES if top(name) not in ("extras", "lab")])
def test_the_core_knows_nothing_of_extras(name: str) -> None:
    """But a verb of the command line, which loads its extra when it is called."""
    path = MODULES[name]
    mentioned = mentions_of_extras(path)
    if top(name) != "command_line":
        assert mentioned == []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_the_top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in at_the_top if "extras" in ast.unparse(node)]


def test_the_front_door_names_one_extra() -> None:
    assert mentions_of_extras(PACKAGE / "__init__.py") == []
    assert mentions_of_extras(PACKAGE / "__init__.pyi") == ["extras.attention_views.record"]


@pytest.mark.parametrize("name", [name for name in MODULES if extra(name)])
def test_extras_do_not_import_one_another(name: str) -> None:
    others = {extra(other) for other in ours(MODULES[name]) if top(other) == "extras"}
    assert others <= {extra(name), ""}


@pytest.mark.slow
def test_the_core_passes_its_quick_tests_without_any_extra(tmp_path: Path) -> None:
    """In a copy whose extras, and their tests, are deleted."""
    ignored = shutil.ignore_patterns("__pycache__", "extras", "lab", "readers", "attacks")
    shutil.copytree(PACKAGE, tmp_path / "annotated_transformer", ignore=ignored)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=ignored)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=ignored)
    shutil.copytree(ROOT / "book" / "model", tmp_path / "book" / "model")
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    # An editable install would find them in the checkout all the same.
    plugin = 'import sys\nsys.modules["annotated_transformer.extras"] = None\n'
    (tmp_path / "without_extras.py").write_text(plugin)
    options = ["-q", "-x", "-p", "no:xdist", "-p", "without_extras", "-m", CORE_ALONE]
    folders = [f"tests/{name}" for name in CORE if (ROOT / "tests" / name).is_dir()]
    call = [sys.executable, "-m", "pytest", *options, *folders]
    paths = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(call, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    [n_passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(n_passed) > 300


def test_only_training_and_decoding_open_the_fast_folder() -> None:
    """And Table 1, which times, and what saves or scores what they made.
    The model knows nothing of it."""
    opened = {name: {top(other) for other in ours(path)} for name, path in MODULES.items()}
    users = {top(name) for name, others in opened.items() if "fast" in others}
    assert users - {"fast"} <= {"training", "decoding", "lab"}


def test_only_the_timing_of_table_1_keeps_freed_memory() -> None:
    """That would change the whole process of whoever trains or translates."""
    memory = "lab.experiments.table_1.memory"
    users = [name for name, path in MODULES.items() if memory in ours(path)]
    assert users == ["lab.experiments.table_1.timing"]


def test_a_folder_is_read_in_an_hour() -> None:
    folders = {path.parent for path in SOURCES}
    counts = {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert {folder: n for folder, n in counts.items() if n > MAX_MODULES} == {}


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_no_module_has_the_name_of_what_it_exports(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert name.rpartition(".")[2] not in defined


@pytest.mark.parametrize("name", ["config", "settings"])
def test_a_configuration_needs_no_torch(name: str) -> None:
    assert "torch" not in {top(other) for other in imports(MODULES[name])}


@pytest.mark.parametrize("name", MODULES)
def test_heavy_libraries_stay_in_their_module(name: str) -> None:
    found = {top(other) for other in imports(MODULES[name])}
    assert [other for other in found if name not in ONLY_IN.get(other, {name})] == []


@pytest.mark.parametrize("path", SHORT_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
