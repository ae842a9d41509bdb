"""How the words of the built-in corpus inflect, English and Spanish.

Spanish paradigms are four forms: masculine and feminine singular, masculine and feminine plural. Persons are
counted I, you, he or she, we, they: 0 to 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Adjective = tuple[str, tuple[str, ...]]  # English, and the Spanish paradigm


@dataclass(frozen=True)
class Noun:
    english: tuple[str, ...]  # singular and plural; only the singular if one has just one
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


def paradigms(entries: str) -> dict[str, tuple[str, ...]]:
    """Spanish forms by English word, from entries of `english:paradigm`, written out or regular: hermoso, azul."""
    found = {}
    for entry in entries.split():
        english, forms = entry.split(":")
        written = forms.split("-")
        if len(written) == 1:
            written.append(forms[:-1] + "a" if forms.endswith("o") else forms)
        if len(written) == 2:
            written += [plural(form) for form in written]
        found[english] = tuple(written)
    return found


def choices(table: str) -> dict[str, list[list[Adjective]]]:
    """Groups of adjectives by kind of noun; a thing can be only one of a group: big or small, red or blue."""
    found: dict[str, list[list[Adjective]]] = {}
    for kind, row in _rows(table):
        found.setdefault(kind, []).extend(list(paradigms(group.replace("/", " ")).items()) for group in row.split())
    return found


def nouns(table: str) -> dict[str, list[Noun]]:
    """Nouns by kind, from entries of `english[/plural] spanish gender [preposition]`; the plural "-" means none."""
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
    """A verb from its English `base third-person past` and the tables of irregular Spanish forms."""
    base, third, past = english.split()
    known = {"present": (base, base, third, base, base), "past": (past,) * 5}
    if base == "be":
        known = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
    spanish = {}
    for tense in ("present", "past", "future"):
        name = tense if tense != "past" else "imperfect" if stative else "preterite"
        stem = FUTURE_STEMS.get(infinitive, infinitive) if tense == "future" else infinitive[:-2]
        stressed = STRESSED_STEMS.get(infinitive, stem) if tense == "present" else stem
        endings = ENDINGS[name][infinitive[-2:]].split()
        regular = " ".join((stem if ending.endswith("mos") else stressed) + ending for ending in endings)
        spanish[tense] = tuple(IRREGULAR.get(infinitive, {}).get(name, regular).split())
    return Verb(base, known, infinitive, spanish, tuple(objects.split()), participle, stative)


ENDINGS = {
    "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
    "preterite": {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"},
    "imperfect": {"ar": "aba abas aba ábamos aban", "er": "ía ías ía íamos ían", "ir": "ía ías ía íamos ían"},
    "future": dict.fromkeys(("ar", "er", "ir"), "é ás á emos án"),
}
STRESSED_STEMS = {"querer": "quier", "encontrar": "encuentr", "cerrar": "cierr", "perder": "pierd", "dormir": "duerm"}
FUTURE_STEMS = {"tener": "tendr", "decir": "dir", "querer": "querr", "saber": "sabr"}
IRREGULAR = {
    "ser": {"present": "soy eres es somos son", "imperfect": "era eras era éramos eran"},
    "estar": {"present": "estoy estás está estamos están"},
    "haber": {"present": "hay " * 5, "imperfect": "había " * 5, "future": "habrá " * 5},
    "ir": {"present": "voy vas va vamos van", "preterite": "fui fuiste fue fuimos fueron"},
    "tener": {"present": "tengo tienes tiene tenemos tienen"},
    "conocer": {"present": "conozco conoces conoce conocemos conocen"},
    "dormir": {"preterite": "dormí dormiste durmió dormimos durmieron"},
    "ver": {"present": "veo ves ve vemos ven", "preterite": "vi viste vio vimos vieron"},
    "decir": {"present": "digo dices dice decimos dicen", "preterite": "dije dijiste dijo dijimos dijeron"},
    "saber": {"present": "sé sabes sabe sabemos saben"},
}
