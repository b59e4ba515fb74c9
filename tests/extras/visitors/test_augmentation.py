"""Pairs as people type them: what is copied is the same on both sides, noise is on the source."""

from __future__ import annotations

import random
import re

import pytest

from annotated_transformer.extras.visitors import augmentation
from annotated_transformer.extras.visitors.augmentation import CHANCES, DIGITS, WORD, Augmentation
from toys import printed_by

NOUNS = [("dog", "Hund"), ("book", "Buch"), ("house", "Haus"), ("garden", "Garten")]
PAIRS = [
    *[(f"Tom has {i} {x}s.", f"Tom hat {i} {y}e.") for x, y in NOUNS for i in (2, 3, 17, 1984)],
    *[(f"Kowalski saw the {x}.", f"Kowalski sah: {y}.") for x, y in NOUNS for _ in range(5)],
    *[(f"{word} {x}s", f"{other} {y}e") for word, other in (("two", "zwei"), ("six", "sechs"))
      for x, y in NOUNS for _ in range(3)],
    *[(f"{n} {x}s", f"{other} {y}e") for n, other in (("2", "zwei"), ("6", "sechs"))
      for x, y in NOUNS],
    *[(f"{word} {x}s", f"{n} {y}e") for n, word in (("2", "two"), ("6", "six")) for x, y in NOUNS],
    ("The hotel is old.", "Das Hotel ist alt."), ("Hotel", "Hotel"), ("Don't go.", "Geh nicht."),
]  # fmt: skip


def only(*rules: str, **chances: float) -> Augmentation:
    return Augmentation(PAIRS, dict.fromkeys(rules, 1.0) | chances)


def test_names_are_what_both_sides_share_and_never_write_small():
    assert augmentation.names_in(PAIRS) == {"Tom": 16, "Kowalski": 20}


def test_words_are_learned_from_the_pairs():
    words = augmentation.word_pairs(PAIRS)
    assert {*NOUNS, ("two", "zwei"), ("six", "sechs")} <= {*words}
    assert augmentation.number_words(PAIRS, words) == {"two": "zwei", "six": "sechs"}


def test_a_number_is_put_on_both_sides_or_on_none():
    rules = only("number_for_words")
    [(source, target)] = rules.by("number_for_words", [("two_dogs", "zwei Hunde")])
    assert DIGITS.findall(source) == DIGITS.findall(target) != []


def test_a_surname_may_be_any_word_with_a_capital():
    said = [(f"Mr. {name} is here", f"Herr {name} ist hier") for name in ("Tom", "Kowalski") * 3]
    first_names = [("Anna Tom left", "Anna Tom ging")] * 3
    rules = Augmentation([*PAIRS, *said, *first_names])
    assert rules.titles == [("Mr", "Herr")]
    changed = rules.by("surnames", said * 9)
    names = {WORD.findall(source)[1] for source, _ in changed}
    assert {"Hund", "Haus"} <= names and {f"Mr. {name} is here" for name in names} == {
        source for source, _ in changed
    }
    assert all(WORD.findall(source)[1] == WORD.findall(target)[1] for source, target in changed)
    assert rules.by("surnames", [("Mr. Tom left", "Tom ist fort")]) == [
        ("Mr. Tom left", "Tom ist fort")
    ]


def test_new_names_have_the_letters_with_marks_that_the_pairs_have():
    with_marks = [("Jörg", "Jörg"), ("Groß", "Groß"), ("Zoë", "Zoë")] * 9
    rules = Augmentation([*PAIRS, *with_marks], {"names": 1.0})
    assert rules.marked == {"o": ["ö"], "s": ["ß"], "e": ["ë"]}
    rules.epoch("1")
    drawn = {letter for _ in range(300) for letter in rules.name()}
    assert {*"öß"} <= drawn


@pytest.mark.parametrize("rule", ["numbers", "names", "number_for_words", "marks", "joined"])
def test_what_is_to_be_copied_is_the_same_on_both_sides(rule):
    known = {word for pair in PAIRS for side in pair for word in WORD.findall(side)}
    changed = [pair for pair in only(rule).epoch("1") if pair not in PAIRS]
    assert len(changed) >= 12
    for source, target in changed:
        if rule not in ("joined", "marks"):  # they take pairs with a number word on one side, too
            assert DIGITS.findall(source) == DIGITS.findall(target)
        strange = [set(WORD.findall(side)) - known for side in (source, target)]
        assert strange[0] == strange[1]


def test_a_new_number_is_nearly_always_another():
    before = [pair for pair in PAIRS if augmentation.same_numbers(pair)]
    changed = only("numbers").epoch("1")
    numbers = {DIGITS.findall(x)[0] for x, y in changed if augmentation.same_numbers((x, y))}
    assert len(numbers) > len({DIGITS.findall(x)[0] for x, _ in before})
    rules = only("numbers")
    rules.epoch("1")
    x, y = rules.numbers("at 12:30 or 12", "um 12.30 oder 12")
    assert re.fullmatch(r"at (\d\d):\d\d or \1", x) and DIGITS.findall(x) == DIGITS.findall(y)


def test_what_is_copied_is_of_many_kinds():
    rules = only()
    rules.epoch("1")
    copied = [rules.rare() for _ in range(300)]
    assert not any(re.search(r"\s\s|^\s|\s$", text) or not text for text in copied)
    for kind in (r"[^@]+@[^@]+\.\w+", r"(https?://|www\.).*\.\w+", "[A-Z]{2,}", r"\w+ \w+"):
        assert any(re.fullmatch(kind, text) for text in copied), kind


@pytest.mark.parametrize("rule", ["capitals", "small_letters", "initials", "no_full_stop", "slips"])
def test_noise_changes_the_source_alone(rule):
    found = only(rule).epoch("1")
    assert [y for _, y in found] == [y for _, y in PAIRS]
    sources = [(x, old) for (x, _), (old, _) in zip(found, PAIRS, strict=True)]
    changed = [(x, old) for x, old in sources if x != old]
    assert len(changed) > len(PAIRS) // 3
    if rule in ("capitals", "small_letters", "initials"):
        assert all(x.casefold() == old.casefold() for x, old in changed)
    if rule == "slips":
        assert ("Dont go.", "Geh nicht.") in [p for s in "123456" for p in only(rule).epoch(s)]
        assert all("Tom" in x for x, old in sources if "Tom" in old)


def test_numbers_of_few_digits_and_round_ones_are_frequent():
    rules = only("numbers")
    rules.random = random.Random(1)
    long = [number for number in (rules.number("", True) for _ in range(900)) if len(number) > 2]
    few = sum(len(set(number)) <= 2 for number in long)
    rounds = sum(not number[1:].strip("0") for number in long)
    assert 0.35 < few / len(long) < 0.75 and rounds > 0.05 * len(long)
    assert not [number for number in long if number[0] == "0"]
    groups = [rules.number("000", False) for _ in range(200)]
    assert 0.1 < groups.count("000") / 200 < 0.4  # 5,000 stays a round number


def test_a_title_has_capitals():
    assert ("The Hotel Is Old.", "Das Hotel ist alt.") in only("initials").epoch("1")


def test_pairs_with_numbers_are_added():
    added = only(number_copies=2.0).epoch("1")[len(PAIRS) :]
    assert len(added) == 32 and all(map(augmentation.same_numbers, added))


def test_a_seed_gives_the_same_pairs_in_another_process():
    rules = Augmentation(PAIRS)
    assert rules.epoch("7") == rules.epoch("7") != rules.epoch("8")
    program = """import sys; sys.path.insert(0, 'tests')
from extras.visitors.test_augmentation import PAIRS, Augmentation
print(Augmentation(PAIRS).epoch('7'))"""
    for hashing in ("1", "2"):
        assert printed_by(program, PYTHONHASHSEED=hashing) == f"{rules.epoch('7')}\n"


def test_every_rule_is_a_method_and_without_rules_nothing_changes():
    assert all(hasattr(Augmentation, name) for name in CHANCES.keys() - {"number_copies"})
    assert Augmentation(PAIRS, {}).epoch("1") == PAIRS


def test_pairs_in_which_nothing_is_known_are_no_error():
    pairs = [("你好。", "さようなら"), ("", "x"), ("1", "1"), ("'", "")] * 3
    assert len(Augmentation(pairs, dict.fromkeys(CHANCES, 1.0)).epoch("1")) >= len(pairs)
