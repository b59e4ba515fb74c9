"""The house rules that a program can read: who may import whom, and how long a file may be."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "annotated_transformer"
LAYERS = [  # lower first: a module imports only from layers above it in this list
    {"errors", "files"},
    {"config", "dropout"},
    {"attention", "feed_forward", "embedding", "loss", "optimizer", "tokenizer", "beam_search", "parsing",
     "parallel_text", "downloads", "process", "interrupts", "precision", "exercises.judging",
     "experiments.controlled_words"},
    {"stacks", "package_index", "batching", "visualization", "experiments.layer_types", "experiments.learning_curve",
     "experiments.controlled_grammar"},
    {"transformer", "corpus_sources", "experiments.treebank", "experiments.controlled_corpus"},
    {"quantization", "corpus"},
    {"checkpoint", "cost", "evaluation", "explorer", "inference", "packing", "experiments.attention_shares"},
    {"graphs", "training_state"},
    {"translation", "training_log", "result_file", "experiments.significance"},
    {"training", "experiments.ablation"},
    {"interop", "variations"},
    {"experiments.miniature", "experiments.parsing", "experiments.table_1", "experiments.figures_3_to_5",
     "experiments.verdicts"},
    {"experiments.miniature_table", "experiments.claims"},
    {"experiments.table_3"},
    {"train_arguments"},
    {"commands", "exercises.on_attention", "exercises.on_layers", "exercises.on_training", "exercises.on_results"},
    {"cli", "exercises", "experiments"},
    {"__main__", "experiments.__main__"},
]
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}
ONLY_IN = {  # heavy or optional libraries, each loaded inside the one module that needs it
    "matplotlib": {"visualization"},
    "sentencepiece": {"tokenizer"},
    "sacrebleu": {"evaluation"},
    "safetensors": {"checkpoint", "interop"},
    "datasets": {"corpus_sources"},
    "transformers": {"interop"},
    "tensorboard": {"training_log"},
}
SOURCES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = {"exercises", "experiments"}  # what stands beside the model
MAX_LINES = 300


def module(path: Path) -> str:
    """config, experiments.claims, experiments: the name below the package; "" for the package itself."""
    return ".".join(part for part in path.relative_to(PACKAGE).with_suffix("").parts if part != "__init__")


MODULES = [path for path in SOURCES if module(path)]  # without the front door, which loads names on demand


def imports(path: Path) -> set[str]:
    """All modules that the file names in an import, anywhere: "torch.nn", "annotated_transformer.config", ..."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, ("annotated_transformer" if node.level else "", node.module)))
            of_folder = {f"{base}.{name.name}" for name in node.names}
            known = {name.removeprefix("annotated_transformer.") for name in of_folder} <= set(LEVEL)
            found |= of_folder if base == "annotated_transformer" or known else {base}
    return found


def ours(path: Path) -> set[str]:
    return {name.removeprefix("annotated_transformer.") for name in imports(path)
            if name.startswith("annotated_transformer.")}


@pytest.mark.parametrize("path", MODULES, ids=module)
def test_every_module_has_a_place(path: Path) -> None:
    assert module(path) in LEVEL


@pytest.mark.parametrize("path", MODULES, ids=module)
def test_imports_point_down(path: Path) -> None:
    up = {name for name in ours(path) if LEVEL.get(name, -1) >= LEVEL[module(path)]}
    assert not up, f"{module(path)} imports {sorted(up)}, which stand beside or above it"


@pytest.mark.parametrize("path", MODULES, ids=module)
def test_modules_import_modules_not_the_front_door(path: Path) -> None:
    assert ours(path) <= set(LEVEL), f"{module(path)} imports a name from the package itself; name its module"


def test_a_configuration_needs_no_torch() -> None:
    for path in (PACKAGE / "config.py", PACKAGE / "errors.py"):
        assert {name for name in imports(path) if name.partition(".")[0] == "torch"} == set()


def test_one_function_speaks_to_the_user() -> None:
    speakers = [module(path) for path in MODULES if "file=sys.stderr, flush" in path.read_text(encoding="utf-8")]
    assert speakers == ["errors"]


@pytest.mark.parametrize("path", MODULES, ids=module)
def test_heavy_libraries_stay_in_their_module(path: Path) -> None:
    wrong = {name for name in imports(path) if path.stem not in ONLY_IN.get(name.partition(".")[0], {path.stem})}
    assert not wrong, f"{path.stem} imports {sorted(wrong)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_file_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_nothing_of_the_model_needs_the_folders_beside_it() -> None:
    """Only the command line opens them, and only when it is asked to."""
    leaning = {module(path) for path in SOURCES if path.parent == PACKAGE
               if any(name.split(".")[0] in FOLDERS for name in ours(path))}
    assert leaning <= {"commands"}
