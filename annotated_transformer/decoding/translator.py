"""Text in, text out (section 6.1): the model, the tokenizer and the search as one translator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch

from annotated_transformer.checkpoint.directory import load_model, read_config
from annotated_transformer.config import DecodeConfig, DecodeSettings
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import Hypothesis, StepModel, rerank, search_beams
from annotated_transformer.errors import require, require_strings
from annotated_transformer.fast.decoder import FastDecoder, search_model_for
from annotated_transformer.fast.int8 import quantize
from annotated_transformer.fast.linear import store_column_major
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.views import ListAsTree

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

PAPER_SEARCH = DecodeConfig()
"""The paper's search: beam 4, alpha 0.6."""
FOUR_BEST = DecodeConfig(n_best=4)


class Translation(NamedTuple):
    """A hypothesis as text: the score that ranks it, log P in nats, and its ids without eos.

    `n_cut` is the number of tokens at the end of the line that were not translated, because it is
    longer than `max_source`.
    """

    text: str
    score: float
    log_p: float
    tokens: tuple[int, ...] = ()
    n_cut: int = 0


Engine = Callable[[list[list[int]], DecodeConfig], list[list[tuple[list[int], float]]]]
"""Another program's search with the same weights, such as `extras.formats.ctranslate2` has.

For each source, ids without bos and eos, it has hypotheses as `rerank` takes them.
"""


class Translator:
    """Translates text, one sentence (or line) at a time or many: encode, search, decode.

    `translate` takes a list of sentences and `translate_stream` an endless stream of lines;
    `n_best` gives several translations of each. The text of a translation is that of the best
    hypothesis of `beam_search`, on one line: where the model makes a line break of any kind, it
    becomes a space. A line that is empty, or only white space, is answered by an empty line. A
    line of more than `max_source` tokens (eos included; learned positions may set a lower limit) is
    cut there: a warning names it, and `Translation.n_cut` counts what is left out.
    `extras.visitors.for_visitors` wraps a translator for text as people type it.

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
    ) -> None:
        """`model` is moved to `device` and put into evaluation mode.

        The search calls `search_model`, by default the model itself; a `FastDecoder` only as long
        as the model has no hooks and the modules that it had. With `engine`, that searches instead,
        and `rerank` ranks what it finds. Raises ConfigError for a max_source below 2.
        """
        rule = "max_source must be at least 2 (a token and eos)"
        require(max_source >= 2, f"{rule}, got {max_source}")
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.device = torch.device(device)
        self.search_model = None if search_model is self.model else search_model
        self.engine = engine
        self.dtype = str(self.model.embedding.weight.dtype).removeprefix("torch.")
        """What the search computes in: "float32", "float16" or "bfloat16"; an engine may differ."""
        learned = model.config.positions == "learned"
        # The default of 1,024 is four times the longest side that `TrainConfig` trains on.
        self.max_source = min(max_source, model.config.max_len) if learned else max_source
        self.about: Mapping[str, Any] = {}
        """What the checkpoint's config.json says of it: its corpus, how it was trained."""

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

        It searches with what `fast.decoder.search_model_for` chooses: a `FastDecoder`, or the model
        itself, in float32, where that has an option which the `FastDecoder` does not know. On a CPU
        the weights are stored column by column, with a copy in 16 bits where that is exact, or put
        into 8 bits with `int8` (see `fast.int8`).

        `dtype` is what the search computes in: float32, float16 or bfloat16. The default is float32
        on a CPU and, where a `FastDecoder` searches, float16 on a GPU: every GPU multiplies float16
        at its full rate, and float16 is more precise than bfloat16 (of 200 translations of
        book/model, 200 and 196 are those of float32). The largest activation in that model is 443;
        float16 ends at 65,504. `model` itself stays in float32. In 16 bits or 8 bits a translation
        may depend on the other sentences of its batch.

        Raises ConfigError for another dtype, and for int8 on another device than the CPU or
        together with 16 bits.
        """
        name = None if dtype is None else str(dtype).removeprefix("torch.")
        is_known = name in (None, "float32", "float16", "bfloat16")
        require(is_known, f"dtype must be float32, float16 or bfloat16, got {name}")
        model, tokenizer = load_model(directory, device)
        on_cpu = torch.device(device).type == "cpu"
        if int8:
            quantize(model)
        elif on_cpu:
            store_column_major(model)
        asked_for = None if name is None else getattr(torch, name)
        search_model = search_model_for(model, asked_for, keep_float16_copy=on_cpu)
        translator = cls(model, tokenizer, device, max_source, search_model)
        translator.dtype = str(getattr(search_model, "dtype", torch.float32)).partition(".")[2]
        translator.about = read_config(directory)
        return translator

    def translate(
        self,
        sentences: Sequence[str],
        search: DecodeConfig = PAPER_SEARCH,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> list[str]:
        """The best translation of each sentence, by default of the paper's search.

        Settings may be given as a whole, or as keywords, `beam_size=1`. `max_batch_tokens` bounds a
        batch: beam_size hypotheses per sentence, each as long as the longest source. Raises
        ConfigError for settings that cannot be, and for one string in place of a list.
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
        """The `n_best` translations of each sentence (four by default), best score first.

        There are fewer where the search found fewer.
        """
        window = max(1, len(sentences))
        return list(self.n_best_stream(sentences, window, search, max_batch_tokens, **settings))

    def translate_stream(
        self,
        lines: Iterable[str],
        window: int = 512,
        search: DecodeConfig = PAPER_SEARCH,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> Iterator[str]:
        """One line out for each line in, in order; at most `window` lines are held at a time."""
        stream = self.n_best_stream(lines, window, search, max_batch_tokens, **settings)
        return (translations[0].text for translations in stream)

    def n_best_stream(
        self,
        lines: Iterable[str],
        window: int = 512,
        search: DecodeConfig = PAPER_SEARCH,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> Iterator[list[Translation]]:
        """The translations of each line, as many as `search.n_best`, as the lines come."""
        search = search.replace(**settings)
        for name, value in (("window", window), ("max_batch_tokens", max_batch_tokens)):
            require(value >= 1, f"{name} must be at least 1, got {value}")
        if isinstance(lines, str):
            _require_sentences(lines)
        if search.back:
            self.tokenizer.back_id  # noqa: B018, refused before a line is read
        return self._stream(iter(lines), window, search, max_batch_tokens)

    def _stream(
        self, lines: Iterator[str], window: int, search: DecodeConfig, max_batch_tokens: int
    ) -> Iterator[list[Translation]]:
        first_line = 1
        while held := list(islice(lines, window)):
            _require_sentences(held)
            yield from self._translate_window(held, first_line, search, max_batch_tokens)
            first_line += len(held)

    def _translate_window(
        self, lines: list[str], first_line: int, search: DecodeConfig, max_batch_tokens: int
    ) -> list[list[Translation]]:
        """Translations of lines numbered from `first_line`: batched by length, back in order."""
        sources = self.tokenizer.encode_batch([line if line.strip() else "" for line in lines])
        if search.back:
            sources = [[self.tokenizer.back_id, *ids] if ids else ids for ids in sources]
        n_cut = dict.fromkeys(range(len(lines)), 0)
        for i, ids in enumerate(sources):
            if len(ids) >= self.max_source:
                limit = self.max_source - 1
                n_cut[i] = len(ids) - limit
                message = "line %d has %d tokens, only the first %d are translated"
                logging.getLogger(__name__).warning(message, first_line + i, len(ids), limit)
                sources[i] = ids[:limit]
        answers: list[list[Translation]] = [ListAsTree([Translation("", 0.0, 0.0)]) for _ in lines]
        order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: len(sources[i]))
        for batch in batches_by_length(order, sources, max_batch_tokens // search.beam_size):
            beams = self._search([sources[i] for i in batch], search)
            for i, hypotheses in zip(batch, beams, strict=True):
                if hypotheses:  # a model whose scores are NaN has none
                    texts = (self._translation(one, n_cut[i]) for one in hypotheses)
                    answers[i] = ListAsTree(texts)
        return answers

    def _search(self, sources: list[list[int]], search: DecodeConfig) -> Sequence[list[Hypothesis]]:
        if self.engine:
            beams = self.engine(sources, search)
            return [rerank(hypotheses, search.alpha)[: search.n_best] for hypotheses in beams]
        source = pad_source(sources, self.model.config.special_ids)
        return search_beams(self._search_model(), source.to(self.device), search)

    def _search_model(self) -> StepModel:
        """What was given to search with; the model, where that has become another one since."""
        given = self.search_model
        if isinstance(given, FastDecoder):
            is_current = given.model is self.model and given.stands_for_model()
            return given if is_current else self.model
        return self.model if given is None else given

    def _translation(self, hypothesis: Hypothesis, n_cut: int) -> Translation:
        # One line, whatever `str.splitlines` takes for the end of one.
        text = " ".join(self.tokenizer.decode(hypothesis.tokens).splitlines())
        tokens = tuple(hypothesis.tokens)
        return Translation(text, hypothesis.score, hypothesis.log_p, tokens, n_cut)


def _require_sentences(sentences: Iterable[object]) -> None:
    require_strings(sentences, "sentences must be a list of strings")


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
