"""What heads are for, in a model of the controlled corpus: what is lost without them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
from jaxtyping import Bool
from scipy.stats import binomtest
from torch import Tensor

from annotated_transformer.extras.attention_views.knock_out import Head, heads_of, knocked_out
from annotated_transformer.extras.attention_views.record import ATTENTIONS
from annotated_transformer.model.transformer import Transformer
from lab.experiments.figures_3_to_5.attention_shares import Prepared, Shares, answers, best_head
from lab.experiments.figures_3_to_5.controlled_corpus import antecedent_is_first
from lab.experiments.significance import estimate, ratio_of_sums

JUDGED = {
    "pronoun to antecedent, encoder": ("encoder", "pronoun"),
    "pronoun to antecedent, cross": ("cross", "pronoun"),
    "pronoun to antecedent, decoder": ("decoder", "pronoun"),
    "pronoun to pronoun, cross": ("cross", "pronoun"),
    "verb to particle, encoder": ("encoder", "verb"),
    "verb to particle, cross": ("cross", "verb"),
}
"""The attention of a link, and which word should suffer when its best head is away."""
TOGETHER = ("pronoun to antecedent, encoder", "pronoun to antecedent, decoder")
"""Whose best heads are taken away together, and joined by others one at a time."""


def mcnemar(before: Bool[Tensor, "n"], after: Bool[Tensor, "n"]) -> float:
    """The p of McNemar's exact test: two-sided, for right and wrong answers to n questions.

    The questions are the same before and after. Only those with two different answers count. If
    nothing has changed, each of them is as likely to go one way as the other, so that the smaller
    number of the two is binomial with one half (McNemar 1947, in its exact form).
    """
    lost, won = int((before & ~after).sum()), int((after & ~before).sum())
    return float(binomtest(lost, lost + won).pvalue) if lost + won else 1.0


def score(found: Tensor) -> float:
    """The share of right answers in `found`, whose rows are (right, asked)."""
    return ratio_of_sums(found.sum(0))


def ablation(
    model: Transformer, test: Prepared, chosen_on: dict[str, Shares], seed: int
) -> dict[str, Any]:
    """What is still right when each head in turn is away or even.

    And what is still right when the likeliest heads are away together.
    """
    whole = answers(model, test)
    found: dict[str, Any] = {"whole": {kind: score(each) for kind, each in whole.items()}}
    after: dict[tuple[str, int, int], dict[str, Tensor]] = {}
    heads = {attention: heads_of(model, attention) for attention in ATTENTIONS}
    for attention, layers in heads.items():
        for how in ("zero", "even"):
            rows: dict[str, list[list[float]]] = {kind: [[] for _ in layers] for kind in whole}
            for layer, i in itertools.product(range(model.config.N), range(model.config.h)):
                with knocked_out(layers[layer][i], even=how == "even"):
                    now = answers(model, test)
                after.setdefault((attention, layer, i), now)  # zero comes first
                for kind in whole:
                    rows[kind][layer].append(score(now[kind]))
            found[f"{attention}, {how}"] = rows
    for link, (attention, kind) in JUDGED.items():
        layer, i = best_head(chosen_on[link])
        now, asked = after[attention, layer, i], whole[kind][:, 1] > 0
        others = [
            score(each[kind])
            for place, each in after.items()
            if place[0] == attention and place != (attention, layer, i)
        ]
        found[f"best: {link}"] = {
            "head": [layer, i],
            "word": kind,
            "sentences": int(asked.sum()),
            "before": score(whole[kind]),
            "after": score(now[kind]),
            "p": mcnemar(whole[kind][asked, 0] > 0, now[kind][asked, 0] > 0),
            "other words after": score(now["other"]),
            "other heads, mean": sum(others) / len(others),
            "other heads, lowest": min(others),
        }
    places = [(heads[JUDGED[link][0]], best_head(chosen_on[link])) for link in TOGETHER]
    with knocked_out(*(layers[layer][i] for layers, (layer, i) in places)):
        now = answers(model, test)
    found["encoder's and decoder's best"] = {kind: score(each) for kind, each in now.items()}
    for link in TOGETHER:
        layers = heads[JUDGED[link][0]]
        found[f"more: {link}"] = _more_and_more(model, test, layers, chosen_on[link], seed)
    return found


def _more_and_more(
    model: Transformer, test: Prepared, layers: list[list[Head]], chosen: Shares, seed: int
) -> list[dict[str, int | float]]:
    """The 1, 2, 3 heads that look most at the antecedent away, beside as many others.

    The others are drawn from the same attention.
    """
    every = [head for layer in layers for head in layer]
    order = chosen.weight.sum(0).flatten().argsort(descending=True).tolist()
    generator = random.Random(seed)
    rows: list[dict[str, int | float]] = []
    for k in range(1, min(3, len(every) // 2) + 1):
        scores = []
        for gone in (order[:k], *(generator.sample(order[k:], k) for _ in range(4))):
            with knocked_out(*(every[i] for i in gone)):
                scores.append(score(answers(model, test)["pronoun"]))
        most, *others = scores
        row: dict[str, int | float] = {"heads": k, "after": most, "others, mean": sum(others) / 4}
        rows.append({**row, "others, lowest": min(others)})
    return rows


def by_place_of_antecedent(
    model: Transformer, test: Prepared, valid: Prepared, found: Shares, chosen_on: Shares
) -> dict[str, Any]:
    """The encoder's heads where the antecedent is the sentence's first thing, or its second.

    For each case: its best head (chosen on its validation sentences), what that gives to the right
    noun and to the other, and the pronouns right before and after it is removed, in this case and
    in the other one.
    """
    first, valid_first = (
        torch.tensor([antecedent_is_first(sentence) for sentence in some.sentences])
        for some in (test, valid)
    )
    with_pronoun = torch.tensor([bool(sentence.gender) for sentence in valid.sentences])
    before, table = answers(model, test)["pronoun"], {}
    for name, here, chosen in (
        ("first", first, valid_first),
        ("second", ~first, with_pronoun & ~valid_first),
    ):
        layer, i = best_head(Shares(*(each[chosen] for each in chosen_on)))
        with knocked_out(heads_of(model, "encoder")[layer][i]):
            after = answers(model, test)["pronoun"]
        n_rival = found.n_rival[here].sum()
        more = (found.beside_rival - found.rival)[here, layer, i]
        sums = torch.stack([more, found.n_rival[here]], 1)
        table[name] = {
            "best": [layer, i],
            "sentences": int(here.sum()),
            "weight": (found.weight[here].sum(0)[layer, i] / here.sum()).item(),
            "weight beside a rival": (found.beside_rival[here].sum(0)[layer, i] / n_rival).item(),
            "rival": (found.rival[here].sum(0)[layer, i] / n_rival).item(),
            "more than the rival": estimate(ratio_of_sums, [sums])._asdict(),
            "all heads": rounded(found.weight[here].sum(0) / here.sum()),
            "before": score(before[here]),
            "after": score(after[here]),
            "p": mcnemar(before[here, 0] > 0, after[here, 0] > 0),
            "other sentences before": score(before[~here]),
            "other sentences after": score(after[~here]),
        }
    return table


def rounded(x: Tensor, digits: int = 4) -> Any:
    """Nested lists with numbers as short as they need to be."""

    def short(values: Any) -> Any:
        if isinstance(values, list):
            return [short(value) for value in values]
        return round(values, digits)

    return short(x.tolist())
