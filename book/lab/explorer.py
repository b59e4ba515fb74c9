"""An interactive view of every head's attention weights (the paper's appendix).

It is one piece of HTML with its own style and script, for a page or a notebook, where it may stand
several times. It loads nothing from another host; where scripts are off it is a table of one head.
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

from annotated_transformer.decoding.evaluation import evaluation_mode
from annotated_transformer.decoding.search import beam_search
from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.record import (
    ATTENTIONS,
    record_attention,
    require_tokens,
)

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer
    from annotated_transformer.model.transformer import Transformer


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """One kind of attention over one sentence: `weights[layer, head, query, key]` and the tokens.

    `queries` and `keys` are the tokens at those positions. `predicts` has the token that each query
    of a decoder is to predict, and is empty for an encoder.
    """

    name: str
    weights: Float[Tensor, "layers H L S"]
    queries: Sequence[str]
    keys: Sequence[str]
    predicts: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_tokens(self.weights, self.queries, self.keys)
        n_predicted = len(self.predicts)
        rule = f"there must be a predicted token for each of {len(self.queries)} queries"
        require(n_predicted in (0, len(self.queries)), f"{rule}, got {n_predicted}")


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
        is_same = all(m.weights.shape[:2] == (N, h) for m in self.maps)
        require(is_same, "every kind of attention must have the same layers and heads")
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
        """What the script reads: JSON in which no token can end the script element."""
        sides = ("queries", "keys", "predicts")
        maps = [{"name": m.name, **{s: list(getattr(m, s)) for s in sides}} for m in self.maps]
        first = {"layer": self.layer - 1, "head": self.head - 1, "query": self.query - 1}
        fields = {**first, "maps": maps}
        parts = {name: json.dumps(value, ensure_ascii=False) for name, value in fields.items()}
        parts["weights"] = _numbers([m.weights.tolist() for m in self.maps])
        text = ", ".join(f'"{name}": {value}' for name, value in parts.items())
        return f"{{{text}}}".replace("<", "\\u003c")

    def _table(self) -> str:
        """The first head as a table, a row for each query."""
        first = self.maps[0]
        caption = (
            f"{first.name}, layer {self.layer}, head {self.head}: a row for each query, "
            "a column for each key; each row adds up to 1."
        )
        header = "".join(f'<th scope="col">{escape(token)}</th>' for token in first.keys)
        weights = first.weights[self.layer - 1, self.head - 1].tolist()
        rows = [
            f'<tr><th scope="row">{escape(token)}</th>{"".join(map(_cell, row))}</tr>'
            for token, row in zip(first.queries, weights, strict=True)
        ]
        return (
            f'<table class="ax-matrix"><caption>{escape(caption)}</caption>'
            f"<thead><tr><td></td>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
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

    By default `target` is the model's own translation. `kinds` names the attentions in the order in
    which they are offered; the first is shown, at `layer`, `head` and `query`, each counted from 1.
    With "encoder" alone no target is needed, and none is made. The weights are those of one forward
    pass, in which each target position sees the true tokens before it. Raises ConfigError for an
    unknown kind and for an empty source.
    """
    is_known = bool(kinds) and set(kinds) <= set(ATTENTIONS)
    require(is_known, f"kinds must be some of {', '.join(ATTENTIONS)}, got {list(kinds)}")
    require(bool(source.strip()), "source must have a word in it")
    ids = model.config
    device = model.embedding.weight.device
    source_ids = [*tokenizer.encode(source), ids.eos_id]
    source_tensor = torch.tensor([source_ids], device=device)
    title = source
    output: list[int] = []
    with evaluation_mode(model), torch.inference_mode(), record_attention(model) as found:
        if set(kinds) == {"encoder"}:
            model.encode(source_tensor)
        else:
            if target is None:
                output = beam_search(model, source_tensor)[0][0].tokens
            else:
                output = tokenizer.sides[1].encode(target)
            title = f"{source} \u2192 {tokenizer.decode(output)}"
            model(source_tensor, torch.tensor([[ids.bos_id, *output]], device=device))
    read = tokenizer.pieces([ids.bos_id, *output])
    predicted = tokenizer.pieces([*output, ids.eos_id])
    sources = tokenizer.pieces(source_ids)
    tokens = {
        "encoder": (sources, sources),
        "decoder": (read, read, predicted),
        "cross": (read, sources, predicted),
    }
    maps = []
    for kind in kinds:
        title_of_kind, path = ATTENTIONS[kind]
        weights = torch.cat([found[path.format(i)] for i in range(ids.N)])
        maps.append(AttentionMaps(title_of_kind, weights, *tokens[kind]))
    return AttentionExplorer(title, maps, layer, head, query)


def _numbers(nested: list[Any] | float) -> str:
    # Always three decimals, zeros too, so that nbval finds as many digits as in the notebook.
    return f"[{','.join(map(_numbers, nested))}]" if isinstance(nested, list) else f"{nested:.3f}"


def _cell(weight: float) -> str:
    return f'<td style="--w:{weight:.2f}">{weight:.2f}</td>'
