"""Write the pages that are made from the code: book/api.md and book/hyperparameters.md.

    python -m tools.reference            write both
    python -m tools.reference --check    change nothing; exit 1 if a page is older than the code

The package reference has every public name with its signature as it stands in the source, and its
docstring; the source is read, not run. The page of hyper-parameters sets the paper's values beside
the fields of the configurations.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from annotated_transformer import config
from annotated_transformer.tables.table_3 import count_parameters

ROOT = Path(__file__).resolve().parents[1]
BOOK, PACKAGE = ROOT / "book", ROOT / "annotated_transformer"
WIDTH = 88  # columns of a signature on one line

# The modules by the part of the paper that they are; one that is missing here comes at the end.
GROUPS: dict[str, tuple[str, ...]] = {
    "Configuration and files": (
        "errors",
        "settings",
        "config",
        "weights",
        "checkpoint",
    ),
    "The model": (
        "model", "model.attention", "model.dropout", "model.embedding", "model.feed_forward",
        "model.stacks", "model.transformer",
    ),
    "Text": (
        "text", "text.batching", "text.corpus", "text.corpus_sources", "text.downloads",
        "text.encoding", "text.package_index", "text.parallel_text", "text.planning",
        "text.shard_writing", "text.shards", "text.tokenizer", "text.vocabulary_file",
    ),
    "Training": (
        "training", "training.distributed", "training.distributed.processes",
        "training.distributed.rendezvous", "training.distributed.sharded_checkpoint",
        "training.distributed.wrapping",
        "training.epochs", "training.interrupts", "training.log", "training.loop",
        "training.loss", "training.mishaps", "training.optimizer", "training.precision",
        "training.run_directory", "training.state",
    ),
    "Translation and evaluation": (
        "translation",
        "translation.evaluation",
        "translation.search",
        "translation.translator",
    ),
    "Sooner": (
        "fast", "fast.blockwise_loss", "fast.cuda_graphs", "fast.decoder", "fast.graph_recording",
        "fast.int8", "fast.linear", "fast.memory", "fast.packing",
    ),
    "The paper's tables": (
        "tables",
        "tables.cost",
        "tables.variations",
        "trees",
        "parsing",
    ),
    "The paper's experiments": (
        "experiments", "experiments.claims", "experiments.claims_table",
        "experiments.result_file", "experiments.distributions", "experiments.significance",
        "experiments.verdicts", "experiments.trained_models",
        "experiments.table_1", "experiments.table_1.layer_types",
        "experiments.table_1.measurement", "experiments.table_1.timing",
        "experiments.table_1.counting", "experiments.table_1.sweep", "experiments.table_3",
        "experiments.table_3.miniature", "experiments.table_3.miniature_run",
        "experiments.table_3.miniature_summary",
        "experiments.table_3.miniature_table", "experiments.table_4", "experiments.table_4.parser",
        "experiments.table_4.plan", "experiments.table_4.scoring", "experiments.table_4.treebank",
        "experiments.figures_3_to_5", "experiments.figures_3_to_5.knock_out",
        "experiments.figures_3_to_5.attention_shares",
        "experiments.figures_3_to_5.controlled_corpus",
        "experiments.figures_3_to_5.controlled_grammar",
        "experiments.figures_3_to_5.controlled_phrases",
        "experiments.figures_3_to_5.controlled_words", "experiments.figures_3_to_5.findings",
        "experiments.attention_at_work", "experiments.reversal",
    ),
    "Looking and learning": (
        "looking", "looking.explorer", "looking.visualization", "looking.inspection",
        "exercises", "exercises.judging",
        "exercises.on_attention", "exercises.on_layers", "exercises.on_positions",
        "exercises.on_data", "exercises.on_results",
        "exercises.on_training",
    ),
    "Ways in and out": (
        "interop", "interop.weights_alone", "interop.page", "interop.training_page",
        "interop.int8_rows",
        "interop.sentencepiece_file",
        "from_pairs", "from_pairs.plan", "from_pairs.making", "from_pairs.report",
        "from_pairs.verb",
        "commands",
        "arguments",
        "cli",
    ),
}  # fmt: skip


# The package reference


def dotted(path: Path) -> str:
    """config, experiments.claims, experiments: a module's name below the package;
    "" for programs and the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts[-1] == "__main__" else ".".join(part for part in parts if part != "__init__")


def groups() -> dict[str, list[Path]]:
    """The package's modules under their headings, in reading order."""
    paths = {dotted(path): path for path in sorted(PACKAGE.rglob("*.py")) if dotted(path)}
    named = {
        title: [paths.pop(stem) for stem in stems if stem in paths]
        for title, stems in GROUPS.items()
    }
    return {
        title: found for title, found in {**named, "More": list(paths.values())}.items() if found
    }


def public(name: str) -> bool:
    return not name.startswith("_")


def prose(text: str | None) -> str:
    """A docstring as Markdown: plain letters stay plain,
    indented examples and `code` stay as they are."""
    if not text:
        return ""
    blocks = []
    for block in re.split(r"\n\s*\n", textwrap.dedent(text).strip()):
        if block.startswith("    "):
            blocks.append(f"```python\n{textwrap.dedent(block)}\n```")
            continue
        words = re.split(r"(`[^`]+`)", block)
        plain = [
            word if word.startswith("`") else re.sub(r"([<>$\\])", r"\\\1", word) for word in words
        ]
        # A lone star or an underline at a word's edge would start emphasis; `*may look*` is meant.
        blocks.append(re.sub(r"(?<=\s)\*(?=\s)", r"\\*", "".join(plain)))
    return "\n\n".join(blocks)


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


class Module:
    """A module's source, and what it offers."""

    def __init__(self, path: Path):
        self.name, self.source = dotted(path), path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.source)
        self.lines = [line.encode() for line in self.source.split("\n")]

    def text(self, node: ast.expr | None) -> str:
        """The node as the source writes it, on one line.
        (`ast.get_source_segment` divides the source every time.)"""
        if node is None:
            return ""
        assert node.end_lineno
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return re.sub(r"\s*\n\s*", " ", b"\n".join(lines).decode())

    def parameters(self, arguments: ast.arguments) -> list[str]:
        """The parameters of a function, each with its annotation and default."""

        def one(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
            annotation = f": {self.text(argument.annotation)}" if argument.annotation else ""
            equals = " = " if annotation else "="
            return f"{stars}{argument.arg}{annotation}" + (
                f"{equals}{self.text(default)}" if default else ""
            )

        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        found = [one(argument, default) for argument, default in zip(positional, defaults)]
        if arguments.vararg:
            found.append(one(arguments.vararg, None, "*"))
        elif arguments.kwonlyargs:
            found.append("*")
        found += [
            one(argument, default)
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)
        ]
        if arguments.kwarg:
            found.append(one(arguments.kwarg, None, "**"))
        return [text for text in found if text.partition(":")[0] not in ("self", "cls")]

    def signature(
        self, name: str, parameters: Sequence[str], returns: ast.expr | None = None
    ) -> str:
        arrow = f" -> {self.text(returns)}" if returns and self.text(returns) != "None" else ""
        line = f"{name}({', '.join(parameters)}){arrow}"
        if len(line) <= WIDTH:
            return line
        return (
            f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){arrow}"
        )

    def function(self, node: ast.FunctionDef, level: str, owner: str = "") -> list[str]:
        name = f"{owner}.{node.name}" if owner else node.name
        decorators = [self.text(decorator) for decorator in node.decorator_list]
        if "property" in decorators:
            returns = f": {self.text(node.returns)}" if node.returns else ""
            code = f"{node.name}{returns}"
        else:
            code = self.signature(node.name, self.parameters(node.args), node.returns)
        if "contextmanager" in decorators:
            code = f"with {code}"
        return [f"{level} `{name}`", fenced(code), prose(ast.get_docstring(node))]

    def fields(self, node: ast.ClassDef) -> list[str]:
        """What the constructor of a dataclass or named tuple takes."""
        found = []
        for item in node.body:
            if (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and public(item.target.id)
            ):
                default = self.text(item.value)
                default = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", default)
                found.append(
                    f"{item.target.id}: {self.text(item.annotation)}"
                    + (f" = {default}" if default else "")
                )
        return found

    def klass(self, node: ast.ClassDef) -> list[str]:
        inherited = [
            base
            for base in self.tree.body
            if isinstance(base, ast.ClassDef)
            and not public(base.name)
            and base.name in map(self.text, node.bases)
        ]
        methods = {
            item.name: item
            for kind in (*inherited, node)
            for item in kind.body
            if isinstance(item, ast.FunctionDef)
        }
        start = methods.get("__init__")
        parameters = self.parameters(start.args) if start else self.fields(node)
        bases = [self.text(base) for base in node.bases if public(self.text(base))]
        code = self.signature(node.name, parameters) if parameters else node.name
        head = f"class {code}" + (f"  # a {bases[0]}" if bases else "")
        lines = [f"### `{node.name}`", fenced(head), prose(ast.get_docstring(node))]
        for name, method in methods.items():
            if public(name):
                lines += self.function(method, "####", node.name)
        return lines

    def constant(
        self, name: str, node: ast.Assign | ast.AnnAssign, following: ast.stmt | None
    ) -> list[str]:
        value = ast.get_source_segment(self.source, node) or ""
        if len(value.splitlines()) > 4:
            value = f"{name} = ...  # {len(value.splitlines())} lines"
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        text = str(following.value.value) if is_text else ""  # type: ignore[union-attr]
        return [f"### `{name}`", fenced(value), prose(text)]

    def members(self) -> list[tuple[str, list[str]]]:
        """Every public name that the module defines, with its lines, in the order of the source."""
        found: list[tuple[str, list[str]]] = []
        body: list[ast.stmt] = self.tree.body
        for node, following in zip(body, [*body[1:], None]):
            if isinstance(node, ast.ClassDef) and public(node.name):
                found.append((node.name, self.klass(node)))
            elif isinstance(node, ast.FunctionDef) and public(node.name):
                found.append((node.name, self.function(node, "###")))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = [
                    part
                    for target in targets
                    for part in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
                names = [
                    part.id for part in parts if isinstance(part, ast.Name) and public(part.id)
                ]
                if names and not self.text(node.value).startswith("TypeVar("):
                    lines = self.constant(names[0], node, following)
                    found += [
                        (names[0], ["### " + ", ".join(f"`{name}`" for name in names), *lines[1:]])
                    ]
                    found += [(name, []) for name in names[1:]]
        return found

    def page(self) -> list[str]:
        head = [f"(api-{self.name})=\n## `{self.name}`", prose(ast.get_docstring(self.tree))]
        return head + [line for _, lines in self.members() for line in lines]


def front_door() -> dict[str, str]:
    """The names that the package itself offers, and the module of each."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "_HOME"
        ):
            return dict(ast.literal_eval(node.value))
    raise SystemExit("reference.py: annotated_transformer/__init__.py has no _HOME")


def api() -> str:
    """The package reference."""
    lines = [
        "# Package reference",
        "Every public name of the package `annotated_transformer`, by module, with its signature "
        "and its docstring as they stand in the source: this page is made by `make reference`, "
        'and a test holds it to the code. The letters in `Float[Tensor, "B T D"]` are those of '
        "[the notation](notation.md). A mask is boolean, and True means *may look*. A mistake "
        "that a person can make is answered by `ConfigError`, in one line.",
        "What most programs need can be imported from the package itself:",
        fenced("from annotated_transformer import ModelConfig, Transformer, Translator"),
    ]
    doors: dict[str, list[str]] = {}
    for name, home in front_door().items():
        doors.setdefault(home, []).append(f"`{name}`")
    found = groups()
    order = [dotted(path) for paths in found.values() for path in paths]
    lines.append(
        "| module | names that the package offers |\n|---|---|\n"
        + "\n".join(
            f"| [{home}](api-{home}) | {', '.join(doors[home])} |"
            for home in sorted(doors, key=order.index)
        )
    )
    lines.append(
        "## All modules\n\n| part | modules |\n|---|---|\n"
        + "\n".join(
            f"| {title} | {', '.join(f'[{dotted(path)}](api-{dotted(path)})' for path in paths)} |"
            for title, paths in found.items()
        )
    )
    for paths in found.values():
        for path in paths:
            lines += Module(path).page()
    return "\n\n".join(line for line in lines if line) + "\n"


# The hyper-parameters

MODEL = {  # field of ModelConfig: what it is
    "vocab_size": "tokens of the shared vocabulary",
    "N": "layers in the encoder, and in the decoder",
    "d_model": "width between layers",
    "d_ff": "hidden width of the feed-forward network",
    "h": "heads",
    "d_k": "width of a head's queries and keys",
    "d_v": "width of a head's values",
    "p_drop": "residual dropout",
    "norm": "LayerNorm after the sum, or before the sub-layer",
    "positions": "kind of positional encoding",
    "activation": "of the feed-forward network",
    "bias": "biases in the attention's projections",
    "scaled_attention": "scores divided by the root of d_k",
    "attention_dropout": "dropout on attention weights",
    "ffn_dropout": "dropout inside the feed-forward network",
    "initialization": "how weights begin",
    "max_len": "positions, if they are learned",
    "pad_id": "id of padding",
    "bos_id": "id that begins a target",
    "eos_id": "id that ends a sentence",
}
TRAIN = {  # field of TrainConfig: what it is, what the paper has
    "train_steps": ("Adam updates", "100,000 (base), 300,000 (big)"),
    "max_tokens": (
        "padded tokens a batch, on each side",
        "about 25,000 source and 25,000 target tokens",
    ),
    "accumulate": ("batches an update", "1; its batch is shared by 8 GPUs"),
    "warmup_steps": ("steps in which the rate rises", "4000"),
    "warm_up": ("whether the rate rises at first, or begins at its peak", "true"),
    "lr_factor": ("factor on the rate of equation 3", "1 (none is printed)"),
    "beta1": ("Adam's first decay", "0.9"),
    "beta2": ("Adam's second decay", "0.98"),
    "adam_eps": ("Adam's epsilon", "1e-9"),
    "clip_norm": ("largest norm of the gradient, 0 for no limit", "not mentioned"),
    "eps_ls": ("label smoothing", "0.1"),
    "concatenate": ("joined pairs in an epoch, for each of the corpus", "not in the paper"),
    "bpe_dropout": ("share of merges left out when text is encoded", "not in the paper"),
    "seed": ("of every random choice", "not mentioned"),
    "max_length": ("longest sentence that is trained on, in tokens", "not mentioned"),
    "window": ("pairs that are planned at a time, 0 for all of an epoch", "not mentioned"),
    "precision": ("of the matrix products", "not mentioned for training"),
    "compile": ("compile the model with PyTorch", "later than the paper"),
    "log_every": ("steps between lines of the log", "not mentioned"),
    "validate_every": ("steps between validations", "not mentioned"),
    "checkpoint_every": ("steps between checkpoints", "every 10 minutes"),
    "keep_checkpoints": ("checkpoints kept, to be averaged", "5 (base), 20 (big)"),
}
DECODE = {  # field of DecodeConfig: what it is, what the paper has for translation, and for parsing
    "beam_size": ("hypotheses kept", "4", "21"),
    "alpha": ("strength of the length penalty", "0.6", "0.3"),
    "n_best": ("hypotheses returned", "1", "1"),
    "max_extra": ("most tokens beyond the source's length", "50", "300"),
}
# Setting, its name in the code, base, big, parsing;
# as printed in sections 3, 5, 6.1, 6.3 and Table 3.
PAPER = (
    ("layers $N$", "`N`", "6", "6", "4"),
    ("width $d_{\\mathrm{model}}$", "`d_model`", "512", "1024", "1024"),
    ("hidden width $d_{\\mathrm{ff}}$", "`d_ff`", "2048", "4096", "as base"),
    ("heads $h$", "`h`", "8", "16", "as base"),
    ("widths $d_k$, $d_v$", "`d_k`, `d_v`", "64, 64", "64, 64", "as base"),
    (
        "dropout $P_{drop}$",
        "`p_drop`",
        "0.1",
        "0.3 (English-German), 0.1 (English-French)",
        "chosen on section 22",
    ),
    ("label smoothing $\\epsilon_{ls}$", "`eps_ls`", "0.1", "0.1", "as base"),
    (
        "Adam $\\beta_1$, $\\beta_2$, $\\epsilon$",
        "`beta1`, `beta2`, `adam_eps`",
        "0.9, 0.98, $10^{-9}$",
        "as base",
        "as base",
    ),
    ("warm-up", "`warmup_steps`", "4000", "4000", "as base; the rate itself chosen on section 22"),
    ("updates", "`train_steps`", "100,000", "300,000", "not printed"),
    (
        "English-German data",
        "`--corpus`",
        "4.5 million pairs, shared byte pairs, about 37,000 tokens",
        "the same",
        "none",
    ),
    (
        "English-French data",
        "`--corpus`",
        "36 million pairs, 32,000 word pieces",
        "the same",
        "none",
    ),
    (
        "parsing data",
        "`--train`",
        "none",
        "none",
        "40,000 sentences, 16,000 tokens; semi-supervised 17 million, 32,000 tokens",
    ),
    (
        "batch",
        "`max_tokens`",
        "about 25,000 source and 25,000 target tokens, pairs of similar length",
        "the same",
        "as base",
    ),
    (
        "checkpoints averaged",
        "`average --last`",
        "the last 5, written every 10 minutes",
        "the last 20",
        "not printed",
    ),
    ("beam, $\\alpha$", "`beam_size`, `alpha`", "4, 0.6", "4, 0.6", "21, 0.3"),
    (
        "longest output",
        "`max_extra`",
        "input + 50, ended early where possible",
        "the same",
        "input + 300",
    ),
    ("hardware", "none", "8 NVIDIA P100", "8 NVIDIA P100", "not printed"),
    ("time", "none", "0.4 s a step, 12 hours", "1.0 s a step, 3.5 days", "not printed"),
    ("parameters", "`count_parameters`", "65 million", "213 million", "not printed"),
)
PAPER_VOCABULARY = 37_000


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def written(value: Any) -> str:
    """A setting as the page shows it: 25,000 and 1e-9, words as code."""
    if isinstance(value, bool | str):
        return f"`{value}`"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    return re.sub(r"e-0(\d)", r"e-\1", f"{value:g}")


def checked(settings: type, described: dict[str, Any]) -> list[str]:
    """The names of the fields of `settings`, which must be those described here."""
    names = [field.name for field in dataclasses.fields(settings)]
    if set(names) != set(described):
        sys.exit(
            f"reference.py: describe {sorted(set(names) ^ set(described))} of {settings.__name__}"
        )
    return names


def presets() -> str:
    models = [getattr(config.ModelConfig, name)(PAPER_VOCABULARY) for name in config.PRESETS]
    rows = [
        [f"`{name}`", MODEL[name], *(written(getattr(model, name)) for model in models)]
        for name in checked(config.ModelConfig, MODEL)
        if name != "vocab_size"
    ]
    rows.append(
        [
            "",
            f"parameters, with {PAPER_VOCABULARY:,} tokens",
            *(f"{count_parameters(model) / 1e6:.1f} million" for model in models),
        ]
    )
    return table(["setting", "what it is", *(f"`{name}`" for name in config.PRESETS)], rows)


def hyperparameters() -> str:
    """The page of hyper-parameters."""
    train, decode = config.TrainConfig(), config.DecodeConfig()
    return (
        "\n\n".join(
            [
                "# Hyper-parameters",
                "What the paper sets, what the settings are called here, and what our presets "
                "hold. The tables of presets and defaults are made from the code by `make "
                "reference`; a test holds them, and the paper's base and big models, to it.",
                "## The paper's values",
                'From sections 3, 5, 6.1 and 6.3 and Table 3. "Parsing" is the model of section '
                '6.3. "As base" is what that section says of all it does not name; it prints no '
                "number there, and for the heads of a model twice as wide as the base model the "
                "words leave open what is meant.",
                table(["setting", "called here", "base", "big", "parsing"], PAPER),
                "Two of these numbers do not agree with the rest. With 37,000 tokens the base "
                "model has 63 million parameters, not 65, and 100,000 steps of 0.4 s are 11.1 "
                "hours, not 12.",
                "## Our presets",
                "`ModelConfig.base(vocab_size)` is the paper's base model and "
                "`ModelConfig.big(vocab_size)` its big one, with the dropout of English-German. "
                "`tiny` and `small` are sizes of our own: for a laptop and some minutes, and for "
                "a small corpus. Any setting is changed by name, `ModelConfig.base(37_000, "
                'norm="pre")`, or on the command line, `--preset base --set norm=pre`. The '
                "settings from `norm` to `ffn_dropout` are departures from the paper, off by "
                "default.",
                presets(),
                "The choices: "
                + "; ".join(
                    f"`{name}` is " + ", ".join(f"`{option}`" for option in options)
                    for name, options in choices().items()
                )
                + ".",
                "## Training",
                "The fields of `TrainConfig`. Its defaults are section 5's.",
                table(
                    ["setting", "what it is", "our default", "the paper"],
                    [
                        [f"`{name}`", TRAIN[name][0], written(getattr(train, name)), TRAIN[name][1]]
                        for name in checked(config.TrainConfig, TRAIN)
                    ],
                ),
                "## Decoding",
                "The fields of `DecodeConfig`.",
                table(
                    [
                        "setting",
                        "what it is",
                        "our default",
                        "the paper, translation",
                        "the paper, parsing",
                    ],
                    [
                        [
                            f"`{name}`",
                            DECODE[name][0],
                            written(getattr(decode, name)),
                            *DECODE[name][1:],
                        ]
                        for name in checked(config.DecodeConfig, DECODE)
                    ],
                ),
            ]
        )
        + "\n"
    )


def choices() -> dict[str, tuple[str, ...]]:
    """The settings of the model that are one of some words."""
    from typing import get_args, get_type_hints

    hints = get_type_hints(config.ModelConfig)
    return {
        name: get_args(hints[name])
        for name in MODEL
        if get_args(hints[name])
        and all(isinstance(option, str) for option in get_args(hints[name]))
    }


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    return {"api.md": api(), "hyperparameters.md": hyperparameters()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if a page is out of date"
    )
    check = parser.parse_args(arguments).check
    stale = {
        name: text
        for name, text in pages().items()
        if not (BOOK / name).exists() or (BOOK / name).read_text(encoding="utf-8") != text
    }
    for name, text in stale.items():
        if check:
            print(f"book/{name} is older than the code; run: make reference", file=sys.stderr)
        else:
            (BOOK / name).write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
