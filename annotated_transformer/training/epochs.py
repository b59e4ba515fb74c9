"""The pairs of each epoch (section 5.1): from text in memory, or from shards."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from annotated_transformer.config import SpecialIds, TrainConfig
from annotated_transformer.errors import require, say
from annotated_transformer.text.augmentation import Augmentation
from annotated_transformer.text.batching import (
    Batch,
    TextPairs,
    TokenPair,
    concatenated,
    encode_pairs,
    token_batches,
)
from annotated_transformer.text.parallel_text import pairs_sha256
from annotated_transformer.text.planning import (
    WINDOW,
    JoinedPairs,
    PairsInMemory,
    PairStore,
    n_fitting,
    planned_batches,
)
from annotated_transformer.text.shards import MAX_SENTENCE_TOKENS, Shards
from annotated_transformer.training.distributed.processes import ALONE, Processes

if TYPE_CHECKING:
    from annotated_transformer.text.tokenizer import Tokenizer

EpochPairs = PairStore | Sequence[TokenPair]


class TrainingPairs:
    """Text pairs or shards as a run reads them; a call with an epoch returns its pairs.

    `config` is the run's, with `window` filled in for shards, which are always planned in windows.
    A list of text pairs with the same `window` gives the same batches. Raises ConfigError for
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
        self.encoded: PairStore | list[TokenPair] = []
        if isinstance(pairs, Shards):
            for name, off in (("bpe_dropout", 0), ("augment", False), ("both_ways", False)):
                require(
                    not getattr(config, name),
                    f"{name} encodes the text anew in every epoch, and shards hold no text: "
                    f"it must be {off} with shards, got {getattr(config, name)}",
                )
            require(
                pairs.is_of(tokenizer),
                f"{pairs.directory} was encoded with another tokenizer than this run's",
            )
            processes.once_per_machine(pairs.verify)
            config = config.replace(window=config.window or WINDOW)
            self.encoded = pairs
        else:
            back = [(y, x) for x, y in pairs] if config.both_ways else []
            self.forward = Augmentation(pairs) if config.augment else pairs
            self.back = Augmentation(back) if config.augment and back else back
            self.encoded_back: list[TokenPair] = []
        self.config = config
        self.fingerprint = pairs.pairs_sha256 if isinstance(pairs, Shards) else pairs_sha256(pairs)

    def __call__(self, epoch: int) -> EpochPairs:
        config = self.config
        seed = config.seed * 100_003 + epoch  # more than the epochs of a run: no two seeds meet
        is_new = not len(self.encoded) or config.bpe_dropout or config.augment
        if not isinstance(self.pairs, Shards) and is_new:
            longest = MAX_SENTENCE_TOKENS + 1 if config.window else config.max_length
            ids = self._encoded(self.forward, longest, seed)
            self.encoded = PairsInMemory(ids) if config.window else ids
            if config.both_ways:  # one token less, for the marker
                self.encoded_back = self._encoded(self.back, config.max_length - 1, seed)
        require(len(self.encoded) > 0, nothing_to_train_on(config))
        if self.is_to_say_left_out:
            self.is_to_say_left_out = False
            self._say_left_out()
        if isinstance(self.encoded, PairStore):
            share = config.concatenate
            store = self.encoded
            return JoinedPairs(store, share, config.seed, epoch) if share else store
        both = self._with_joined(self.encoded, seed)
        if config.both_ways:
            marker = self.tokenizer.back_id
            back = self._with_joined(self.encoded_back, seed)
            both = both + [(array("i", [marker, *x]), y) for x, y in back]
        return both

    def _encoded(
        self, source: Augmentation | TextPairs, longest: int, seed: int
    ) -> list[TokenPair]:
        pairs = source.epoch(str(seed)) if isinstance(source, Augmentation) else source
        return encode_pairs(self.tokenizer, pairs, longest, self.config.bpe_dropout, seed)

    def _with_joined(self, encoded: list[TokenPair], seed: int) -> list[TokenPair]:
        config = self.config
        chance = random.Random(f"{seed} concatenate")
        joined = concatenated(encoded, config.concatenate, chance)
        return encoded + [(x, y) for x, y in joined if max(len(x), len(y)) < config.max_length]

    def _say_left_out(self) -> None:
        if self.config.augment:  # it adds pairs as well
            return
        n = len(self.pairs)
        most = self.config.max_length
        ids = self.encoded
        n_left_out = n - (n_fitting(ids, most) if isinstance(ids, PairStore) else len(ids))
        if n_left_out:
            reason = f"a side has no token, or more than max_length {most}"
            say(f"{n_left_out:,} of {n:,} training pairs are left out: {reason}")


def nothing_to_train_on(config: TrainConfig) -> str:
    """The message for an epoch without a pair to train on."""
    return f"no training pair has 1 to {config.max_length} tokens on each side"


def epoch_batches(
    pairs: EpochPairs,
    config: TrainConfig,
    epoch: int,
    start: int,
    ids: SpecialIds,
    multiple_of: int,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Batch]:
    """The batches of an epoch from number `start` on, planned all at once or in windows."""
    if not config.window:
        require(not isinstance(pairs, PairStore), "window must be at least 1 for shards, got 0")
        return token_batches(
            pairs,  # type: ignore[arg-type]
            config.max_tokens,
            seed=config.seed,
            epoch=epoch,
            start=start,
            ids=ids,
            multiple_of=multiple_of,
            is_wanted=is_wanted,
        )
    return planned_batches(
        pairs,
        config.max_tokens,
        seed=config.seed,
        epoch=epoch,
        max_length=config.max_length,
        window=config.window,
        start=start,
        ids=ids,
        multiple_of=multiple_of,
        is_wanted=is_wanted,
    )
