"""The words of the controlled corpus: nouns with gender, verbs with forms, endings, pronouns."""

from __future__ import annotations

_THINGS = {
    "m": """table Tisch chair Stuhl spoon Löffel key Schlüssel apple Apfel coat Mantel hat Hut
            suitcase Koffer basket Korb plate Teller pot Topf ball Ball letter Brief stone Stein
            mirror Spiegel cupboard Schrank carpet Teppich shoe Schuh ring Ring comb Kamm
            broom Besen bucket Eimer hammer Hammer nail Nagel stick Stock umbrella Schirm
            skirt Rock belt Gürtel cake Kuchen glove Handschuh""",
    "f": """cup Tasse lamp Lampe bottle Flasche fork Gabel bowl Schüssel crate Kiste bag Tasche
            clock Uhr newspaper Zeitung chain Kette jacket Jacke cap Mütze flower Blume pear Birne
            onion Zwiebel candle Kerze blanket Decke brush Bürste saw Säge ladder Leiter
            shovel Schaufel violin Geige drum Trommel flute Flöte doll Puppe coin Münze map Karte
            box Schachtel feather Feder pan Pfanne""",
    "n": """book Buch knife Messer glass Glas picture Bild shirt Hemd dress Kleid cushion Kissen
            bed Bett radio Radio telephone Telefon bicycle Fahrrad boat Boot board Brett egg Ei
            notebook Heft leaf Blatt rope Seil net Netz wheel Rad sword Schwert piano Klavier
            sofa Sofa shelf Regal barrel Fass parcel Paket toy Spielzeug towel Handtuch scarf Tuch
            tent Zelt sieve Sieb""",
}
THINGS: dict[str, tuple[str, str]] = {
    english: (german, gender)
    for gender, nouns in _THINGS.items()
    for english, german in zip(nouns.split()[::2], nouns.split()[1::2], strict=True)
}
"""Nouns for things, English to German and its gender: "m", "f" or "n"; thirty of each."""
_HELD_OUT = (
    "carpet comb bucket nail glove blanket saw violin coin pan radio board wheel barrel towel"
)
HELD_OUT_NOUNS = frozenset(_HELD_OUT.split())
"""Five of each gender, in no training sentence with a pronoun."""

PERSONS = {  # English plural, German singular and plural, gender
    "man": ("men", "Mann", "Männer", "m"),
    "woman": ("women", "Frau", "Frauen", "f"),
    "child": ("children", "Kind", "Kinder", "n"),
    "girl": ("girls", "Mädchen", "Mädchen", "n"),
    "boy": ("boys", "Junge", "Jungen", "m"),
    "doctor": ("doctors", "Arzt", "Ärzte", "m"),
    "aunt": ("aunts", "Tante", "Tanten", "f"),
    "uncle": ("uncles", "Onkel", "Onkel", "m"),
    "queen": ("queens", "Königin", "Königinnen", "f"),
    "teacher": ("teachers", "Lehrer", "Lehrer", "m"),
}
SUBJECT_PRONOUNS = {"he": ("er", False), "she": ("sie", False), "they": ("sie", True)}  # a plural?
PARTS_OF_THINGS = {
    "colour": ("Farbe", "f"),
    "price": ("Preis", "m"),
    "shape": ("Form", "f"),
    "edge": ("Rand", "m"),
    "pattern": ("Muster", "n"),
    "end": ("Ende", "n"),
}
ADJECTIVES = {
    "old": "alt",
    "new": "neu",
    "red": "rot",
    "green": "grün",
    "blue": "blau",
    "white": "weiß",
    "black": "schwarz",
    "beautiful": "schön",
    "ugly": "hässlich",
    "strange": "seltsam",
    "dirty": "schmutzig",
    "clean": "sauber",
    "heavy": "schwer",
    "light": "leicht",
}
SIZES = {  # 1: of two things that do not fit, this is the first; -1: the second
    "big": ("groß", 1),
    "small": ("klein", -1),
    "thick": ("dick", 1),
    "thin": ("dünn", -1),
    "wide": ("breit", 1),
    "narrow": ("schmal", -1),
    "long": ("lang", 1),
    "short": ("kurz", -1),
}
# Here all with the dative.
PREPOSITIONS = {"beside": "neben", "behind": "hinter", "under": "unter", "on": "auf"}
FIT = {"into": "in", "under": "unter"}  # did not fit into, passte nicht in: with the accusative
CONJUNCTIONS = {  # True: verb last
    "because": ("weil", True),
    "although": ("obwohl", True),
    "when": ("als", True),
    "but": ("aber", False),
    "and": ("und", False),
}
TRANSITIVE = {  # German singular and plural
    "bought": ("kaufte", "kauften"),
    "sold": ("verkaufte", "verkauften"),
    "found": ("fand", "fanden"),
    "noticed": ("bemerkte", "bemerkten"),
    "cleaned": ("putzte", "putzten"),
    "painted": ("bemalte", "bemalten"),
    "lost": ("verlor", "verloren"),
    "carried": ("trug", "trugen"),
    "stole": ("stahl", "stahlen"),
    "forgot": ("vergaß", "vergaßen"),
}
PARTICLE_VERBS = {  # German singular, plural, particle
    ("put", "away"): ("räumte", "räumten", "weg"),
    ("put", "down"): ("legte", "legten", "hin"),
    ("put", "back"): ("stellte", "stellten", "zurück"),
    ("took", "away"): ("nahm", "nahmen", "weg"),
    ("took", "along"): ("nahm", "nahmen", "mit"),
    ("took", "out"): ("holte", "holten", "heraus"),
    ("picked", "up"): ("hob", "hoben", "auf"),
    ("picked", "out"): ("suchte", "suchten", "aus"),
    ("brought", "back"): ("brachte", "brachten", "zurück"),
    ("brought", "along"): ("brachte", "brachten", "mit"),
}
INTRANSITIVE = {  # German verb and particle
    "fell over": ("fiel", "um"),
    "broke": ("zerbrach", ""),
    "disappeared": ("verschwand", ""),
    "wobbled": ("wackelte", ""),
    "burned": ("brannte", ""),
}
# By gender and case: "the", the ending of "a" and "its", an adjective's ending after "the", after
# "a".
ENDINGS = {
    ("m", "nom"): ("der", "", "e", "er"),
    ("m", "acc"): ("den", "en", "en", "en"),
    ("m", "dat"): ("dem", "em", "en", "en"),
    ("f", "nom"): ("die", "e", "e", "e"),
    ("f", "acc"): ("die", "e", "e", "e"),
    ("f", "dat"): ("der", "er", "en", "en"),
    ("n", "nom"): ("das", "", "e", "es"),
    ("n", "acc"): ("das", "", "e", "es"),
    ("n", "dat"): ("dem", "em", "en", "en"),
}
IT = {"nom": {"m": "er", "f": "sie", "n": "es"}, "acc": {"m": "ihn", "f": "sie", "n": "es"}}
ITS = {"m": "sein", "f": "ihr", "n": "sein"}
