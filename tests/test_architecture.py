"""The house rules that a program can read: who may import whom, and how long a file may be."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "annotated_transformer"
LAYERS = [  # lower first: a module imports only from layers above it in this list
    {"config"},
    {"attention", "feed_forward", "embedding", "loss", "optimizer", "tokenizer", "batching", "beam_search", "parsing",
     "parallel_text", "downloads", "process", "exercise_judging"},
    {"stacks", "corpus", "visualization"},
    {"transformer"},
    {"checkpoint", "cost", "evaluation", "explorer"},
    {"translation"},
    {"training"},
    {"interop", "variations"},
    {"commands", "exercises_attention", "exercises_layers", "exercises_training", "exercises_results"},
    {"cli", "exercises"},
    {"__main__"},
]
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}
ONLY_IN = {  # heavy or optional libraries, each loaded inside the one module that needs it
    "matplotlib": {"visualization"},
    "sentencepiece": {"tokenizer"},
    "sacrebleu": {"evaluation"},
    "safetensors": {"checkpoint", "interop"},
    "datasets": {"corpus"},
    "transformers": {"interop"},
    "tensorboard": {"training"},
}
SOURCES = sorted(PACKAGE.glob("*.py"))
MODULES = [path for path in SOURCES if path.stem != "__init__"]  # the front door: it loads names on demand
MAX_LINES = 300


def imports(path: Path) -> set[str]:
    """All modules that the file names in an import, anywhere: "torch.nn", "annotated_transformer.config", ..."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, ("annotated_transformer" if node.level else "", node.module)))
            ours = base == "annotated_transformer"
            found |= {f"{base}.{name.name}" for name in node.names} if ours else {base}
    return found


def ours(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("annotated_transformer.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_has_a_place(path: Path) -> None:
    assert path.stem in LEVEL


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_point_down(path: Path) -> None:
    up = {name for name in ours(path) if LEVEL.get(name, -1) >= LEVEL[path.stem]}
    assert not up, f"{path.stem} imports {sorted(up)}, which stand beside or above it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_import_modules_not_the_front_door(path: Path) -> None:
    assert ours(path) <= set(LEVEL), f"{path.stem} imports a name from the package itself; name its module"


def test_a_configuration_needs_no_torch() -> None:
    assert {name for name in imports(PACKAGE / "config.py") if name.partition(".")[0] == "torch"} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_heavy_libraries_stay_in_their_module(path: Path) -> None:
    wrong = {name for name in imports(path) if path.stem not in ONLY_IN.get(name.partition(".")[0], {path.stem})}
    assert not wrong, f"{path.stem} imports {sorted(wrong)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_the_package_is_read_in_an_evening() -> None:
    # The limit counts what is there for teaching too: the checks of the exercises and the explorer.
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES) <= 5000
