"""Text in, text out (section 6.1): the model, the tokenizer and the search as one translator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import torch

from annotated_transformer.checkpoint.directory import load_model, read_config, read_model_config
from annotated_transformer.config import MAX_BEAM, DecodeConfig, DecodeSettings
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import Hypothesis, StepModel, rerank, search_beams
from annotated_transformer.errors import require, require_strings
from annotated_transformer.extras.visitors.doubt import (
    NO_DOUBT,
    Doubt,
    lost_words,
    mean_probability,
)
from annotated_transformer.fast.decoder import FastDecoder, has_fast_steps
from annotated_transformer.fast.int8 import quantize
from annotated_transformer.fast.linear import store_column_major
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.views import ListAsTree

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)
PAPER = DecodeConfig()
"""The paper's search: beam 4, alpha 0.6."""
FOUR_BEST = DecodeConfig(n_best=4)
WIDER = 4
"""How many times wider a beam is where one has lost a number or a name."""
SHOUT = 4
"""The fewest letters of a line in capitals that is no abbreviation."""
A_LIST = "sentences must be a list of strings"


class Translation(NamedTuple):
    """One line of text, the score that ranks it, log P in nats, and what to doubt.

    `mean_p` is the geometric mean of the probabilities of its tokens, the end counted; `unsure`
    says that it is below the checkpoint's threshold (`doubt.Doubt`); `lost` are the numbers,
    addresses and names of the source that are not in the text (`doubt.lost_words`).
    """

    text: str
    score: float
    log_p: float
    mean_p: float = 1.0
    unsure: bool = False
    lost: tuple[str, ...] = ()


Engine = Callable[[list[list[int]], DecodeConfig], list[list[tuple[list[int], float]]]]
"""Another program's search with the same weights, such as `extras.formats.ctranslate2` has.

For each source, ids without bos and eos, it has hypotheses as `rerank` takes them.
"""


class Translator:
    """Translates text, one sentence (or line) at a time or many.

    `translate` takes a list of sentences and `translate_stream` an endless stream of lines;
    `n_best` gives several translations of each. A line that is empty, or only white space, is
    answered by an empty line, and a line without a letter by itself, with single spaces. A
    line of four letters or more, all of them capitals, is read as a sentence in small letters. A
    line of more than `max_source` tokens (eos included; learned positions may set a lower limit) is
    cut there, and a warning names it.
    An answer never contains a line break of any kind: where a model makes one, it becomes a space.

    >>> translator = Translator.from_checkpoint("book/model")
    >>> translator.translate(["I am hungry.", "Where is the station?"])
    ['Ich habe Hunger.', 'Wo ist der Bahnhof?']
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        device: torch.device | str = "cpu",
        max_source: int = 1024,
        search_model: StepModel | None = None,
        engine: Engine | None = None,
        doubt: Doubt = NO_DOUBT,
    ) -> None:
        """`model` is moved to `device` and put into evaluation mode.

        The search calls `search_model`, by default the model itself. With `engine`, that searches
        instead, and `rerank` ranks what it finds. `doubt` says when a translation is unsure. Raises
        ConfigError for a max_source below 2.
        """
        rule = "max_source must be at least 2 (a token and eos)"
        require(max_source >= 2, f"{rule}, got {max_source}")
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.device = torch.device(device)
        self.doubt = doubt
        self.search_model: StepModel = search_model or self.model
        self.engine = engine
        self.dtype = str(self.model.embedding.weight.dtype).removeprefix("torch.")
        """What the search computes in: "float32", "float16" or "bfloat16"; an engine may differ."""
        learned = model.config.positions == "learned"
        # The default of 1,024 is four times the longest side that `TrainConfig` trains on.
        self.max_source = min(max_source, model.config.max_len) if learned else max_source

    @classmethod
    def from_checkpoint(
        cls,
        directory: str | Path,
        device: torch.device | str = "cpu",
        max_source: int = 1024,
        int8: bool = False,
        dtype: torch.dtype | str | None = None,
    ) -> Translator:
        """The translator of a checkpoint directory, which holds all that it needs.

        It searches with a `FastDecoder` of `model`, or with the model itself, in float32, where it
        has rotary positions or qk_norm (`fast.decoder.has_fast_steps`). On a CPU the weights are
        stored column by column, with a copy in 16 bits where that is exact, or put into 8 bits with
        `int8` (see `fast.int8`).

        `dtype` is what the search computes in: float32, float16 or bfloat16. The default is float32
        on a CPU and float16 on a GPU: every GPU multiplies float16 at its full rate, and float16 is
        more precise than bfloat16 (of 200 translations of book/model, 200 and 196 are those of
        float32). The largest activation in that model is 443; float16 ends at 65,504. `model`
        itself stays in float32. In 16 bits or 8 bits a translation may depend on the other
        sentences of its batch.

        Raises ConfigError for another dtype, and for int8 on another device than the CPU or
        together with 16 bits.
        """
        on_gpu = torch.device(device).type == "cuda"
        is_fast = has_fast_steps(read_model_config(directory))
        name = str(dtype or ("float16" if on_gpu and is_fast else "float32"))
        name = name.removeprefix("torch.")
        is_known = name in ("float32", "float16", "bfloat16")
        require(is_known, f"dtype must be float32, float16 or bfloat16, got {name}")
        model, tokenizer = load_model(directory, device)
        if int8:
            quantize(model)
        elif torch.device(device).type == "cpu":
            store_column_major(model)
        doubt = Doubt.of(read_config(directory))
        translator = cls(model, tokenizer, device, max_source, doubt=doubt)
        if is_fast or int8 or name != "float32":
            translator.search_model = FastDecoder(
                translator.model, keep_float16_copy=not on_gpu, dtype=getattr(torch, name)
            )
        translator.dtype = name
        return translator

    def translate(
        self,
        sentences: Sequence[str],
        search: DecodeConfig = PAPER,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> list[str]:
        """The best translation of each sentence.

        The defaults are the paper's search. Where its best has lost a number, an address or a name
        (`doubt.lost_words`), a beam `WIDER` times as wide is searched, and of that the first which
        has lost the fewest is taken, if that is fewer; not with `by_score`, and not with a beam of
        1, which is greedy search. Settings may be given as a whole,
        or as keywords, `beam_size=4`. `max_batch_tokens` bounds a batch: beam_size hypotheses per
        sentence, each as long as the longest source. Raises ConfigError for settings that cannot
        be, and for one string in place of a list.
        """
        window = max(1, len(sentences))
        return list(self.translate_stream(sentences, window, search, max_batch_tokens, **settings))

    def n_best(
        self,
        sentences: Sequence[str],
        search: DecodeConfig = FOUR_BEST,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> list[list[Translation]]:
        """The `n_best` translations of each sentence (four by default), best first.

        The best has lost the fewest numbers, addresses and names, and of several such ones has the
        best score; with `by_score` it has the best score. There are fewer where the search found
        fewer.
        """
        window = max(1, len(sentences))
        return list(self.n_best_stream(sentences, window, search, max_batch_tokens, **settings))

    def translate_stream(
        self,
        lines: Iterable[str],
        window: int = 512,
        search: DecodeConfig = PAPER,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> Iterator[str]:
        """One line out for each line in, in order; at most `window` lines are held at a time."""
        found = self.n_best_stream(lines, window, search, max_batch_tokens, **settings)
        return (translations[0].text for translations in found)

    def n_best_stream(
        self,
        lines: Iterable[str],
        window: int = 512,
        search: DecodeConfig = PAPER,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> Iterator[list[Translation]]:
        """The translations of each line, as many as `search.n_best`, as the lines come."""
        search = search.replace(**settings)
        for name, value in (("window", window), ("max_batch_tokens", max_batch_tokens)):
            require(value >= 1, f"{name} must be at least 1, got {value}")
        if isinstance(lines, str):
            require_strings(lines, A_LIST)
        if search.back:
            self.tokenizer.back_id  # noqa: B018, refused before a line is read
        return self._stream(iter(lines), window, search, max_batch_tokens)

    def _stream(
        self, lines: Iterator[str], window: int, search: DecodeConfig, max_batch_tokens: int
    ) -> Iterator[list[Translation]]:
        first = 1
        while held := list(islice(lines, window)):
            require_strings(held, A_LIST)
            yield from self._window(held, first, search, max_batch_tokens)
            first += len(held)

    def _window(
        self, lines: list[str], first: int, search: DecodeConfig, max_batch_tokens: int
    ) -> list[list[Translation]]:
        """Translations of lines numbered from `first`: batched by length, put back in order."""
        texts = [as_read(line) for line in lines]
        has_letter = [any(map(str.isalpha, text)) for text in texts]
        sources = self.tokenizer.encode_batch(
            [text if has else "" for text, has in zip(texts, has_letter, strict=True)]
        )
        if search.back:
            sources = [[self.tokenizer.back_id, *ids] if ids else ids for ids in sources]
        for i, ids in enumerate(sources):
            if len(ids) >= self.max_source:
                kept = self.max_source - 1
                message = "line %d has %d tokens, only the first %d are translated"
                log.warning(message, first + i, len(ids), kept)
                sources[i] = ids[:kept]
        answers: list[list[Translation]] = [
            ListAsTree([Translation("" if has else text, 0.0, 0.0)])
            for text, has in zip(texts, has_letter, strict=True)
        ]

        def answer(some: Iterable[int], search: DecodeConfig) -> None:
            order = sorted((i for i in some if sources[i]), key=lambda i: len(sources[i]))
            for batch in batches_by_length(order, sources, max_batch_tokens // search.beam_size):
                beams = self._search([sources[i] for i in batch], search)
                for i, best in zip(batch, beams, strict=True):
                    if best:  # a model whose scores are NaN has none
                        translations = (self._translation(texts[i], h, search.back) for h in best)
                        answers[i] = ListAsTree(translations)

        answer(range(len(lines)), search)
        if search.beam_size > 1 and not search.by_score:
            lossy = {i: found for i, found in enumerate(answers) if found[0].lost}
            width = min(WIDER * search.beam_size, MAX_BEAM)
            answer(lossy, search.replace(beam_size=width, n_best=width))
            for i, narrow in lossy.items():
                wide = sorted(answers[i], key=lambda one: len(one.lost))
                keeps_more = len(wide[0].lost) < len(narrow[0].lost)
                answers[i] = ListAsTree(wide[: search.n_best]) if keeps_more else narrow
        return answers

    def _search(self, sources: list[list[int]], search: DecodeConfig) -> Sequence[list[Hypothesis]]:
        if self.engine:
            found = self.engine(sources, search)
            return [rerank(of_one, search.alpha)[: search.n_best] for of_one in found]
        source = pad_source(sources, self.model.config.special_ids)
        return search_beams(self.search_model, source.to(self.device), search)

    def _translation(self, source: str, found: Hypothesis, back: bool) -> Translation:
        text = self._text(found.tokens)
        mean_p = mean_probability(found.log_p, len(found.tokens) + 1)
        to = self.doubt.languages[0 if back else 1]
        lost = lost_words(source, text, to, () if back else self.doubt.translated)
        unsure = mean_p < self.doubt.unsure_below
        return Translation(text, found.score, found.log_p, mean_p, unsure, lost)

    def _text(self, ids: list[int]) -> str:
        """The text of `ids` on one line: whatever `str.splitlines` takes for its end is a space."""
        return " ".join(self.tokenizer.decode(ids).splitlines())


def as_read(line: str) -> str:
    """A line as the model gets it: one space between words, and no shouting.

    >>> as_read("WHERE IS  THE STATION?"), as_read("USA")
    ('Where is the station?', 'USA')
    """
    text = " ".join(line.split())
    is_shouted = text.isupper() and sum(map(str.isalpha, text)) >= SHOUT
    return text[:1] + text[1:].lower() if is_shouted else text


def batches_by_length(
    order: list[int], sources: list[list[int]], max_tokens: int
) -> Iterator[list[int]]:
    """Cut `order` (short to long) into batches of at most `max_tokens` padded source tokens.

    A sentence that is longer is a batch of its own.
    """
    batch: list[int] = []
    for i in order:
        if batch and (len(sources[i]) + 1) * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
