"""The pairs of each epoch (section 5.1): from text in memory, or from shards."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import (
    MAX_ENCODED_TOKENS,
    Batch,
    EncodedCorpus,
    JoinedPairs,
    PairsInMemory,
    PairStore,
    TextPairs,
    encode_pairs,
    n_fitting,
)
from annotated_transformer.data.parallel_text import pairs_sha256
from annotated_transformer.errors import ConfigError, require, say
from annotated_transformer.training.processes import ALONE, Processes

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer


class AugmentedPairs(Protocol):
    """Text pairs that differ from epoch to epoch."""

    def epoch(self, seed: str) -> TextPairs:
        """The pairs of one epoch, the same for the same seed."""


Augment = Callable[[TextPairs], AugmentedPairs]
"""What makes them of a corpus, such as `extras.visitors.augmentation.Augmentation`."""


class TrainingPairs:
    """Text pairs or an encoded corpus as a run reads them; a call with an epoch returns its pairs.

    An encoded corpus and a list of the same text pairs give the same batches. With `augment` in the
    settings, `augmentation` changes the pairs in every epoch. Raises ConfigError where that is
    missing, for a corpus that is damaged or of another vocabulary, and for `bpe_dropout`, `augment`
    and `both_ways` with an encoded corpus, which holds no text. One process of each machine
    verifies it.
    """

    def __init__(
        self,
        config: TrainConfig,
        tokenizer: Tokenizer,
        pairs: TextPairs | EncodedCorpus,
        processes: Processes = ALONE,
        augmentation: Augment | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.is_to_say_left_out = processes.is_first
        self.encoded: PairStore = PairsInMemory([])
        self.encoded_back: PairStore = PairsInMemory([])
        if isinstance(pairs, EncodedCorpus):
            for name, off in (("bpe_dropout", 0), ("augment", False), ("both_ways", False)):
                rule = f"{name} needs the text, which shards do not hold: it must be {off}"
                is_off = not getattr(config, name)
                require(is_off, f"{rule} with shards, got {getattr(config, name)}")
            require(
                pairs.is_of(tokenizer),
                f"{pairs.directory} was encoded with another tokenizer than this run's",
            )
            processes.once_per_machine(pairs.verify)
            self.encoded = pairs
        else:
            back = [(y, x) for x, y in pairs] if config.both_ways else []
            self.forward = self._texts(config, pairs, augmentation)
            self.back = self._texts(config, back, augmentation)
        self.config = config
        if isinstance(pairs, EncodedCorpus):
            self.fingerprint = pairs.pairs_sha256
        else:
            self.fingerprint = pairs_sha256(pairs)

    @staticmethod
    def _texts(
        config: TrainConfig, pairs: TextPairs, augmentation: Augment | None
    ) -> Callable[[str], TextPairs]:
        """The text pairs of an epoch, by its seed."""
        if not (config.augment and pairs):
            return lambda seed: pairs
        if augmentation is None:
            raise ConfigError("augment=true needs the rules: give train(..., augmentation=...)")
        return augmentation(pairs).epoch

    def __call__(self, epoch: int) -> PairStore:
        config = self.config
        seed = config.seed * 100_003 + epoch  # more than the epochs of a run: no two seeds meet
        is_new = not len(self.encoded) or config.bpe_dropout or config.augment
        if not isinstance(self.pairs, EncodedCorpus) and is_new:
            self.encoded = self._encoded(self.forward, seed)
            self.encoded_back = self._encoded(self.back, seed)
        require(len(self.encoded) > 0, nothing_to_train_on(config))
        if self.is_to_say_left_out:
            self.is_to_say_left_out = False
            self._say_left_out()
        forward = self._with_joined(self.encoded, epoch)
        if not config.both_ways:
            return forward
        back = self._with_joined(self.encoded_back, epoch)
        there, again = (store.gather(np.arange(len(store))) for store in (forward, back))
        marker = self.tokenizer.back_id
        return PairsInMemory(there + [(array("i", [marker, *x]), y) for x, y in again])

    def _encoded(self, texts: Callable[[str], TextPairs], seed: int) -> PairsInMemory:
        pairs = texts(str(seed))
        longest = MAX_ENCODED_TOKENS + 1  # as shards hold them: the same pairs are joined
        dropout = self.config.bpe_dropout
        return PairsInMemory(encode_pairs(self.tokenizer, pairs, longest, dropout, seed))

    def _with_joined(self, store: PairStore, epoch: int) -> PairStore:
        share = self.config.concatenate
        return JoinedPairs(store, share, self.config.seed, epoch) if share else store

    def _say_left_out(self) -> None:
        if self.config.augment:  # it adds pairs as well
            return
        n = len(self.pairs)
        most = self.config.max_length
        n_left_out = n - n_fitting(self.encoded, most)
        if n_left_out:
            reason = f"a side has no token, or more than max_length {most}"
            say(f"{n_left_out:,} of {n:,} training pairs are left out: {reason}")


def nothing_to_train_on(config: TrainConfig) -> str:
    """The message for an epoch without a pair to train on."""
    return f"no training pair has 1 to {config.max_length} tokens, eos counted, on each side"


def lower_for_the_largest_of(batches: list[Batch], config: TrainConfig) -> str:
    """What a step had no memory for, and what to lower."""
    sizes = [(*batch.source.shape, batch.target_in.size(1)) for batch in batches]
    rows, source, target = max(sizes, key=lambda size: size[0] * (size[1] + size[2]))
    return (
        f"on a batch of {rows} sentences of up to {source} source and {target} target tokens: "
        f"lower max_tokens, now {config.max_tokens:,} (a higher accumulate keeps a step as large), "
        f"or max_length, now {config.max_length:,}"
    )
