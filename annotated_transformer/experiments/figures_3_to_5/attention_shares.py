"""What heads look at, measured on sentences that tell where they should look; and what is right in a translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from annotated_transformer.config import require
from annotated_transformer.experiments.figures_3_to_5.controlled_corpus import Sentence
from annotated_transformer.looking.inspection import ATTENTION_MODULES
from annotated_transformer.looking.visualization import record_attention
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.text.batching import Batch, TokenPair, make_batch
from annotated_transformer.text.tokenizer import Tokenizer

BATCH = 200
FAR = 3
"""Words from a verb to its particle, at least, for the dependency to be a distant one."""


class Link(NamedTuple):
    """A question to each head: how much of this row's weight lies on these keys, and how much on the rival's?

    `visible` is the number of keys that the row may look at.
    """

    attention: str
    row: int
    keys: list[int]
    visible: int
    rival: Sequence[int] = ()


def links(sentence: Sentence) -> dict[str, list[Link]]:
    """What a head could follow in this sentence. A decoder row j predicts German word j; its key j + 1 holds word j."""
    english, german = (
        {word.role: i for i, word in enumerate(side) if word.role}
        for side in (sentence.english, sentence.german)
    )
    n = len(sentence.english) + 1  # with eos
    found: dict[str, list[Link]] = {}
    if sentence.gender:
        it, er, noun = english["pronoun"], german["pronoun"], english["antecedent"]
        rival = [english["distractor"]] if "distractor" in english else []
        decoded = {
            role: [german[part] + 1 for part in (role, f"{role} article") if part in german]
            for role in ("antecedent", "distractor")
        }
        found["pronoun to antecedent, encoder"] = [Link("encoder", it, [noun], n, rival)]
        found["pronoun to antecedent, cross"] = [Link("cross", er, [noun], n, rival)]
        found["pronoun to pronoun, cross"] = [Link("cross", er, [it], n)]
        found["pronoun to antecedent, decoder"] = [
            Link("decoder", er, decoded["antecedent"], er + 1, decoded["distractor"])
        ]
    if "particle" in english and english["particle"] - english["verb"] >= FAR:
        verb, particle = english["verb"], english["particle"]
        found["verb to particle, encoder"] = [Link("encoder", verb, [particle], n)]
        found["particle to verb, encoder"] = [Link("encoder", particle, [verb], n)]
        found["verb to particle, cross"] = [Link("cross", german["verb"], [particle], n)]
        found["particle to verb, decoder"] = [
            Link("decoder", german["particle"], [german["verb"] + 1], german["particle"] + 1)
        ]
    if any(word.text in ("weil", "obwohl", "als", "dass") for word in sentence.german):
        found["last verb to verb, cross"] = [
            Link("cross", german["second verb"], [english["second verb"]], n)
        ]
    return found | _structure(sentence)


def _structure(sentence: Sentence) -> dict[str, list[Link]]:
    """Articles, adjectives and nouns that belong together; the nouns of both sides stand in the same order."""
    found: dict[str, list[Link]] = {}
    n = len(sentence.english)
    found["previous word, encoder"] = [Link("encoder", i, [i - 1], n + 1) for i in range(1, n)]
    found["next word, encoder"] = [Link("encoder", i, [i + 1], n + 1) for i in range(n)]
    nouns = [
        [i for i, word in enumerate(side) if word.tag == "NOUN"]
        for side in (sentence.english, sentence.german)
    ]
    for noun, other in zip(*nouns, strict=True):
        far = sentence.english[noun - 1].tag == "ADJ"
        if sentence.english[noun - 1 - far].tag == "DET":
            name = "article to noun two on, encoder" if far else "article to next noun, encoder"
            found.setdefault(name, []).append(Link("encoder", noun - 1 - far, [noun], n + 1))
            found.setdefault("article to noun, cross", []).append(
                Link("cross", other - 1 - far, [noun], n + 1)
            )
    return {name: some for name, some in found.items() if some}


def encode(tokenizer: Tokenizer, texts: tuple[str, str]) -> TokenPair:
    """Ids of both sides, one for each word. Raises ConfigError when a word is more than one token."""
    found = tokenizer.encode_batch(texts)
    for ids, text in zip(found, texts, strict=True):
        require(
            len(ids) == len(text.split()),
            f"each word must be one token, got {len(ids)} for {text!r}",
        )
    return found[0], found[1]


class Prepared(NamedTuple):
    """Sentences as batches, in order, and for each batch and kind of word where in `target_out` such a word stands."""

    sentences: Sequence[Sentence]
    batches: list[Batch]
    asked: dict[str, list[Tensor]]


def prepare(tokenizer: Tokenizer, chosen: Sequence[Sentence]) -> Prepared:
    """The kinds: pronoun (er, sie, es, ihn, sein, ihr); verb, the German verb of put, took and picked, which the
    particle decides; other, all other words and the end."""
    prepared = Prepared(chosen, [], {"pronoun": [], "verb": [], "other": []})
    for start in range(0, len(chosen), BATCH):
        some = chosen[start : start + BATCH]
        batch = make_batch([encode(tokenizer, sentence.texts) for sentence in some])
        prepared.batches.append(batch)
        kinds = {
            kind: torch.zeros(batch.target_out.shape, dtype=torch.bool) for kind in prepared.asked
        }
        for row, sentence in enumerate(some):
            decided = any(
                word.role == "verb" and word.text in ("put", "took", "picked")
                for word in sentence.english
            )
            for i, word in enumerate([*sentence.german, None]):
                role = word.role if word else ""
                kinds[role if role == "pronoun" or (role == "verb" and decided) else "other"][
                    row, i
                ] = True
        for kind, each in kinds.items():
            prepared.asked[kind].append(each)
    return prepared


class Shares(NamedTuple):
    """Sums over each sentence's links: how many, their even share, how many with a rival; then for each head (n, N, h)
    the weight on the keys, on the rival's, and on the keys of the links that have one."""

    n_links: Tensor
    even: Tensor
    n_rival: Tensor
    weight: Tensor
    rival: Tensor
    beside_rival: Tensor


@torch.inference_mode()
def shares(model: Transformer, chosen: Prepared) -> dict[str, Shares]:
    """What each head gives to each kind of link, summed over the links of a sentence."""
    n, N, h = len(chosen.sentences), model.config.N, model.config.h
    found: dict[str, Shares] = {}
    for number, batch in enumerate(chosen.batches):
        with record_attention(model) as weights:
            model(batch.source, batch.target_in)
        maps = {
            kind: torch.stack([weights[name.format(i)] for i in range(N)], 1)
            for kind, name in ATTENTION_MODULES.items()
        }
        by_name: dict[str, list[tuple[int, Link]]] = {}
        for row, sentence in enumerate(chosen.sentences[number * BATCH : (number + 1) * BATCH]):
            for name, each in links(sentence).items():
                by_name.setdefault(name, []).extend((row, link) for link in each)
        for name, rows in by_name.items():
            some = [link for _, link in rows]
            where = torch.tensor([row for row, _ in rows])
            A = maps[some[0].attention][
                where, :, :, torch.tensor([link.row for link in some])
            ].double()
            visible = torch.tensor([link.visible for link in some])
            keys, rival = (
                torch.zeros(len(some), A.size(-1), dtype=torch.float64) for _ in range(2)
            )
            for i, link in enumerate(some):
                keys[i, link.keys], rival[i, link.rival] = 1.0, 1.0
            has_rival = rival.any(-1).double()
            if name not in found:
                found[name] = Shares(
                    *(torch.zeros(n, dtype=torch.float64) for _ in range(3)),
                    *(torch.zeros(n, N, h, dtype=torch.float64) for _ in range(3)),
                )
            sums = (
                torch.ones(len(some), dtype=torch.float64),
                keys.sum(-1) / visible,
                has_rival,
                torch.einsum("nlhs,ns->nlh", A, keys),
                torch.einsum("nlhs,ns->nlh", A, rival),
                torch.einsum("nlhs,ns,n->nlh", A, keys, has_rival),
            )
            for total, values in zip(found[name], sums, strict=True):
                total.index_add_(0, number * BATCH + where, values)
    return found


def best_head(chosen: Shares) -> tuple[int, int]:
    """(layer, head), from 0, with the largest mean weight on the keys."""
    return divmod(int(chosen.weight.sum(0).argmax()), chosen.weight.size(2))


@torch.inference_mode()
def answers(model: Transformer, chosen: Prepared) -> dict[str, Tensor]:
    """(n, 2) for each kind of word: right and asked, the right German words before it given ("forced decoding")."""
    right = [
        model(batch.source, batch.target_in).argmax(-1) == batch.target_out
        for batch in chosen.batches
    ]
    return {
        kind: torch.cat(
            [
                torch.stack([(one & where).sum(1), where.sum(1)], 1)
                for one, where in zip(right, each)
            ]
        ).double()
        for kind, each in chosen.asked.items()
    }
