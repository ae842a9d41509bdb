"""How the words of the built-in corpus inflect, English and Spanish.

Spanish paradigms are four forms: masculine and feminine singular, masculine and feminine plural. Persons are
counted I, you, he or she, we, they: 0 to 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Adjective = tuple[str, tuple[str, ...]]  # English, and the Spanish paradigm


@dataclass(frozen=True)
class Noun:
    english: tuple[str, ...]  # singular and plural; only the singular of what one has one of
    spanish: tuple[str, str]
    gender: int  # masculine, feminine
    kind: str
    preposition: str  # in the garden, on the beach, at the market


@dataclass(frozen=True)
class Verb:
    """Forms by tense ("present", "past", "future") and person; English makes its future with "will"."""

    base: str
    english: Mapping[str, tuple[str, ...]]
    infinitive: str
    spanish: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...] = ()  # kinds of nouns
    participle: str = ""  # the "going" of "be going to"
    stative: bool = False  # its past is the imperfect


def english_plural(word: str) -> str:
    if word.endswith("y") and not word.endswith("oy"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "to")) else "s")


def plural(word: str) -> str:
    """Gatos, flores, jardines, habitaciones, jóvenes."""
    if word[-1] in "aeiou":
        return word + "s"
    return {"joven": "jóven"}.get(word, word.replace("ín", "in").replace("ón", "on")) + "es"


def paradigm(adjective: str) -> tuple[str, ...]:
    """The four forms of an adjective, written out or regular: hermoso, grande, azul."""
    written = tuple(adjective.split("-"))
    if len(written) == 1:
        feminine = adjective[:-1] + "a" if adjective.endswith("o") else adjective
        written = adjective, feminine
    return written if len(written) == 4 else (*written, plural(written[0]), plural(written[1]))


def paradigms(entries: str) -> dict[str, tuple[str, ...]]:
    """By English word the Spanish forms, from entries of `english:paradigm`."""
    pairs = (entry.split(":") for entry in entries.split())
    return {english: paradigm(spanish) for english, spanish in pairs}


def choices(table: str) -> dict[str, list[list[Adjective]]]:
    """By kind of noun groups of adjectives, of which a thing can be but one: big or small, red or blue."""
    found: dict[str, list[list[Adjective]]] = {}
    for kind, row in _rows(table):
        found.setdefault(kind, []).extend(list(paradigms(group.replace("/", " ")).items()) for group in row.split())
    return found


def nouns(table: str) -> dict[str, list[Noun]]:
    """By kind, from entries of `english[/plural] spanish gender [preposition]`; the plural "-" stands for none."""
    found: dict[str, list[Noun]] = {}
    for kind, row in _rows(table):
        for entry in row.split(","):
            english, spanish, gender, *preposition = entry.split()
            singular, _, written = english.partition("/")
            both = (singular,) if written == "-" else (singular, written or english_plural(singular))
            made = Noun(both, (spanish, plural(spanish)), "mf".index(gender), kind, "".join(preposition))
            found.setdefault(kind, []).append(made)
    return found


def _rows(table: str) -> list[list[str]]:
    """The kind and the entries of each line; a kind may have several lines."""
    return [line.strip().split(": ", 1) for line in table.strip().splitlines()]


def verb(english: str, infinitive: str, objects: str = "", *, participle: str = "", stative: bool = False) -> Verb:
    """From `base third-person past`, and from the tables of the irregular Spanish forms."""
    base, third, past = english.split()
    known = {"present": (base, base, third, base, base), "past": (past,) * 5}
    if base == "be":
        known = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
    spanish = {}
    for tense in ("present", "past", "future"):
        name = tense if tense != "past" else "imperfect" if stative else "preterite"
        stem = FUTURE_STEMS.get(infinitive, infinitive) if tense == "future" else infinitive[:-2]
        regular = " ".join(stem + ending for ending in ENDINGS[infinitive[-2:], name].split())
        spanish[tense] = tuple(IRREGULAR.get(f"{infinitive} {name}", regular).split())
    return Verb(base, known, infinitive, spanish, tuple(objects.split()), participle, stative)


ENDINGS = {
    ("ar", "present"): "o as a amos an",
    ("er", "present"): "o es e emos en",
    ("ir", "present"): "o es e imos en",
    ("ar", "preterite"): "é aste ó amos aron",
    ("er", "preterite"): "í iste ió imos ieron",
    ("ir", "preterite"): "í iste ió imos ieron",
    ("ar", "imperfect"): "aba abas aba ábamos aban",
    ("er", "imperfect"): "ía ías ía íamos ían",
    ("ir", "imperfect"): "ía ías ía íamos ían",
    **{(kind, "future"): "é ás á emos án" for kind in ("ar", "er", "ir")},
}
FUTURE_STEMS = {"tener": "tendr", "decir": "dir", "querer": "querr", "saber": "sabr"}
IRREGULAR = {
    "ser present": "soy eres es somos son",
    "ser imperfect": "era eras era éramos eran",
    "estar present": "estoy estás está estamos están",
    "haber present": "hay hay hay hay hay",
    "haber imperfect": "había había había había había",
    "haber future": "habrá habrá habrá habrá habrá",
    "ir present": "voy vas va vamos van",
    "ir preterite": "fui fuiste fue fuimos fueron",
    "tener present": "tengo tienes tiene tenemos tienen",
    "querer present": "quiero quieres quiere queremos quieren",
    "encontrar present": "encuentro encuentras encuentra encontramos encuentran",
    "cerrar present": "cierro cierras cierra cerramos cierran",
    "perder present": "pierdo pierdes pierde perdemos pierden",
    "conocer present": "conozco conoces conoce conocemos conocen",
    "dormir present": "duermo duermes duerme dormimos duermen",
    "dormir preterite": "dormí dormiste durmió dormimos durmieron",
    "ver present": "veo ves ve vemos ven",
    "ver preterite": "vi viste vio vimos vieron",
    "decir present": "digo dices dice decimos dicen",
    "decir preterite": "dije dijiste dijo dijimos dijeron",
    "saber present": "sé sabes sabe sabemos saben",
}
