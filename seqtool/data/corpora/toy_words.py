"""Reads the words of the built-in corpus from toy_words.yaml, and inflects them.

A Spanish paradigm has four forms: masculine and feminine singular, masculine and feminine plural. Persons are
numbered 0 to 4: I, you, he or she, we, they.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Adjective = tuple[str, tuple[str, ...]]  # English, and the Spanish paradigm


class Noun(NamedTuple):
    english: tuple[str, ...]  # singular and plural; only the singular if the plural is not used, as of "father"
    spanish: tuple[str, str]  # singular and plural
    gender: int  # 0: masculine, 1: feminine
    kind: str  # determines which verbs and adjectives suit the noun
    preposition: str  # "in" the garden, "on" the beach, "at" the market


class Verb(NamedTuple):
    """A verb, with its forms by tense ("present", "past", "future") and person; the English future needs none."""

    base: str
    english: Mapping[str, tuple[str, ...]]
    infinitive: str
    spanish: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...] = ()  # the kinds of nouns that can be its object
    participle: str = ""  # "going" in "be going to"
    gerund: str = ""  # "comiendo" in "estar comiendo"
    stative: bool = False  # whether its past is the imperfect


def english_plural(word: str) -> str:
    if word.endswith("y") and not word.endswith("oy"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "to")) else "s")


def spanish_plural(word: str) -> str:
    """The plural of a noun or adjective: gatos, flores, jardines, habitaciones, jóvenes."""
    if word[-1] in "aeiou":
        return word + "s"
    return {"joven": "jóven"}.get(word, word.replace("ín", "in").replace("ón", "on")) + "es"


def paradigms(entries: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Spanish paradigms by English word; an entry has four forms, two (the singular) or one, joined by "-"."""
    by_word = {}
    for english, entry in entries.items():
        forms = entry.split("-")
        if len(forms) == 1:
            forms.append(entry[:-1] + "a" if entry.endswith("o") else entry)
        if len(forms) == 2:
            forms += [spanish_plural(form) for form in forms]
        by_word[english] = tuple(forms)
    return by_word


def adjectives(by_kind: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, list[list[Adjective]]]:
    """The groups of adjectives that describe the same property, by the kind of their noun."""
    return {kind: [list(paradigms(group).items()) for group in groups] for kind, groups in by_kind.items()}


def noun(english: str, form: str, kind: str) -> Noun:
    """Read a noun from its entry, `english[/plural]: spanish gender [preposition]`, where "/-" means no plural."""
    spanish, gender, *preposition = form.split()
    singular, _, plural = english.partition("/")
    english_forms = (singular,) if plural == "-" else (singular, plural or english_plural(singular))
    return Noun(english_forms, (spanish, spanish_plural(spanish)), "mf".index(gender), kind, "".join(preposition))


def verb(
    infinitive: str, english: str, objects: Sequence[str] = (), participle: str = "", stative: bool = False
) -> Verb:
    """Make a verb from its English `base third-person past` and the tables of Spanish endings and irregular forms."""
    base, third, past = english.split()
    forms = {"present": (base, base, third, base, base), "past": (past,) * 5}
    if base == "be":
        forms = {"present": ("am", "are", "is", "are", "are"), "past": ("was", "were", "was", "were", "were")}
    spanish = {}
    names = {"present": "present", "past": "imperfect" if stative else "preterite", "future": "future"}
    for tense, name in names.items():
        stem = TABLES["future_stems"].get(infinitive, infinitive) if tense == "future" else infinitive[:-2]
        stressed = TABLES["stressed_stems"].get(infinitive, stem) if tense == "present" else stem
        endings = TABLES["endings"][name][infinitive[-2:]].split()
        regular = " ".join((stem if ending.endswith("mos") else stressed) + ending for ending in endings)
        spanish[tense] = tuple(TABLES["irregular"].get(infinitive, {}).get(name, regular).split())
    if base != "be" and not participle:
        participle = (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
    ending = "ando" if infinitive.endswith("ar") else "iendo"
    gerund = TABLES["irregular"].get(infinitive, {}).get("gerund", infinitive[:-2] + ending)
    return Verb(base, forms, infinitive, spanish, tuple(objects), participle, gerund, stative)


TABLES: dict[str, Any] = yaml.load(Path(__file__).with_suffix(".yaml").read_bytes(), yaml.CSafeLoader)  # type: ignore[no-untyped-call]

VERBS = {
    group: [verb(infinitive, **entry) for infinitive, entry in entries.items()]
    for group, entries in TABLES["verbs"].items()
}
SER, ESTAR, HABER = VERBS["being"]
(GOING,), (LIKE,) = VERBS["going"], VERBS["liking"]
TRANSITIVE, STAYING, MOVING, SAYING = (VERBS[group] for group in ("transitive", "staying", "moving", "saying"))
HAVE, WANT, NEED, *_ = TRANSITIVE
(EAT,) = (verb for verb in TRANSITIVE if verb.base == "eat")
ANIMAL = STAYING[-2:]  # verbs whose subject may be an animal
MODALS = [(GOING, "a:0"), (WANT, ""), (NEED, ""), (HAVE, "que:0")]  # each with the translation of "to"

NOUNS = {
    kind: [noun(english, form, kind) for english, form in entries.items()] for kind, entries in TABLES["nouns"].items()
}
HUMAN = ("person", "kin")
NAMES, PRONOUNS, CLITICS, DATIVES = (TABLES[name] for name in ("names", "pronouns", "clitics", "datives"))
PROFESSIONS, DETERMINERS = paradigms(TABLES["professions"]), paradigms(TABLES["determiners"])
NUMBERS = list(TABLES["numbers"].items())
# Determiners to choose from, in the order of the table
POSSESSIVES, DEFINITE, INDEFINITE, ANY, NEGATED, LACKING, SUBJECT, LOCAL, SINGULAR, PLURAL = (
    choices.split() for choices in TABLES["choices"].values()
)

# adjectives that precede the noun; that follow it, or stand with ser; that stand with estar
BEFORE, AFTER, STATE = paradigms(TABLES["before"]), adjectives(TABLES["after"]), adjectives(TABLES["state"])
ABSOLUTE = TABLES["absolute"]

TIMES = {tense: list(phrases.items()) for tense, phrases in TABLES["times"].items()}
ADVERBS = list(TABLES["adverbs"].items())
