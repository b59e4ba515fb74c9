"""The controlled corpus is correct German, says who refers to what, and keeps its test apart.

The judge below knows German from its own lists, written down once more,
and reads the plain text only.
"""

import re

import pytest

from annotated_transformer.errors import ConfigError
from lab.experiments.figures_3_to_5 import controlled_corpus
from lab.experiments.figures_3_to_5.controlled_corpus import THINGS, position, sentences

HELD_OUT_NOUNS = controlled_corpus.HELD_OUT_NOUNS
HELD_OUT_TEMPLATES = controlled_corpus.HELD_OUT_TEMPLATES

NOUNS = {
    "m": """Apfel Ball Besen Brief Eimer Gürtel Hammer Handschuh Hut Kamm Koffer Korb Kuchen Löffel
        Mantel Nagel Ring Rock Schirm Schlüssel Schrank Schuh Spiegel Stein Stock Stuhl Teller
        Teppich Tisch Topf Mann Junge Arzt Onkel Lehrer Preis Rand""",
    "f": """Birne Blume Bürste Decke Feder Flasche Flöte Gabel Geige Jacke Karte Kerze Kette Kiste
        Lampe Leiter Münze Mütze Pfanne Puppe Schachtel Schaufel Schüssel Säge Tasche Tasse Trommel
        Uhr Zeitung Zwiebel Frau Tante Königin Farbe Form""",
    "n": """Bett Bild Blatt Boot Brett Buch Ei Fahrrad Fass Glas Handtuch Heft Hemd Kissen Klavier
        Kleid Messer Netz Paket Rad Radio Regal Schwert Seil Sieb Sofa Spielzeug Telefon Tuch Zelt
        Kind Mädchen Muster Ende""",
}
GENDER = {noun: gender for gender, nouns in NOUNS.items() for noun in nouns.split()}


def words(text):
    return text.split()


PLURALS = words("Männer Frauen Kinder Mädchen Jungen Ärzte Tanten Onkel Königinnen Lehrer")
DECLENSION = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")}
EIN = {"m": ("ein", "einen", "einem"), "f": ("eine", "eine", "einer"), "n": ("ein", "ein", "einem")}
CASES = ("nominative", "accusative", "dative")
STEMS = "alt|neu|rot|grün|blau|weiß|schwarz|schön|hässlich|seltsam|schmutzig|sauber|schwer|leicht"
PARTICLES = words("weg hin zurück mit heraus auf aus um")
SINGULAR = words("""
    war sagte kaufte verkaufte fand bemerkte putzte bemalte verlor trug stahl vergaß räumte legte
    stellte nahm holte hob suchte brachte fiel zerbrach verschwand wackelte brannte passte
""")
PLURAL = words("""
    sagten kauften verkauften fanden bemerkten putzten bemalten verloren trugen stahlen vergaßen
    räumten legten stellten nahmen holten hoben suchten brachten
""")
SUBORDINATE = ("weil", "obwohl", "als", "dass")


def adjective_ending(article, gender, case, plural):
    """Weak after an article that shows the case; strong, like the article that is not there,
    after "ein"."""
    if article == "ein":
        return {"m": "er", "n": "es"}[gender]
    singular_e = not plural and (case == "nominative" or (case == "accusative" and gender != "m"))
    return "e" if singular_e else "en"


def finite(word, joined):
    """(particle, verb) if this is a finite verb; in a clause with the verb last,
    a particle is joined to it."""
    for particle in ["", *(PARTICLES if joined else [])]:
        if word.startswith(particle) and word[len(particle) :] in SINGULAR + PLURAL:
            return particle, word[len(particle) :]
    return None


def clauses(text):
    """The German clauses as (conjunction or "", words)."""
    text = re.sub(r"^.", lambda first: first[0].lower(), text.removesuffix(" ."))
    found = [("", [])]
    for word in words(text):
        if word in (*SUBORDINATE, "aber", "und"):
            if found[-1][1][-1] == ",":
                found[-1][1].pop()
            else:
                assert word == "und"
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found


def judge(text):
    """Assert the German of one sentence; for each clause,
    its subject's words and whether its verb is a plural."""
    subjects = []
    for conjunction, clause in clauses(text):
        joined = conjunction in SUBORDINATE
        verbs = [i for i, word in enumerate(clause) if finite(word, joined)]
        assert len(verbs) == 1, clause
        particle, verb = finite(clause[verbs[0]], joined)
        cases, starts, i = ["nominative", "accusative"], [], 0
        subject = None
        while i < len(clause):
            start, preposition = i, clause[i] in ("neben", "hinter", "unter", "auf", "in")
            if preposition and i == len(clause) - 1:  # hob ... auf
                starts.append(i)
                break
            i += preposition
            word = clause[i]
            if re.fullmatch("der|die|das|den|dem|(ein|sein|ihr)(e|en|em|er)?", word):
                described = bool(re.fullmatch(f"({STEMS})e[nrs]?", clause[i + 1]))
                noun = clause[i + 1 + described]
                gender = GENDER.get(noun)
                plural = not gender or (noun in PLURALS and word == "die" and gender != "f")
                assert noun in (PLURALS if plural else GENDER), clause
                if preposition:
                    case = "accusative" if verb == "passte" else "dative"
                else:
                    case = cases.pop(0)
                if plural:
                    assert (word, case) == ("die", "nominative")
                else:
                    k = CASES.index(case)
                    forms = DECLENSION if word[0] == "d" else EIN
                    assert re.sub("^(sein|ihr)", "ein", word) == forms[gender][k], clause
                if described:
                    ending = adjective_ending(word, gender, case, plural)
                    assert re.fullmatch(f"({STEMS}){ending}", clause[i + 1]), clause
                i += 2 + described
            elif word in ("er", "sie", "es", "ihn"):
                case = cases.pop(0)
                assert case == {"er": "nominative", "ihn": "accusative"}.get(word, case), clause
                plural, i = None, i + 1
            else:
                assert not preposition
                starts.append(i)
                i += 1
                continue
            if not preposition and case == "nominative":
                subject, subject_is_plural = clause[start:i], plural
            # "der Tisch neben der Lampe": part of the phrase before
            if not (preposition and starts and start < verbs[0]):
                starts.append(start)
        assert subject is not None
        if subject_is_plural is not None:
            assert (verb in PLURAL) == subject_is_plural, clause
        if joined:
            assert verbs[0] == len(clause) - 1, clause
        else:
            # The verb is second.
            assert sum(start < verbs[0] for start in starts) == 1, clause
            assert not particle
        subjects.append((subject, verb in PLURAL))
    return subjects


def antecedent(english):
    """The thing that it refers to, by the rule, from the English text."""
    sentence = words(english.lower())
    start = min(
        sentence.index(conjunction)
        for conjunction in ("because", "although", "when", "but", "and")
        if conjunction in sentence
    )
    things = []
    for i, word in enumerate(sentence[:start]):
        if word in THINGS:
            article = i - 1 if sentence[i - 1] in ("the", "a", "an") else i - 2
            things.append((word, article > 0 and sentence[article - 1] in PREPOSITIONS))
    if "fit" in sentence:
        big = sentence[-2] in ("big", "thick", "wide", "long")
        return things[0 if big else 1][0]
    return next(word for word, after_preposition in things if not after_preposition)


PREPOSITIONS = ("beside", "behind", "under", "on", "into")


@pytest.fixture(scope="module")
def every():
    """The sentences of validation and test, and as many for training."""
    return [*sentences("valid"), *sentences("test"), *sentences("train")[:4000]]


def test_genders_are_those_of_the_second_list():
    assert dict(THINGS.values()).items() <= GENDER.items()
    assert [sum(gender == g for _, gender in THINGS.values()) for g in "mfn"] == [30, 30, 30]
    assert [sum(THINGS[noun][1] == g for noun in HELD_OUT_NOUNS) for g in "mfn"] == [5, 5, 5]


@pytest.mark.slow
def test_cases_endings_verbs_and_their_places_are_right(every):
    for sentence in every:
        judge(sentence.texts[1])


def test_the_judge_refuses_wrong_german():
    right = "Der Mann räumte die alte Tasse unter dem Tisch weg , weil sie schmutzig war ."
    judge(right)
    for old, new in (
        ("Der Mann", "Die Mann"),
        ("die alte", "der alte"),
        ("alte", "alten"),
        ("dem Tisch", "den Tisch"),
        ("räumte", "räumten"),
        ("schmutzig war", "war schmutzig"),
        ("Mann räumte", "Mann die räumte"),
        ("sie", "ihn"),
        (" , weil", " , aber"),
    ):
        assert new != old and old in right
        with pytest.raises((AssertionError, KeyError)):
            judge(right.replace(old, new))


def test_both_sides_name_the_same_things_with_the_same_words_round_them(every):
    english_of = {german: english for english, (german, _) in THINGS.items()}
    german = words("neben hinter unter weil obwohl dass aber")
    english_of |= zip(german, words("beside behind under because although that but"), strict=True)

    def having(side, *tags):
        return [word for word in side if word.tag in tags]

    for sentence in every:
        phrases, translated = (
            [word.tag for word in having(side, "DET", "NOUN")]
            for side in (sentence.english, sentence.german)
        )
        assert phrases == translated
        for tag in ("NOUN", "PREP", "CONJ", "ADJ"):
            german = having(sentence.german, tag)
            for one, other in zip(having(sentence.english, tag), german, strict=True):
                text = other.text.lower() if tag == "PREP" else other.text
                assert english_of.get(text, one.text.lower()) == one.text.lower()


@pytest.mark.slow
def test_the_verbs_number_follows_the_english_subject(every):
    conjunctions = " because | although | when | but | and | that "
    for sentence in every:
        english = re.split(conjunctions, sentence.texts[0].lower())
        for clause, (subject, plural) in zip(english, judge(sentence.texts[1]), strict=True):
            if subject == ["sie"]:
                assert plural == ("they" in clause.split())


@pytest.mark.slow
def test_the_pronoun_agrees_with_what_the_rule_says_it_refers_to(every):
    for sentence in every:
        found = position(sentence.english, "pronoun"), position(sentence.german, "pronoun")
        if not sentence.gender:
            assert found == (-1, -1)
            assert not {"it", "its"} & {word.text for word in sentence.english}
            continue
        english, german = sentence.english[found[0]].text, sentence.german[found[1]].text
        noun = antecedent(sentence.texts[0])
        assert sentence.english[position(sentence.english, "antecedent")].text == noun
        translated = sentence.german[position(sentence.german, "antecedent")].text
        gender = GENDER[translated]
        assert (THINGS[noun][0], sentence.gender) == (translated, gender)
        forms = {"m": ("er", "ihn"), "f": ("sie",), "n": ("es",)}[gender]
        if english == "its":
            assert german.startswith("ihr" if gender == "f" else "sein")
        else:
            assert english == "it" and german in forms


def test_in_the_test_the_distractor_would_take_another_pronoun():
    n_distractors = 0
    for sentence in sentences("test"):
        where = position(sentence.german, "distractor")
        if where >= 0:
            n_distractors += 1
            other, gender = GENDER[sentence.german[where].text], sentence.gender
            its = sentence.template.endswith("its")
            assert (other == "f") != (gender == "f") if its else other != gender
    assert n_distractors > len(sentences("test")) / 2


def test_the_antecedent_is_second_after_a_fronted_phrase_or_where_it_is_too_small():
    for sentence in sentences("test"):
        small = words(sentence.texts[0])[-2] in ("small", "thin", "narrow", "short")
        fronted, fit = map(sentence.template.startswith, ("fronted", "fit"))
        assert controlled_corpus.antecedent_is_first(sentence) == (not (fronted or fit and small))
    without = [sentence for sentence in sentences("valid") if not sentence.gender]
    assert not any(map(controlled_corpus.antecedent_is_first, without))


def test_held_out_nouns_and_templates_are_in_no_training_sentence_with_a_pronoun():
    for split in ("train", "valid"):
        for sentence in sentences(split):
            assert sentence.template not in HELD_OUT_TEMPLATES
            if sentence.gender:
                assert not HELD_OUT_NOUNS & {word.text for word in sentence.english}
    parts = controlled_corpus.PARTS
    size = controlled_corpus.SIZE["test"] // len(parts)
    for number, expected in enumerate(parts.values()):
        part = sentences("test")[number * size : (number + 1) * size]
        assert {controlled_corpus.is_held_out(sentence) for sentence in part} == {expected}


@pytest.mark.slow
def test_every_word_and_each_half_of_a_held_out_template_occurs_in_training(every):
    met, known = (
        {word for sentence in some for text in sentence.texts for word in words(text)}
        for some in (every, sentences("train"))
    )
    assert met <= known
    trained = [sentence.template.split(" + ") for sentence in sentences("train") if sentence.gender]
    for template in HELD_OUT_TEMPLATES:
        first, second = template.split(" + ")
        assert any(one == first for one, _ in trained) and any(two == second for _, two in trained)


def test_no_sentence_is_in_two_splits_or_twice():
    size = controlled_corpus.SIZE
    texts = [english for split in size for english, _ in controlled_corpus.text_pairs(split)]
    assert len(set(texts)) == len(texts) == sum(size.values())


def test_an_unknown_split_is_named():
    with pytest.raises(ConfigError, match="split must be one of train, valid, test, got dev"):
        sentences("dev")
