"""Figures of the package's shape: python -m tools.shape.

Files that one training step, a training of one step and a translation enter; classes of decoding;
folders of the wheel; arrows (imports) between files, those that point up, and cycles; assignments
`a, b = x, y` per 1,000 lines. A file is entered when a function in it is called. The floors of the
house are those of tests/test_architecture.py. import-linter checks such floors; it counts nothing.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from annotated_transformer import Tokenizer, TrainingRun, Transformer, Translator, make_batch, train
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.fast.decoder import FastDecoder
from tests.test_architecture import LEVEL, MODULES, ours, top

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "annotated_transformer"
PAIRS = [("a cab fed a bee", "eeb a def bac a"), ("a bad bee", "eeb dab a"), ("bed", "deb")] * 20


def entered(function: Callable[[], object]) -> list[str]:
    """The package's files in which `function` calls anything, the second time that it runs."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    function()  # imports, which enter a file too, are done once
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = [Path(name) for name in found if Path(name).is_relative_to(PACKAGE)]
    return sorted(str(path.relative_to(PACKAGE)) for path in paths)


def entered_by_programs() -> dict[str, list[str]]:
    tokenizer = Tokenizer.train([side for pair in PAIRS for side in pair], 280)
    sizes: dict[str, Any] = {"N": 1, "d_model": 8, "d_ff": 12, "h": 2}
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **sizes)
    settings = TrainConfig(train_steps=1, warmup_steps=1, max_tokens=256)
    encoded = [(tokenizer.encode(a), tokenizer.encode(b)) for a, b in PAIRS[:3]]
    batch = make_batch(encoded, config.special_ids)
    run = TrainingRun(config, settings)
    model = Transformer(config).eval()
    readable, fast = Translator(model, tokenizer), Translator(model, tokenizer)
    fast.search_model = FastDecoder(model)

    def train_one_step(valid_pairs: list[tuple[str, str]]) -> None:
        with tempfile.TemporaryDirectory() as out:
            train(config, settings, tokenizer, PAIRS, valid_pairs, out, progress=False)

    def translate() -> None:
        for translator in (readable, fast):
            translator.translate(["a bad bee", "bed"])

    programs = {
        "TrainingRun.step": lambda: run.step([batch]),
        "train() of one step": lambda: train_one_step([]),
        "train() of one step with validation": lambda: train_one_step(PAIRS[:3]),
    }
    return {
        name: entered(program) for name, program in [*programs.items(), ("translate", translate)]
    }


def classes(name: str) -> list[str]:
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that import one another, however far round."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            if (name := ahead.pop()) not in seen:
                seen.add(name)
                ahead += graph[name]
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph}
    return sorted(sorted(group) for group in groups if group)


def tuple_assignments(source: str) -> int:
    """How many statements give a tuple of names the values of a tuple written beside them."""
    return sum(
        isinstance(target, ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and len(target.elts) == len(node.value.elts)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign)
        for target in node.targets
    )


def main() -> None:
    torch.set_num_threads(1)
    programs = entered_by_programs()
    for program, names in programs.items():
        print(f"files entered by {program}: {len(names)}\n    {' '.join(names)}")
    # What training enters too, settings, and what makes ids of text are not decoding's own.
    others = {*programs["TrainingRun.step"], "config.py", "settings.py"}
    decoding = [
        f"{Path(name).stem}.{kind}"
        for name in programs["translate"]
        if name not in others and not name.startswith("data/")
        for kind in classes(name)
    ]
    print(f"classes in files of decoding alone: {len(decoding)}\n    {' '.join(decoding)}")
    files = [
        path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    print(f"folders of the wheel: {len({path.parent for path in files})}")
    graph = {name: ours(path) & set(MODULES) - {name} for name, path in MODULES.items()}
    arrows = [(a, b) for a, others in graph.items() for b in others]
    up = [f"{a} -> {b}" for a, b in arrows if top(a) != top(b) and LEVEL[top(b)] >= LEVEL[top(a)]]
    print(f"arrows between files: {len(arrows)}; that point up: {len(up)} {' '.join(sorted(up))}")
    circles = cycles(graph)
    print(f"cycles: {len(circles)} {circles or ''}")
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    lines = sum(source.count("\n") for source in sources)
    found = sum(map(tuple_assignments, sources))
    print(f"tuple assignments per 1,000 lines: {1000 * found / lines:.1f} ({found} in {lines:,})")


if __name__ == "__main__":
    main()
