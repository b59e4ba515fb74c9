"""The pairs of each epoch (section 5.1): from text in memory, or from shards."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from annotated_transformer.config import TrainConfig
from annotated_transformer.data.batching import (
    JoinedPairs,
    PairsInMemory,
    PairStore,
    TextPairs,
    encode_pairs,
    n_fitting,
)
from annotated_transformer.data.parallel_text import pairs_sha256
from annotated_transformer.errors import require, say
from annotated_transformer.extras.shards.reading import MAX_SENTENCE_TOKENS, Shards
from annotated_transformer.extras.visitors.augmentation import Augmentation
from annotated_transformer.training.processes import ALONE, Processes

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer


class TrainingPairs:
    """Text pairs or shards as a run reads them; a call with an epoch returns its pairs.

    Shards and a list of the same text pairs give the same batches. Raises ConfigError for
    damaged shards, for those of another vocabulary, and for `bpe_dropout`, `augment` and
    `both_ways` with shards, which hold no text. One process of each machine verifies all shards.
    """

    def __init__(
        self,
        config: TrainConfig,
        tokenizer: Tokenizer,
        pairs: TextPairs | Shards,
        processes: Processes = ALONE,
    ) -> None:
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.is_to_say_left_out = processes.is_first
        self.encoded: PairStore = PairsInMemory([])
        self.encoded_back: PairStore = PairsInMemory([])
        if isinstance(pairs, Shards):
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
            self.forward = Augmentation(pairs) if config.augment else pairs
            self.back = Augmentation(back) if config.augment and back else back
        self.config = config
        self.fingerprint = pairs.pairs_sha256 if isinstance(pairs, Shards) else pairs_sha256(pairs)

    def __call__(self, epoch: int) -> PairStore:
        config = self.config
        seed = config.seed * 100_003 + epoch  # more than the epochs of a run: no two seeds meet
        is_new = not len(self.encoded) or config.bpe_dropout or config.augment
        if not isinstance(self.pairs, Shards) and is_new:
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

    def _encoded(self, source: Augmentation | TextPairs, seed: int) -> PairsInMemory:
        pairs = source.epoch(str(seed)) if isinstance(source, Augmentation) else source
        longest = MAX_SENTENCE_TOKENS + 1  # as shards hold them: the same pairs are joined
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
