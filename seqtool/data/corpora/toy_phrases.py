"""Phrases of the built-in corpus, in both languages at once: subjects, objects, places, descriptions.

Spanish words hold the English words that they came from, so phrases are joined without counting positions.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from seqtool.data.corpora import toy_words as words
from seqtool.data.corpora.toy_inflection import Adjective, Noun, Verb

T = TypeVar("T")


class Draw:
    """Choices made only with random(), the one sequence that stays the same in every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability


@dataclass(frozen=True, eq=False)
class Word:
    """A word of either language; a Spanish one also has the English word that it surely, or possibly, came from."""

    text: str
    sure: "Word | None" = None
    possible: tuple["Word", ...] = ()


@dataclass(frozen=True)
class Phrase:
    source: tuple[Word, ...] = ()
    target: tuple[Word, ...] = ()

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.source + other.source, self.target + other.target)


@dataclass(frozen=True)
class Nominal(Phrase):
    """A subject or object, with the features that verbs and adjectives agree with."""

    person: int = 2  # the verb's: I, you, he, we, they
    gender: int = 0
    heads: tuple[Word, ...] = ()  # the words that decide the gender
    kind: str = "person"

    @property
    def plural(self) -> bool:
        return self.person >= 3


NOTHING = Phrase()


def phrase(english: str, spanish: str) -> Phrase:
    """Words with their links: "last week" gave "la~1 semana:1 pasada:0~1"."""
    source = tuple(Word(word) for word in english.split())
    target = []
    for entry in spanish.split():
        rest, *possible = entry.split("~")
        text, _, sure = rest.partition(":")
        target.append(Word(text, source[int(sure)] if sure else None, tuple(source[int(i)] for i in possible)))
    return Phrase(source, tuple(target))


def agreeing(english: str, forms: Sequence[str], noun: Nominal) -> Phrase:
    """An article or adjective; if its form shows the gender, the noun's heads are possible links."""
    word = Word(english)
    genders = forms[2 * noun.plural : 2 * noun.plural + 2]
    return Phrase((word,), (Word(genders[noun.gender], word, noun.heads if genders[0] != genders[1] else ()),))


def subject(draw: Draw, asked: bool = False) -> Nominal:
    shape = draw.random()
    if shape < 0.55:
        return one_word(draw, words.PRONOUNS[asked:], said=False)  # nobody asks what "I" do
    if shape < 0.85:
        return noun_phrase(draw, words.HUMAN, words.SUBJECT)
    if shape < 0.93:
        return one_word(draw, words.NAMES)
    first, second = one_word(draw, words.NAMES[:-1]), one_word(draw, words.NAMES[-1:])
    if draw.chance(0.6):
        second = noun_phrase(draw, ("kin",), words.POSSESSIVES)
    both = first + phrase("and", "y:0") + second
    return Nominal(both.source, both.target, 4, min(first.gender, second.gender), first.heads + second.heads)


def one_word(draw: Draw, options: Sequence[tuple[str, int, int]], *, said: bool = True) -> Nominal:
    """A name, or a pronoun, which Spanish drops."""
    text, person, gender = draw.pick(options)
    word = Word(text)
    return Nominal((word,), (Word(text, word),) if said else (), person, gender, (word,))


def personal(thing: Nominal, verb: Verb) -> Phrase:
    """Persons take the preposition a, except after tener."""
    if thing.kind in words.HUMAN and verb is not words.HAVE:
        return Phrase((), (Word("a", None, thing.heads),)) + thing
    return thing


def location(draw: Draw, kinds: Sequence[str]) -> Phrase:
    noun = draw.pick(words.NOUNS[draw.pick(kinds)])
    usual = (noun.preposition, "en:0")
    relation = draw.pick((usual, usual, usual, usual, ("near", "cerca:0 de~0"), ("behind", "detrás:0 de~0")))
    return phrase(*relation) + noun_phrase(draw, kinds, words.LOCAL, noun=noun)


def noun_phrase(draw: Draw, kinds: Sequence[str], determiners: Sequence[str], *, noun: Noun | None = None) -> Nominal:
    """A determiner, adjectives and a noun of one of the kinds."""
    noun = noun or draw.pick(words.NOUNS[draw.pick(kinds)])
    chosen = draw.pick(determiners)
    single = len(noun.english) == 1
    if noun.kind == "kin" and (single or "my" in determiners):
        chosen = draw.pick(words.POSSESSIVES)
    elif noun.kind == "person" and chosen in (*words.POSSESSIVES, "bare"):
        chosen = "the"
    many = chosen in words.PLURAL
    if not (many or single or chosen in words.SINGULAR or determiners is words.LOCAL):
        many = draw.chance(0.25)
    head = Word(noun.english[many])
    bare = Nominal((head,), (Word(noun.spanish[many], head),), 4 if many else 2, noun.gender, (head,), noun.kind)

    before = after = NOTHING
    if draw.chance(0.1) and not single and chosen not in ("another", "many", "bare"):
        ranked = chosen in words.DEFINITE and chosen != "this"
        word = draw.pick(tuple(words.BEFORE) if ranked else ("good", "bad", "great"))
        before = agreeing(word, words.BEFORE[word], bare)
    elif draw.chance(0.2 if determiners is words.LOCAL else 0.45):
        after = description(draw, words.AFTER[noun.kind], bare)
    before = determiner(draw, chosen, bare) + before
    source, target = before.source + after.source + bare.source, before.target + bare.target + after.target
    if noun.kind == "part" and chosen == "the":  # the door of the house
        whole = phrase("of", "de:0") + noun_phrase(draw, ("home", "place"), words.LOCAL)
        source, target = source + whole.source, target + whole.target
    return replace(bare, source=source, target=target)


def determiner(draw: Draw, chosen: str, noun: Nominal) -> Phrase:
    if chosen == "bare":
        return NOTHING
    if chosen == "number":
        first = draw.pick(range(len(words.NUMBERS) - 1))
        low, high = (phrase(*f"{entry}:0".split()) for entry in words.NUMBERS[first : first + 2])
        return low + phrase("or", "o:0") + high if draw.chance(0.25) else low
    english = "these" if chosen == "this" and noun.plural else chosen
    return agreeing(english, words.DETERMINERS[chosen], noun)


def description(draw: Draw, groups: Sequence[Sequence[Adjective]], noun: Nominal, *, predicate: bool = False) -> Phrase:
    """Big, very big, or two of different groups: big and expensive; in predicates also small but modern."""
    group = draw.pick(groups)
    english, forms = draw.pick(group)
    made = agreeing(english, forms, noun)
    others = [other for other in groups if other is not group]
    if others and draw.chance(0.2 if predicate else 0.06):
        joined = contrast(draw) if predicate else phrase("and", "y:0")
        return made + joined + agreeing(*draw.pick(draw.pick(others)), noun)
    if english not in words.ABSOLUTE and draw.chance(0.15):
        return phrase("very", "muy:0") + made
    return made


def contrast(draw: Draw) -> Phrase:
    return draw.pick((phrase("and", "y:0"), phrase("but", "pero:0")))
