"""Variations of the base model (section 6.2): the rows of Table 3 as changes to its settings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from annotated_transformer.config import ModelConfig, TrainConfig

VOCAB_SIZE = 41_100
"""A vocabulary that gives every printed number of parameters but big's (`vocabulary_interval`)."""
VOCAB_SIZE_BIG = 36_000
"""A vocabulary that gives big's."""


def count_parameters(config: ModelConfig) -> int:
    """The number of weights of `Transformer(config)`, from its sizes alone.

    With D = d_model: V D for the embedding, which three places share; h D (2 d_k + 2 d_v) for an
    attention; 2 D d_ff + d_ff + D for a feed-forward network; 2 D for a LayerNorm. An encoder layer
    has 1, 1 and 2 of the last three, a decoder layer 2, 1 and 3. The options add max_len D (learned
    positions), attention's biases, V (output_bias), a final norm for each stack (pre-norm or
    final_norm), a gain for queries and one for keys (qk_norm), and another D d_ff + d_ff (SwiGLU);
    RMSNorm has D.
    """
    D, h = config.d_model, config.h
    d_k, d_v = config.d_k or D // h, config.d_v or D // h
    attention = h * D * (2 * d_k + 2 * d_v)
    if config.bias:
        attention += h * (2 * d_k + d_v) + D
    if config.qk_norm:
        attention += 2 * d_k
    feed_forward = 2 * D * config.d_ff + config.d_ff + D
    if config.activation == "swiglu":
        feed_forward += D * config.d_ff + config.d_ff
    layer_norm = D if config.rms_norm else 2 * D
    encoder_layer = attention + feed_forward + 2 * layer_norm
    decoder_layer = 2 * attention + feed_forward + 3 * layer_norm
    embedding = config.vocab_size * (D + config.output_bias)
    positions = config.max_len * D if config.positions == "learned" else 0
    final_norms = 2 * layer_norm * (config.norm == "pre" or config.final_norm)
    return embedding + positions + config.N * (encoder_layer + decoder_layer) + final_norms


@dataclass(frozen=True)
class Row:
    """A row of Table 3: what it changes, and what the paper measured on newstest2013.

    `ppl` is perplexity per word piece, `bleu` its BLEU without checkpoint averaging, `parameters`
    are in millions as printed (None where the cell is blank, which means as in base).
    """

    name: str
    letter: str
    ppl: float
    bleu: float
    parameters: int | None = None
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """base, A1 to A4, B1, B2, C1 to C7, D1 to D4, E1, big: the row's place in its group."""
        group = [row for row in TABLE_3 if row.letter == self.letter]
        return f"{self.letter}{group.index(self) + 1}" if self.letter else self.name

    def model_config(self, vocab_size: int = VOCAB_SIZE) -> ModelConfig:
        return ModelConfig.base(vocab_size, **self.model)

    def train_config(self, **changes: Any) -> TrainConfig:
        return TrainConfig(**{**self.train, **changes})

    def count(self, vocab_size: int | None = None) -> int:
        """Parameters with `vocab_size`, or with the one that the printed number implies."""
        implied = VOCAB_SIZE_BIG if self.name == "big" else VOCAB_SIZE
        return count_parameters(self.model_config(implied if vocab_size is None else vocab_size))


def _heads(h: int, d: int, ppl: float, bleu: float) -> Row:
    """Row (A): more or fewer heads at the same cost, so d_k = d_v = d_model / h."""
    return Row(f"h={h}", "A", ppl, bleu, model={"h": h, "d_k": d, "d_v": d})


_BIG = {"d_model": 1024, "d_ff": 4096, "h": 16, "p_drop": 0.3}
TABLE_3 = (
    Row("base", "", 4.92, 25.8, 65),
    _heads(1, 512, 5.29, 24.9),
    _heads(4, 128, 5.00, 25.5),
    _heads(16, 32, 4.91, 25.8),
    _heads(32, 16, 5.01, 25.4),
    Row("d_k=16", "B", 5.16, 25.1, 58, {"d_k": 16}),
    Row("d_k=32", "B", 5.01, 25.4, 60, {"d_k": 32}),
    Row("N=2", "C", 6.11, 23.7, 36, {"N": 2}),
    Row("N=4", "C", 5.19, 25.3, 50, {"N": 4}),
    Row("N=8", "C", 4.88, 25.5, 80, {"N": 8}),
    Row("d_model=256", "C", 5.75, 24.5, 28, {"d_model": 256, "d_k": 32, "d_v": 32}),
    Row("d_model=1024", "C", 4.66, 26.0, 168, {"d_model": 1024, "d_k": 128, "d_v": 128}),
    Row("d_ff=1024", "C", 5.12, 25.4, 53, {"d_ff": 1024}),
    Row("d_ff=4096", "C", 4.75, 26.2, 90, {"d_ff": 4096}),
    Row("p_drop=0.0", "D", 5.77, 24.6, model={"p_drop": 0.0}),
    Row("p_drop=0.2", "D", 4.95, 25.5, model={"p_drop": 0.2}),
    Row("eps_ls=0.0", "D", 4.67, 25.3, train={"eps_ls": 0.0}),
    Row("eps_ls=0.2", "D", 5.47, 25.7, train={"eps_ls": 0.2}),
    Row("learned positions", "E", 4.92, 25.7, model={"positions": "learned"}),
    Row("big", "", 4.33, 26.4, 213, _BIG, {"train_steps": 300_000}),
)


def vocabulary_interval(rows: Iterable[Row]) -> tuple[int, int]:
    """The smallest and the largest vocabulary that give every printed parameter count of `rows`.

    Parameters are linear in V: V d_model for the shared embedding, and the rest. A printed p stands
    for [p - 1/2, p + 1/2) million. Rows without a printed number allow anything; if the first is
    larger than the second, no vocabulary fits them all.
    """
    low, high = 1, 10**9
    for row in rows:
        if row.parameters is not None:
            d_model = row.model_config().d_model
            rest = row.count(VOCAB_SIZE) - VOCAB_SIZE * d_model
            low = max(low, math.ceil((row.parameters * 1_000_000 - 500_000 - rest) / d_model))
            high = min(high, math.ceil((row.parameters * 1_000_000 + 500_000 - rest) / d_model) - 1)
    return low, high


def changes(row: Row) -> str:
    """What a row changes, as it would be given to `train --set`."""
    return " ".join(f"{name}={value}" for name, value in {**row.model, **row.train}.items())


def table(rows: Iterable[Row] = TABLE_3, vocab_size: int | None = None) -> str:
    """The rows as text: our count of parameters beside what the paper prints for each."""
    lines = [f"{'':2}{'row':18}{'parameters':>14}  | in the paper: 1e6{'PPL':>7}{'BLEU':>7}  | set"]
    for row in rows:
        printed = "" if row.parameters is None else str(row.parameters)
        lines.append(
            f"{row.letter:2}{row.name:18}{row.count(vocab_size):14,}  | {printed:>17}{row.ppl:7.2f}"
            f"{row.bleu:7.1f}  | {changes(row)}".rstrip()
        )
    return "\n".join(lines)
