"""An interactive view of every head's attention weights (the paper's appendix).

It is made for a page or a notebook: one piece of HTML with its own style and script: it asks no
other host for anything, may stand on a page several times, and without its script it is a table of
one head.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from annotated_transformer.errors import require
from annotated_transformer.looking.record import record_attention
from annotated_transformer.translation.search import beam_search

if TYPE_CHECKING:
    from annotated_transformer.model.transformer import Transformer
    from annotated_transformer.text.tokenizer import Tokenizer

KINDS = {
    "encoder": ("Encoder self-attention", "encoder.layers.{}.self_attention"),
    "decoder": ("Decoder self-attention", "decoder.layers.{}.self_attention"),
    "cross": ("Encoder-decoder attention", "decoder.layers.{}.cross_attention"),
}
"""The model's three attentions (section 3.2.3): what the reader calls them, and their modules.

`record_attention` has the weights under the names of the modules.
"""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """One kind of attention over one sentence: `weights[layer, head, query, key]` and the tokens.

    `queries` and `keys` have what the positions hold. `predicts` has the token that a decoder's
    query is to predict, one for each query; it may be empty.
    """

    name: str
    weights: Float[Tensor, "N H L S"]
    queries: Sequence[str]
    keys: Sequence[str]
    predicts: Sequence[str] = ()

    def __post_init__(self) -> None:
        n_queries, n_keys = self.weights.shape[-2:]
        require(
            (len(self.queries), len(self.keys)) == (n_queries, n_keys),
            f"the weights are {n_queries} queries by {n_keys} keys, "
            f"got {len(self.queries)} query tokens and {len(self.keys)} key tokens",
        )
        require(
            len(self.predicts) in (0, n_queries),
            f"there must be a predicted token for each of {n_queries} queries, "
            f"got {len(self.predicts)}",
        )


@dataclass(frozen=True, repr=False, eq=False)
class AttentionExplorer:
    """A picture of `maps` in which the reader chooses attention, layer, head and query.

    Jupyter shows it as HTML. The first of `maps` is shown first, at `layer`, `head` and `query`,
    each counted from 1 as the paper counts layers.
    """

    title: str
    maps: Sequence[AttentionMaps]
    layer: int = 1
    head: int = 1
    query: int = 1

    def __post_init__(self) -> None:
        require(bool(self.maps), "there is no attention to show")
        N, h, n_queries = self.maps[0].weights.shape[:3]
        alike = all(tuple(m.weights.shape[:2]) == (N, h) for m in self.maps)
        require(alike, "every kind of attention must have the same layers and heads")
        require(1 <= self.layer <= N, f"layer must be 1 to {N}, got {self.layer}")
        require(1 <= self.head <= h, f"head must be 1 to {h}, got {self.head}")
        require(1 <= self.query <= n_queries, f"query must be 1 to {n_queries}, got {self.query}")

    def __repr__(self) -> str:
        return f"AttentionExplorer({self.title!r}: {', '.join(m.name.lower() for m in self.maps)})"

    def _repr_html_(self) -> str:
        """The widget, the same whenever it is made; weights have three decimals."""
        folder = resources.files("annotated_transformer.looking")
        template = folder.joinpath("explorer.html").read_text(encoding="utf-8")
        parts = {"title": escape(self.title), "table": self._table(), "data": self._data()}
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)

    def _data(self) -> str:
        """What the script reads: JSON in which no text can end the script element."""
        sides = ("queries", "keys", "predicts")
        maps = [{"name": m.name, **{s: list(getattr(m, s)) for s in sides}} for m in self.maps]
        first = {"layer": self.layer - 1, "head": self.head - 1, "query": self.query - 1}
        text = json.dumps({**first, "maps": maps}, ensure_ascii=False)
        weights = ",".join(_numbers(m.weights.tolist()) for m in self.maps)
        return f'{text[:-1]}, "weights": [{weights}]}}'.replace("<", "\\u003c")

    def _table(self) -> str:
        """The first head as a table, a row for each query."""
        first = self.maps[0]
        caption = (
            f"{first.name}, layer {self.layer}, head {self.head}: a row for each query, "
            "a column for each key; each row adds up to 1."
        )
        head = "".join(f'<th scope="col">{escape(token)}</th>' for token in first.keys)
        weights = first.weights[self.layer - 1, self.head - 1].tolist()
        rows = [
            f'<tr><th scope="row">{escape(token)}</th>{"".join(map(_cell, row))}</tr>'
            for token, row in zip(first.queries, weights, strict=True)
        ]
        return (
            f'<table class="ax-matrix"><caption>{escape(caption)}</caption>'
            f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )


def explore_attention(
    model: Transformer,
    tokenizer: Tokenizer,
    source: str,
    target: str | None = None,
    kinds: Sequence[str] = ("encoder", "decoder", "cross"),
    layer: int = 1,
    head: int = 1,
    query: int = 1,
) -> AttentionExplorer:
    """Every head's weights while `model` reads `source` and is told `target`.

    By default `target` is its own translation. `kinds` names the attentions and their order; the
    first is shown first, at `layer`, `head` and `query`, each counted from 1. With "encoder" alone
    no target is needed, and none is made. The weights are those of one forward pass, in which each
    target position sees the true tokens before it. Raises ConfigError for an unknown kind and for
    an empty source.
    """
    known = bool(kinds) and set(kinds) <= set(KINDS)
    require(known, f"kinds must be some of {', '.join(KINDS)}, got {list(kinds)}")
    require(bool(source.strip()), "source must have a word in it")
    ids, device = model.config, model.embedding.weight.device
    source_ids = [*tokenizer.encode(source), ids.eos_id]
    source_tensor = torch.tensor([source_ids], device=device)
    title, output, was_training = source, [], model.training
    model.eval()
    try:
        with torch.inference_mode(), record_attention(model) as found:
            if set(kinds) == {"encoder"}:
                model.encode(source_tensor)
            else:
                if target is None:
                    output = beam_search(model, source_tensor)[0][0].tokens
                else:
                    output = tokenizer.encode(target)
                title = f"{source} \u2192 {tokenizer.decode(output)}"
                model(source_tensor, torch.tensor([[ids.bos_id, *output]], device=device))
    finally:
        model.train(was_training)
    read = tokenizer.pieces([ids.bos_id, *output])
    predicted = tokenizer.pieces([*output, ids.eos_id])
    sources = tokenizer.pieces(source_ids)
    tokens = {
        "encoder": (sources, sources),
        "decoder": (read, read, predicted),
        "cross": (read, sources, predicted),
    }
    maps = []
    for name, module, positions in ((*KINDS[kind], tokens[kind]) for kind in kinds):
        weights = torch.cat([found[module.format(i)] for i in range(ids.N)])
        maps.append(AttentionMaps(name, weights, *positions))
    return AttentionExplorer(title, maps, layer, head, query)


def _numbers(nested: list[Any] | float) -> str:
    """JSON of nested lists with three decimals, zeros written too: nbval compares them closely."""
    return f"[{','.join(map(_numbers, nested))}]" if isinstance(nested, list) else f"{nested:.3f}"


def _cell(weight: float) -> str:
    return f'<td style="--w:{weight:.2f}">{weight:.2f}</td>'
