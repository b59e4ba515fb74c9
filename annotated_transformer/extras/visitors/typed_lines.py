"""A translator of lines as people type them: capitals, numbers, lost words, a wider beam, doubt."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Unpack

from annotated_transformer.config import MAX_BEAM, DecodeConfig, DecodeSettings
from annotated_transformer.data.tokenizer import without_surrogates
from annotated_transformer.decoding.translator import (
    FOUR_BEST,
    PAPER_SEARCH,
    Translation,
    Translator,
)
from annotated_transformer.errors import require_strings
from annotated_transformer.extras.visitors.doubt import Doubt, lost_words, mean_probability
from annotated_transformer.views import ListAsTree

WIDER = 4
"""How many times wider the second beam is, where the first has lost a number or a name."""
MIN_CAPITALS = 4
"""The fewest letters of a line in capitals that is no abbreviation."""


class TypedTranslation(NamedTuple):
    """A `Translation`, and what to doubt in it.

    `mean_p` is the geometric mean of the probabilities of its tokens, the end counted; `unsure`
    says that it is below the checkpoint's threshold (`doubt.Doubt`); `lost` are the numbers,
    addresses and names of the source that are not in the text (`doubt.lost_words`).
    """

    text: str
    score: float
    log_p: float
    tokens: tuple[int, ...] = ()
    n_cut: int = 0
    mean_p: float = 1.0
    unsure: bool = False
    lost: tuple[str, ...] = ()


def for_visitors(translator: Translator, doubt: Doubt | None = None) -> TypedLines:
    """The translator, made ready for lines as people type them (`TypedLines`).

    `doubt` is by default what the checkpoint's config.json says of it. Raises ConfigError for one
    that cannot be.

    >>> translator = for_visitors(Translator.from_checkpoint("book/model"))
    >>> translator.translate(["WHERE IS  THE STATION?", "12 + 7"])
    ['Wo ist der Bahnhof?', '12 + 7']
    """
    return TypedLines(translator, Doubt.of(translator.about) if doubt is None else doubt)


class TypedLines:
    """A `Translator` with rules for typed lines; its methods take what the translator's take.

    A line is read `as_read`, and one without a letter is its own translation. Where the best
    hypothesis has lost a number, an address or a name, a beam `WIDER` times as wide is searched,
    and of that the first which has lost the fewest is taken, if that is fewer; a beam of 1, which
    is greedy search, stays as it is.
    """

    def __init__(self, translator: Translator, doubt: Doubt) -> None:
        self.translator = translator
        self.doubt = doubt

    def translate(
        self,
        sentences: Sequence[str],
        search: DecodeConfig = PAPER_SEARCH,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> list[str]:
        """The translation of each sentence."""
        window = max(1, len(sentences))
        return list(self.translate_stream(sentences, window, search, max_batch_tokens, **settings))

    def n_best(
        self,
        sentences: Sequence[str],
        search: DecodeConfig = FOUR_BEST,
        max_batch_tokens: int = 4096,
        **settings: Unpack[DecodeSettings],
    ) -> list[list[TypedTranslation]]:
        """The `n_best` translations of each sentence; the first is what `translate` gives."""
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
    ) -> Iterator[list[TypedTranslation]]:
        """The translations of each line, as many as `search.n_best`, as the lines come."""
        search = search.replace(**settings)
        waiting: deque[str] = deque()

        def lines_to_search() -> Iterator[str]:
            for line in lines:
                require_strings([line], "sentences must be a list of strings")
                text = as_read(line)
                waiting.append(text)
                yield text if has_letter(text) else ""

        to_search = lines if isinstance(lines, str) else lines_to_search()
        stream = self.translator.n_best_stream(to_search, window, search, max_batch_tokens)
        return (self._answer(waiting.popleft(), translations, search) for translations in stream)

    def _answer(
        self, line: str, translations: list[Translation], search: DecodeConfig
    ) -> list[TypedTranslation]:
        if not has_letter(line):
            return ListAsTree([TypedTranslation(line, 0.0, 0.0)])
        narrow = [self._doubted(line, one, search.back) for one in translations]
        if narrow[0].lost and search.beam_size > 1:
            width = min(WIDER * search.beam_size, MAX_BEAM)
            wider = search.replace(beam_size=width, n_best=width)
            [beam] = self.translator.n_best([line], wider)
            wide = [self._doubted(line, one, search.back) for one in beam]
            wide.sort(key=lambda one: len(one.lost))
            if len(wide[0].lost) < len(narrow[0].lost):
                return ListAsTree(wide[: search.n_best])
        return ListAsTree(narrow)

    def _doubted(self, line: str, translation: Translation, back: bool) -> TypedTranslation:
        mean_p = mean_probability(translation.log_p, len(translation.tokens) + 1)
        to = self.doubt.languages[0 if back else 1]
        translated = self.doubt.translated[back]
        lost = lost_words(line, translation.text, to, translated)
        return TypedTranslation(*translation, mean_p, mean_p < self.doubt.unsure_below, lost)


def as_read(line: str) -> str:
    """A line as the model gets it: one space between words, and no shouting.

    Half of a surrogate pair becomes U+FFFD, as in `Tokenizer.encode`: a line may be its own answer.

    >>> as_read("WHERE IS  THE STATION?"), as_read("USA")
    ('Where is the station?', 'USA')
    """
    text = " ".join(without_surrogates(line).split())
    is_shouted = text.isupper() and sum(map(str.isalpha, text)) >= MIN_CAPITALS
    return text[:1] + text[1:].lower() if is_shouted else text


def has_letter(text: str) -> bool:
    """Whether there is anything to translate: a line of numbers and signs is its own answer."""
    return any(map(str.isalpha, text))
