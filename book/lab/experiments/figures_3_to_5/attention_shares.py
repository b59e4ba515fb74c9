"""What heads look at, where they should look, and what is right in a translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from annotated_transformer.data.batching import Batch, TokenPair, make_batch
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.errors import require
from annotated_transformer.extras.attention_views.record import ATTENTIONS, record_attention
from annotated_transformer.model.transformer import Transformer
from lab.experiments.figures_3_to_5.controlled_grammar import Sentence

BATCH = 200
FAR = 3
"""Words from a verb to its particle, at least, for the dependency to be a distant one."""


class Link(NamedTuple):
    """A question to each head: the share of this row's weight on these keys, and on the rival's.

    `visible` is the number of keys that the row may look at.
    """

    attention: str
    row: int
    keys: list[int]
    visible: int
    rival: Sequence[int] = ()


def links(sentence: Sentence) -> dict[str, list[Link]]:
    """What a head could follow in this sentence.

    A decoder row j predicts German word j; its key j + 1 holds word j.
    """
    english, german = (
        {word.role: i for i, word in enumerate(side) if word.role}
        for side in (sentence.english, sentence.german)
    )
    n = len(sentence.english) + 1  # with eos
    found: dict[str, list[Link]] = {}
    if sentence.gender:
        it, er, noun = english["pronoun"], german["pronoun"], english["antecedent"]
        rival = [english["distractor"]] if "distractor" in english else []
        decoded, decoded_rival = (
            [german[part] + 1 for part in (role, f"{role} article") if part in german]
            for role in ("antecedent", "distractor")
        )
        found["pronoun to antecedent, encoder"] = [Link("encoder", it, [noun], n, rival)]
        found["pronoun to antecedent, cross"] = [Link("cross", er, [noun], n, rival)]
        found["pronoun to pronoun, cross"] = [Link("cross", er, [it], n)]
        in_decoder = Link("decoder", er, decoded, er + 1, decoded_rival)
        found["pronoun to antecedent, decoder"] = [in_decoder]
    if "particle" in english and english["particle"] - english["verb"] >= FAR:
        verb, particle = english["verb"], english["particle"]
        found["verb to particle, encoder"] = [Link("encoder", verb, [particle], n)]
        found["particle to verb, encoder"] = [Link("encoder", particle, [verb], n)]
        found["verb to particle, cross"] = [Link("cross", german["verb"], [particle], n)]
        row, key = german["particle"], german["verb"] + 1
        found["particle to verb, decoder"] = [Link("decoder", row, [key], row + 1)]
    if any(word.text in ("weil", "obwohl", "als", "dass") for word in sentence.german):
        row, key = german["second verb"], english["second verb"]
        found["last verb to verb, cross"] = [Link("cross", row, [key], n)]
    return found | _structure(sentence)


def _structure(sentence: Sentence) -> dict[str, list[Link]]:
    """Articles, adjectives and nouns that belong together.

    The nouns of both sides stand in the same order.
    """
    found: dict[str, list[Link]] = {}
    n = len(sentence.english)
    found["previous word, encoder"] = [Link("encoder", i, [i - 1], n + 1) for i in range(1, n)]
    found["next word, encoder"] = [Link("encoder", i, [i + 1], n + 1) for i in range(n)]
    sides = sentence.english, sentence.german
    nouns = ([i for i, word in enumerate(side) if word.tag == "NOUN"] for side in sides)
    for noun, other in zip(*nouns, strict=True):
        far = sentence.english[noun - 1].tag == "ADJ"
        if sentence.english[noun - 1 - far].tag == "DET":
            name = "article to noun two on, encoder" if far else "article to next noun, encoder"
            in_encoder = Link("encoder", noun - 1 - far, [noun], n + 1)
            across = Link("cross", other - 1 - far, [noun], n + 1)
            found.setdefault(name, []).append(in_encoder)
            found.setdefault("article to noun, cross", []).append(across)
    return {name: some for name, some in found.items() if some}


def encode(tokenizer: Tokenizer, texts: tuple[str, str]) -> TokenPair:
    """Ids of both sides, one for each word.

    Raises ConfigError when a word is more than one token.
    """
    found = tokenizer.encode_batch(texts)
    for ids, text in zip(found, texts, strict=True):
        one_each = len(ids) == len(text.split())
        require(one_each, f"each word must be one token, got {len(ids)} for {text!r}")
    return found[0], found[1]


class Prepared(NamedTuple):
    """Sentences as batches, in order, and where in each `target_out` a word of each kind stands."""

    sentences: Sequence[Sentence]
    batches: list[Batch]
    asked: dict[str, list[Tensor]]


def prepare(tokenizer: Tokenizer, chosen: Sequence[Sentence]) -> Prepared:
    """These sentences in batches, with the places of each kind of word.

    The kinds: pronoun (er, sie, es, ihn, sein, ihr); verb, the German verb of put, took and picked,
    which the particle decides; other, all other words and the end.
    """
    prepared = Prepared(chosen, [], {"pronoun": [], "verb": [], "other": []})
    for start in range(0, len(chosen), BATCH):
        some = chosen[start : start + BATCH]
        batch = make_batch([encode(tokenizer, sentence.texts) for sentence in some])
        prepared.batches.append(batch)
        nowhere = torch.zeros(batch.target_out.shape, dtype=torch.bool)
        kinds = {kind: nowhere.clone() for kind in prepared.asked}
        for row, sentence in enumerate(some):
            verbs = [word.text for word in sentence.english if word.role == "verb"]
            decided = any(verb in ("put", "took", "picked") for verb in verbs)
            for i, word in enumerate([*sentence.german, None]):
                role = word.role if word else ""
                kind = role if role == "pronoun" or (role == "verb" and decided) else "other"
                kinds[kind][row, i] = True
        for kind, each in kinds.items():
            prepared.asked[kind].append(each)
    return prepared


class Shares(NamedTuple):
    """Sums over each sentence's links: how many, their even share, how many with a rival.

    Then for each head (n, N, h) the weight on the keys, on the rival's, and on the keys of the
    links that have one.
    """

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
            for kind, (_, name) in ATTENTIONS.items()
        }
        by_name: dict[str, list[tuple[int, Link]]] = {}
        for row, sentence in enumerate(chosen.sentences[number * BATCH : (number + 1) * BATCH]):
            for name, each in links(sentence).items():
                by_name.setdefault(name, []).extend((row, link) for link in each)
        for name, rows in by_name.items():
            some = [link for _, link in rows]
            where = torch.tensor([row for row, _ in rows])
            at = torch.tensor([link.row for link in some])
            A = maps[some[0].attention][where, :, :, at].double()
            visible = torch.tensor([link.visible for link in some])
            keys, rival = torch.zeros(2, len(some), A.size(-1), dtype=torch.float64)
            for i, link in enumerate(some):
                keys[i, link.keys], rival[i, link.rival] = 1.0, 1.0
            has_rival = rival.any(-1).double()
            if name not in found:
                numbers = torch.zeros(3, n, dtype=torch.float64)
                found[name] = Shares(*numbers, *torch.zeros(3, n, N, h, dtype=torch.float64))
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
    """(n, 2) for each kind of word: right and asked, with the right German words before it given.

    This is "forced decoding".
    """
    found: dict[str, list[Tensor]] = {kind: [] for kind in chosen.asked}
    for number, batch in enumerate(chosen.batches):
        right = model(batch.source, batch.target_in).argmax(-1) == batch.target_out
        for kind, asked in chosen.asked.items():
            where = asked[number]
            found[kind].append(torch.stack([(right & where).sum(1), where.sum(1)], 1))
    return {kind: torch.cat(rows).double() for kind, rows in found.items()}
