"""Is attention at work? What heads do, and what is lost without them (the paper's appendix).

`inspect` reports it, layer by layer, for a trained model: a head that gives all its weight to one
position, whatever the sentence, has an entropy near 0 and rests on `</s>` or `<s>`; a layer that
nobody misses costs nothing when it is knocked out. `knocked_out` takes heads away from any model,
for the length of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from annotated_transformer.config import DecodeConfig
from annotated_transformer.errors import require
from annotated_transformer.looking.knock_out import ATTENTION_MODULES, Head, heads_of, knocked_out
from annotated_transformer.model.attention import MultiHeadAttention, causal_mask
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.text.batching import Batch, token_batches
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.translation.evaluation import bleu, mean_nll, scorable
from annotated_transformer.translation.translator import Translator


class HeadStatistics(NamedTuple):
    """Of each head of one layer, means over all real queries.

    `spread` is taken over all scores that a query may see.
    """

    entropy: Float[Tensor, "H"]
    """-sum_j a_j log2 a_j, in bits: 0 where one key has all the weight."""
    uniform: float
    """The entropy, in bits, of equal weights on the same keys: the most that there can be."""
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
    batch = batches[0]

    def note(name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x, memory, mask = (args + (kwargs.get("mask"),))[:3]
        source, target = (side != model.config.pad_id for side in (batch.source, batch.target_out))
        asks, answers = target if "decoder" in name else source, source
        if kwargs.get("causal"):
            answers, mask = target, causal_mask(x.size(1), x.device)
        queries, (keys, _) = module.split_heads(module.W_Q(x)), module.keys_and_values(memory)
        scale = queries.size(-1) ** -0.5 if module.scale is None else module.scale
        scores = queries @ keys.mT * scale
        seen = answers[:, None, None, :] if mask is None else mask & answers[:, None, None, :]
        sums[name] = sums.get(name, 0) + _sums(scores, seen & asks[:, None, :, None])

    hooks = [
        module.register_forward_pre_hook(partial(note, name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, MultiHeadAttention)
    ]
    was_training = model.training
    model.eval()
    try:
        for batch in batches:
            model(batch.source, batch.target_in)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    return {name: _statistics(found) for name, found in sums.items()}


def _sums(scores: Float[Tensor, "B H L S"], seen: Bool[Tensor, "B #H L S"]) -> Float[Tensor, "8 H"]:
    """Sums in float64 over queries (entropy, log2 keys, first, last, 1) and scores (s, s^2, 1)."""
    scores, asked = scores.double(), seen.any(dim=-1)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num() * asked[..., None]
    n_keys = seen.sum(dim=-1)
    last = (n_keys - 1).clamp_min(0)[..., None].expand(*weights.shape[:-1], 1)
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1) / torch.log(torch.tensor(2.0))
    per_query = [
        entropy,
        n_keys.clamp_min(1).double().log2() * asked,
        weights[..., 0],
        weights.gather(-1, last)[..., 0],
        asked.double(),
    ]
    kept = scores * seen
    per_score = [kept, kept**2, seen.double()]
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

    `whole` has the model's nll (nats a target token) and BLEU (greedy search, unless `beam_size`
    and the length penalty's `alpha` say otherwise). `layers` has a record for each layer of each
    attention: the lists that `HeadStatistics` describes, an entry a head, and `nats` and `bleu`,
    what is lost when the whole layer's attention is knocked out. `without` has the same for all
    layers of an attention at once.
    Raises ConfigError when there is nothing to score.
    """
    texts, encoded = scorable(model.config, tokenizer, pairs)
    require(bool(texts), "there is no pair to look at")
    config, device = model.config, model.embedding.weight.device

    def scored() -> dict[str, float]:
        found = {"nll": mean_nll(model, encoded)}
        if scores_bleu:
            translator = Translator(model, tokenizer, device)
            sources, targets = ([pair[side] for pair in texts] for side in (0, 1))
            translations = translator.translate(sources, beam_size=beam_size, alpha=alpha)
            found["bleu"] = bleu(translations, targets).score
        return found

    def lost(heads: Sequence[Head]) -> dict[str, float]:
        with knocked_out(*heads):
            now = scored()
        loss = {"nats": now["nll"] - whole["nll"]}
        return loss | ({"bleu": whole["bleu"] - now["bleu"]} if scores_bleu else {})

    longest = max(max(map(len, pair)) for pair in encoded) + 1
    in_batches = token_batches(
        encoded, max(max_tokens, longest), shuffle=False, ids=config.special_ids
    )
    batches = [batch.to(device) for batch in in_batches]
    found = head_statistics(model, batches)
    was_training = model.training
    model.eval()
    try:
        whole, layers, without = scored(), [], {}
        for attention, name in ATTENTION_MODULES.items():
            heads = heads_of(model, attention)
            for i, of_layer in enumerate(heads):
                numbers = {
                    field: value if isinstance(value, float) else value.tolist()
                    for field, value in found[name.format(i)]._asdict().items()
                }
                layers.append({"attention": attention, "layer": i + 1, **numbers, **lost(of_layer)})
            without[attention] = lost([head for of_layer in heads for head in of_layer])
    finally:
        model.train(was_training)
    return {
        "sentences": len(texts),
        "beam_size": beam_size,
        "alpha": alpha,
        "whole": whole,
        "layers": layers,
        "without": without,
    }


def as_table(report: dict[str, Any]) -> str:
    """The report of `inspect` for a terminal: a line for each layer, medians over its heads."""
    whole, has_bleu = report["whole"], "bleu" in report["whole"]

    def losses(row: dict[str, Any]) -> str:
        return f"{row['nats']:+10.3f}" + (f"{-row['bleu']:+9.2f}" if has_bleu else "")

    def median(values: list[float]) -> float:
        return torch.tensor(values).median().item()

    first = f"{report['sentences']} sentences: {whole['nll']:.4f} nats a token"
    head = f"{'':15}{'entropy':>9}{'of at most':>12}{'on first':>10}{'on last':>9}{'spread':>8}"
    head += "   without: nats"
    if has_bleu:
        alpha = report.get("alpha", DecodeConfig.alpha)  # older reports know no other
        first += f", BLEU {whole['bleu']:.2f} (beam {report['beam_size']}, alpha {alpha})"
        head += "     BLEU"
    lines = [first, "", head]
    for row in report["layers"]:
        lines.append(
            f"{row['attention']:>8} layer {row['layer']}{median(row['entropy']):9.2f}"
            f"{row['uniform']:7.2f} bits{median(row['on_first']):10.2f}"
            f"{median(row['on_last']):9.2f}{median(row['spread']):8.2f}      {losses(row)}"
        )
    lines += [f"{name:>8} all{'':52}      {losses(row)}" for name, row in report["without"].items()]
    return "\n".join(lines)
