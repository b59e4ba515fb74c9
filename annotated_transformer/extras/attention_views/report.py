"""Is attention at work? What heads do, and what is lost without them (the paper's appendix).

`attention_report` answers layer by layer for a trained model. A head that gives all its weight to
one position, whatever the sentence, has an entropy near 0, and that position is mostly `</s>` or
`<s>`. Without a layer that the model does not need, nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annotated_transformer.config import DecodeConfig
from annotated_transformer.data.batching import Batch, token_batches
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import bleu, evaluation_mode, mean_nll, scorable
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.knock_out import Head, heads_of, knocked_out
from annotated_transformer.extras.attention_views.record import ATTENTIONS, attention_calls
from annotated_transformer.model.attention import MultiHeadAttention
from annotated_transformer.model.transformer import Transformer


class HeadStatistics(NamedTuple):
    """Of each head of one layer, means over all real queries (`spread`: over all their scores)."""

    entropy: Float[Tensor, "H"]
    """-sum_j a_j log2 a_j, in bits: 0 where one key has all the weight."""
    uniform: float
    """The entropy, in bits, of equal weights on the same keys: its upper bound."""
    on_first: Float[Tensor, "H"]
    """The weight on the first key: `<s>` for the decoder's self-attention, a word elsewhere."""
    on_last: Float[Tensor, "H"]
    """The weight on the last real key: `</s>` of a source, the query itself under a causal mask."""
    spread: Float[Tensor, "H"]
    """The standard deviation of the scores q k / sqrt(d_k), before the softmax."""


@torch.inference_mode()
def head_statistics(model: Transformer, batches: Sequence[Batch]) -> dict[str, HeadStatistics]:
    """`HeadStatistics` by the name of the attention module, over padded batches.

    The model is left as it was.
    """
    sums: dict[str, Tensor] = {}

    def add(
        batch: Batch, name: str, module: MultiHeadAttention, x: Tensor, memory: Tensor, mask: Tensor
    ) -> None:
        keys, _ = module.keys_and_values(memory)
        queries = module.queries_of(module.W_Q(x))
        scale = queries.size(-1) ** -0.5 if module.scale is None else module.scale
        asking = batch.target_out if name.startswith("decoder") else batch.source
        is_real = (asking != model.config.pad_id)[:, None, :, None]
        found = _sums(queries @ keys.mT * scale, mask & is_real)
        sums[name] = sums.get(name, 0) + found

    with evaluation_mode(model):
        for batch in batches:
            with attention_calls(model, partial(add, batch)):
                model(batch.source, batch.target_in)
    return {name: _statistics(found) for name, found in sums.items()}


def _sums(scores: Float[Tensor, "B H L S"], seen: Bool[Tensor, "B #H L S"]) -> Float[Tensor, "8 H"]:
    """Sums in float64 over queries (entropy, log2 keys, first, last, 1) and scores (s, s^2, 1)."""
    scores = scores.double()
    asked = seen.any(dim=-1)
    # A query of padding sees no key: its row is NaN, and counts as zeros.
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num()
    n_keys = seen.sum(dim=-1)
    last = (n_keys - 1).clamp_min(0)[..., None].expand(*weights.shape[:-1], 1)
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1) / torch.log(torch.tensor(2.0))
    per_query = [
        entropy,
        n_keys.clamp_min(1).double().log2(),
        weights[..., 0],
        weights.gather(-1, last)[..., 0],
        asked.double(),
    ]
    visible = scores * seen
    per_score = [visible, visible**2, seen.double()]
    h = scores.size(1)
    over_queries = [each.expand(-1, h, -1).sum(dim=(0, 2)) for each in per_query]
    over_scores = [each.expand(-1, h, -1, -1).sum(dim=(0, 2, 3)) for each in per_score]
    return torch.stack([*over_queries, *over_scores])


def _statistics(sums: Float[Tensor, "8 H"]) -> HeadStatistics:
    entropy, uniform, first, last, n_queries, s, squares, n_scores = sums
    variance = squares / n_scores - (s / n_scores) ** 2
    return HeadStatistics(
        entropy / n_queries,
        (uniform / n_queries)[0].item(),
        first / n_queries,
        last / n_queries,
        variance.clamp_min(0).sqrt(),
    )


def attention_report(
    model: Transformer,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    *,
    beam_size: int = 1,
    alpha: float = DecodeConfig.alpha,
    scores_bleu: bool = True,
    max_tokens: int = 4096,
) -> dict[str, Any]:
    """Is attention at work? A report on held-out text pairs, as plain numbers.

    `whole` has the model's nll (nats per target token) and its BLEU, of greedy search unless
    `beam_size` and the length penalty's `alpha` say otherwise. `layers` has a record for each layer
    of each attention: the fields of `HeadStatistics`, as lists with an entry per head, and `nats`
    and `bleu`, what is lost when all heads of the layer are knocked out. `without` has these losses
    for all layers of an attention at once. Raises ConfigError when there is nothing to score.
    """
    texts, encoded = scorable(model.config, tokenizer, pairs)
    require(bool(texts), "there is no pair to look at")
    device = model.embedding.weight.device
    sources, targets = ([pair[side] for pair in texts] for side in (0, 1))

    def score() -> dict[str, float]:
        found = {"nll": mean_nll(model, encoded)}
        if scores_bleu:
            translator = Translator(model, tokenizer, device)
            translations = translator.translate(sources, beam_size=beam_size, alpha=alpha)
            found["bleu"] = bleu(translations, targets).score
        return found

    def loss_without(heads: Sequence[Head]) -> dict[str, float]:
        with knocked_out(*heads):
            now = score()
        loss = {"nats": now["nll"] - whole["nll"]}
        return loss | ({"bleu": whole["bleu"] - now["bleu"]} if scores_bleu else {})

    longest = max(max(map(len, pair)) for pair in encoded) + 1
    in_batches = token_batches(
        encoded, max(max_tokens, longest), shuffle=False, ids=model.config.special_ids
    )
    statistics = head_statistics(model, [batch.to(device) for batch in in_batches])
    layers: list[dict[str, Any]] = []
    without = {}
    with evaluation_mode(model):
        whole = score()
        for attention, (_, path) in ATTENTIONS.items():
            heads = heads_of(model, attention)
            for i, of_layer in enumerate(heads):
                numbers = {
                    field: value if isinstance(value, float) else value.tolist()
                    for field, value in statistics[path.format(i)]._asdict().items()
                }
                place = {"attention": attention, "layer": i + 1}
                layers.append({**place, **numbers, **loss_without(of_layer)})
            without[attention] = loss_without([head for of_layer in heads for head in of_layer])
    return {
        "sentences": len(texts),
        "beam_size": beam_size,
        "alpha": alpha,
        "whole": whole,
        "layers": layers,
        "without": without,
    }


def as_table(report: dict[str, Any]) -> str:
    """An `attention_report` for a terminal: a line for each layer, medians over its heads."""
    whole = report["whole"]
    has_bleu = "bleu" in whole

    def losses(row: dict[str, Any]) -> str:
        return f"{row['nats']:+10.3f}" + (f"{-row['bleu']:+9.2f}" if has_bleu else "")

    def median(values: list[float]) -> float:
        return torch.tensor(values).median().item()

    first = f"{report['sentences']} sentences: {whole['nll']:.4f} nats a token"
    header = f"{'':15}{'entropy':>9}{'of at most':>12}{'on first':>10}{'on last':>9}{'spread':>8}"
    header += "   without: nats"
    if has_bleu:
        # The reports in the book's results that are older than the option have no alpha.
        alpha = report.get("alpha", DecodeConfig.alpha)
        first += f", BLEU {whole['bleu']:.2f} (beam {report['beam_size']}, alpha {alpha})"
        header += "     BLEU"
    lines = [first, "", header]
    for row in report["layers"]:
        lines.append(
            f"{row['attention']:>8} layer {row['layer']}{median(row['entropy']):9.2f}"
            f"{row['uniform']:7.2f} bits{median(row['on_first']):10.2f}"
            f"{median(row['on_last']):9.2f}{median(row['spread']):8.2f}      {losses(row)}"
        )
    lines += [f"{name:>8} all{'':52}      {losses(row)}" for name, row in report["without"].items()]
    return "\n".join(lines)
