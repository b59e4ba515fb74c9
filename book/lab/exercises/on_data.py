"""The exercises on data (section 5.1), as in `on_attention`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lab.exercises.judging import Exercise, Function, exercise

Word = tuple[str, ...]


@exercise("5.1-pair")
def _most_frequent_pair() -> Exercise:
    def count(
        words: dict[Word, int], weigh: Function = lambda n: n, step: int = 1
    ) -> Counter[Word]:
        counts: Counter[Word] = Counter()
        for word, n in words.items():
            for pair in zip(word, word[step:]):
                counts[pair] += weigh(n)
        return counts

    def variant(
        key: Function = lambda pair, n: (-n, pair), end: Function = tuple, count: Function = count
    ) -> Function:
        def most_frequent_pair(words: dict[Word, int]) -> Any:
            counts = count(words)
            return end(min(counts, key=lambda pair: key(pair, counts[pair])))

        return most_frequent_pair

    def backwards(pair: Word) -> list[list[int]]:
        return [[-ord(letter) for letter in symbol] for symbol in pair]

    return Exercise(
        variant(),
        {
            "with one word": ({("b", "a", "n", "a", "n"): 1},),
            "with counts": ({("x", "y"): 1, ("x", "y", "z"): 1, ("a", "b"): 5},),
            "with a tie": ({("n", "o"): 2, ("g", "o"): 2, ("z", "o"): 2, ("m", "a"): 1},),
            "with longer symbols": (
                {("lo", "w", "er"): 3, ("lo", "w"): 2, ("n", "e", "w", "er"): 6},
            ),
        },
        {
            "You count each word once; a word that occurs five times has its "
            "pairs five times.": variant(count=lambda words: count(words, lambda n: 1)),
            "Among equally frequent pairs you take the last in string order.": variant(
                lambda pair, n: (-n, backwards(pair))
            ),
            "Among equally frequent pairs you take the one that you met first.": variant(
                lambda pair, n: -n
            ),
            "It is the pair, but glued together: "
            "its two symbols are asked for, as a tuple.": variant(end="".join),
            "It is the pair, but as a list; a tuple is asked for.": variant(end=list),
            "You return the rarest pair.": variant(lambda pair, n: (n, pair)),
            "The two symbols of a pair stand next to each other; yours do not.": variant(
                count=lambda words: count(words, step=2)
            ),
        },
    )


@exercise("5.1-merge")
def _merge() -> Exercise:
    def variant(end: Function = tuple, step: int = 2, most: int = 99) -> Function:
        def merge(word: Word, pair: Word) -> Any:
            merged: list[str] = []
            i = done = 0
            while i < len(word):
                hit = word[i : i + 2] == pair and done < most
                merged.append("".join(pair) if hit else word[i])
                done += hit
                i += step if hit else 1
            return end(merged)

        return merge

    def in_one_string(word: Word, pair: Word) -> Word:
        return tuple(" ".join(word).replace(" ".join(pair), "".join(pair)).split())

    return Exercise(
        variant(),
        {
            "where the pair occurs twice": (("b", "a", "n", "a", "n", "d"), ("a", "n")),
            "where it does not occur": (("l", "o", "w"), ("o", "l")),
            "where symbols repeat": (("a", "a", "a", "b", "a", "a"), ("a", "a")),
            "where another symbol ends like the first of the pair": (
                ("x", "ab", "c", "b", "c"),
                ("b", "c"),
            ),
            "where the pair ends the word": (("n", "e", "w", "e", "st"), ("e", "st")),
        },
        {
            "You merge the first occurrence only.": variant(most=1),
            "The second symbol of a merged pair is still there.": variant(step=1),
            "The symbols are right, but in a list; a tuple is asked for.": variant(end=list),
            "The symbols are right, but in one string; a tuple is asked for.": variant(
                end=" ".join
            ),
            "Replacing in one string also merges a symbol that only ends like the first "
            "of the pair.": in_one_string,
            "You return the word unchanged.": lambda word, pair: word,
        },
    )


@exercise("5.1-shift")
def _shift() -> Exercise:
    def right(target: list[int], bos_id: int, eos_id: int) -> tuple[list[int], list[int]]:
        return [bos_id, *target], [*target, eos_id]

    return Exercise(
        right,
        {
            "with three tokens": ([7, 8, 9], 1, 2),
            "with one token": ([5], 1, 2),
            "with other ids": ([1, 2], 3, 0),
        },
        {
            "Input and output have changed places.": lambda t, bos, eos: ([*t, eos], [bos, *t]),
            "Nothing is shifted: at every position, "
            "the answer stands in the input.": lambda t, bos, eos: ([bos, *t, eos], [bos, *t, eos]),
            "Nobody learns to stop: a mark is missing in the output.": lambda t, bos, eos: (
                [bos, *t[:-1]],
                [*t],
            ),
            "The input is one too long: it reads the end mark, "
            "after which nothing is predicted.": lambda t, bos, eos: ([bos, *t, eos], [*t, eos]),
            "The output is one too long: the mark that starts the input "
            "is never predicted.": lambda t, bos, eos: ([bos, *t], [bos, *t, eos]),
            "The two marks have changed places.": lambda t, bos, eos: ([eos, *t], [*t, bos]),
            "You use one mark twice.": lambda t, bos, eos: ([bos, *t], [*t, bos]),
            "A tuple of two lists is asked for; "
            "yours is a list of two lists.": lambda t, bos, eos: [[bos, *t], [*t, eos]],
        },
    )
