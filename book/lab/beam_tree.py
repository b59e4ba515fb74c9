"""The hypotheses of a search as a tree, from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from annotated_transformer import Translator
from annotated_transformer.decoding.search import Hypothesis

Beginning = tuple[int, ...]


def places_of(sentences: Sequence[Beginning]) -> dict[Beginning, tuple[int, float]]:
    """Where each beginning is drawn, right and down; those with tokens in common are neighbours."""
    beginnings = [[tokens[:n] for n in range(len(tokens) + 1)] for tokens in sentences]
    first: dict[Beginning, int] = {}
    for rank, mine in enumerate(beginnings):
        for beginning in mine:
            first.setdefault(beginning, rank)
    rows: dict[Beginning, list[int]] = {}
    for row, mine in enumerate(sorted(beginnings, key=lambda mine: [first[one] for one in mine])):
        for beginning in mine:
            rows.setdefault(beginning, []).append(row)
    return {beginning: (len(beginning), sum(at) / len(at)) for beginning, at in rows.items()}


def plot_beam(
    hypotheses: Sequence[Hypothesis], translator: Translator, source: Tensor, ax: Any
) -> None:
    """Draw the tree: each token with its probability after those before it, at the end the score.

    `source` is the sentence's ids with its end mark, in a batch of one.
    """
    config, pieces = translator.model.config, translator.tokenizer.pieces

    @torch.no_grad()
    def label(beginning: Beginning) -> str:
        if not beginning:
            return "start"
        before = torch.tensor([[config.bos_id, *beginning[:-1]]], device=source.device)
        p = translator.model(source, before)[0, -1].softmax(dim=-1)[beginning[-1]]
        is_end = beginning[-1] == config.eos_id
        word = "end" if is_end else pieces([beginning[-1]])[0].strip("▁")
        return f"{word}\n{p:.2f}"

    scores = {(*one.tokens, config.eos_id): one.score for one in hypotheses}
    places = places_of(list(scores))
    box = {"boxstyle": "round", "facecolor": "#dcf0fb", "edgecolor": "#56b4e9"}
    for beginning, (x, y) in places.items():
        if beginning:
            ax.plot(*zip(places[beginning[:-1]], (x, y)), color="#999999", linewidth=1, zorder=0)
        ax.text(x, y, label(beginning), ha="center", va="center", fontsize=9, bbox=box)
        if beginning in scores:
            ax.text(x + 0.5, y, f"{scores[beginning]:.2f}", va="center", weight="bold")
    ax.set(xlim=(-0.4, max(x for x, _ in places.values()) + 1), ylim=(len(scores) - 0.5, -0.5))
    ax.axis("off")
