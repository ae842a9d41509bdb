"""The built-in corpus: English sentences, their Spanish translations, and the alignments of their words.

A small grammar in the spirit of "I have a big cat but a small house." → "Tengo un gato grande pero una casa
pequeña.". The English determines the Spanish: "you" is always tú, a person of unknown sex is masculine,
past actions are in the preterite and past states in the imperfect. The words are in `toy_words.py`. The grammar here
builds a sentence in both languages at once, and `surface` turns it into text and an alignment.

A Spanish word that has a counterpart has exactly one sure link: a verb is linked to the verb, not to the dropped
pronoun. A Spanish word has possible links in these cases:

- If its form shows a gender, to the word that decides the gender.
- If it is "¿", to "?".
- If it has no counterpart, to the word that requires it: "cerca *de*" to "near", "veo *a* mi hermano" to the person.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from seqtool.data.corpora import toy_words as words
from seqtool.data.corpora.draw import StableRandom
from seqtool.data.corpora.toy_words import Adjective, Noun, Verb, english_plural

GRAMMAR = words.TABLES["grammar"]  # part of a cache's name
LONG_VERSION = "2"  # change it when the grammar generates different text for corpora with longer sentences
CONTINUOUS_VERSION = "1"  # the same for corpora with continuous tenses
MIN_WORDS, MAX_WORDS = 3, 25  # limits of a sentence; punctuation marks count only towards the maximum
MAX_LONG_WORDS = 100  # the largest maximum for corpora with longer sentences
CONTRACTIONS = {"a": "al", "de": "del"}  # with "el"; they have a sure link to "to" or "of", a possible one to "the"
TENSES = ("present", "present", "past", "past", "future")  # a tense that occurs twice is chosen twice as often
CONTINUOUS = ("present continuous", "present continuous", "past continuous")  # further tenses: is eating, was eating

# Words and phrases


@dataclass(frozen=True, eq=False)
class Word:
    """A word of either language.

    A Spanish word refers to the English words to which it is linked, not to their positions, so that phrases can be
    joined freely.
    """

    text: str
    sure: "Word | None" = None
    possible: tuple["Word", ...] = ()


@dataclass(frozen=True)
class Phrase:
    """Part of a sentence, in both languages."""

    source: tuple[Word, ...] = ()
    target: tuple[Word, ...] = ()

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.source + other.source, self.target + other.target)


@dataclass(frozen=True)
class Nominal(Phrase):
    """A subject or object, with the features that verbs and adjectives agree with."""

    person: int = 2  # 0 to 4: I, you, he or she, we, they
    gender: int = 0  # 0: masculine, 1: feminine
    heads: tuple[Word, ...] = ()  # the words that decide the gender
    kind: str = "person"  # a key of `words.NOUNS`, or "who"

    @property
    def plural(self) -> bool:
        return self.person >= 3  # we, they


NOTHING = Phrase()


def phrase(english: str, spanish: str) -> Phrase:
    """Make a phrase. After a Spanish word, ":" gives the index of the English word with a sure link to it, and "~" the
    indices of words with possible links: "pasada:0~1".
    """
    source = tuple(Word(word) for word in english.split())
    target = []
    for entry in spanish.split():
        word, *possible = entry.split("~")
        text, _, sure = word.partition(":")
        target.append(Word(text, source[int(sure)] if sure else None, tuple(source[int(i)] for i in possible)))
    return Phrase(source, tuple(target))


def agree(english: str, forms: Sequence[str], noun: Nominal) -> Phrase:
    """Make an article or adjective agree with the noun, with possible links to its heads if the form shows a gender."""
    word = Word(english)
    genders = forms[2 * noun.plural : 2 * noun.plural + 2]
    return Phrase((word,), (Word(genders[noun.gender], word, noun.heads if genders[0] != genders[1] else ()),))


# The corpus


class Pair(NamedTuple):
    """A sentence, its translation, and their alignment in Pharaoh format: `i-j` sure, `i?j` possible."""

    source: str
    target: str
    alignment: str


def generate(
    *, seed: int, train: int, valid: int, test: int, longest: int = MAX_WORDS, continuous: bool = False
) -> dict[str, list[Pair]]:
    """Return the three splits. train, valid, test: their numbers of pairs

    With `longest` above MAX_WORDS, sentences have any number of clauses. The lengths of test and valid are spread
    evenly; in train, all lengths have about the same number of words. Lengths near `longest` are rare, since sentences
    that turn out longer are rejected, not cut. With `continuous`, some clauses are in the continuous tenses, and the
    first test sentence is "We are eating bread."

    No source and no target occurs twice, in one split or in two. Equal seeds give equal corpora in every version of
    Python. The pairs of test and valid do not depend on the size of train.
    """
    rng, tenses = StableRandom(seed), TENSES + CONTINUOUS * continuous
    sentences: set[str] = set()
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for name, size in (("test", test), ("valid", valid), ("train", train)):
        while len(splits[name]) < size:
            if continuous and not sentences:
                we = Nominal((Word("we"),), person=3)
                utterance = statement(assemble(we, words.EAT, "present continuous", phrase("bread", "pan:0")))
            elif longest == MAX_WORDS:
                utterance = sentence(rng, tenses)
            else:
                fraction = rng.random()
                min_words = int(longest**fraction) if name == "train" else 1 + int(longest * fraction)
                utterance = long_sentence(rng, min_words, tenses)
            pair = surface(utterance, longest)
            if pair is not None and not sentences & {pair.source, pair.target}:
                sentences.update((pair.source, pair.target))
                splits[name].append(pair)
    return splits


def surface(utterance: Phrase, longest: int = MAX_WORDS) -> Pair | None:
    """Write a statement or question as text and alignment; None with fewer than MIN_WORDS or more than `longest` words.

    Contractions ("del"), changed conjunctions ("e" before "i"), "an", spaces and capitals are put in.
    """
    target: list[Word] = []
    for word in utterance.target:
        previous = target[-1] if target else word
        if word.text == "el" and previous.text in CONTRACTIONS:
            possible = *previous.possible, *word.possible, *((word.sure,) if word.sure else ())
            target[-1] = Word(CONTRACTIONS[previous.text], previous.sure or word.sure, possible)
            continue
        if previous.text == "y" and word.text.lower().startswith(("i", "hi")):
            target[-1] = replace(previous, text="e")
        elif previous.text == "o" and word.text.startswith(("o", "ho")):
            target[-1] = replace(previous, text="u")
        target.append(word)

    english = [word.text for word in utterance.source]
    for i, next_word in enumerate(english[1:]):
        if english[i] == "a" and next_word[0] in "aeiou":
            english[i] = "an"
    spanish = [word.text for word in target]
    lengths = [sum(text not in ".,?¿" for text in side) for side in (english, spanish)]
    if min(lengths) < MIN_WORDS or max(len(english), len(spanish)) > longest:
        return None

    position = {word: i for i, word in enumerate(utterance.source)}
    links = []
    for j, word in enumerate(target):
        sure = {position[word.sure]} if word.sure else set()
        links += [f"{i}-{j}" for i in sure]
        links += [f"{i}?{j}" for i in sorted({position[other] for other in word.possible} - sure)]
    return Pair(write_sentence(english), write_sentence(spanish), " ".join(links))


def write_sentence(texts: Sequence[str]) -> str:
    """Join words and punctuation marks to a sentence, with a capital letter."""
    text = re.sub(r" (?=[.,?])|(?<=¿) ", "", " ".join(texts))  # no space between a word and its punctuation mark
    start = int(text.startswith("¿"))
    return text[:start] + text[start].upper() + text[start + 1 :]


# Sentences


def sentence(rng: StableRandom, tenses: Sequence[str] = TENSES) -> Phrase:
    """Make a question, or a statement of one or two clauses."""
    tense = rng.pick(tenses)
    choice = rng.random()
    if choice < 0.12:
        return question(clause(rng, tense, is_question=True))
    if choice < 0.20:
        return question(open_question(rng, tense))
    if choice < 0.58:
        return statement(clause(rng, tense, time="anywhere"))
    if choice < 0.70:  # My mother bought a red car but sold the house.
        who = subject(rng)
        implied = replace(who, source=(), target=())
        return statement(action(rng, who, tense) + contrast(rng) + action(rng, implied, tense))
    if choice < 0.78:
        return statement(clause(rng, tense) + phrase(",", ",:0") + contrast(rng) + clause(rng, tense))
    if choice < 0.86:
        return statement(clause(rng, tense) + phrase("because", "porque:0") + clause(rng, tense))
    if choice < 0.90:
        tense = rng.pick(("present", "past"))
        return statement(phrase("when", "cuando:0") + clause(rng, tense) + phrase(",", ",:0") + clause(rng, tense))
    if choice < 0.94:
        condition = phrase("if", "si:0") + clause(rng, "present") + phrase(",", ",:0")
        return statement(condition + clause(rng, "future"))
    thought = phrase("that", "que:0") + clause(rng, tense)
    who, verb = subject(rng), rng.pick(words.SAYING)
    return statement(assemble(who, verb, "past" if tense == "past" else "present", thought))


def long_sentence(rng: StableRandom, min_words: int, tenses: Sequence[str]) -> Phrase:
    """Join clauses by conjunctions until they have `min_words` English words."""
    clauses = clause(rng, rng.pick(tenses))
    while len(clauses.source) < min_words:
        conjunction = phrase("because", "porque:0") if rng.chance(0.3) else phrase(",", ",:0") + contrast(rng)
        clauses += conjunction + clause(rng, rng.pick(tenses))
    return statement(clauses)


def statement(clauses: Phrase) -> Phrase:
    return clauses + phrase(".", ".:0")


def question(clauses: Phrase) -> Phrase:
    end = phrase("?", "?:0")
    return Phrase((), (Word("¿", None, end.source),)) + clauses + end


def open_question(rng: StableRandom, tense: str) -> Phrase:
    """Make a question with "who", "where", "why" or "when"."""
    choice = rng.random()
    if choice < 0.35:
        who = phrase("who", "quién:0")
        return action(rng, Nominal(who.source, who.target, kind="who"), tense)
    if choice < 0.6:
        thing = noun_phrase(rng, ("kin", "animal", "text", "thing", "clothes", "place"), words.DEFINITE)
        return phrase("where", "dónde:0") + assemble(thing, words.ESTAR, tense, NOTHING, is_question=True)
    adverb = rng.pick((phrase("why", "por:0 qué:0"), phrase("when", "cuándo:0")))
    return adverb + action(rng, subject(rng, is_question=True), tense, is_question=True, time="nowhere")


# Clauses


def clause(rng: StableRandom, tense: str, *, is_question: bool = False, time: str = "last") -> Phrase:
    """Make a clause, in the word order of a question if `is_question`; see `action` for `time`."""
    choice = rng.random()
    if choice < 0.55:
        return action(rng, subject(rng, is_question), tense, is_question=is_question, time=time)
    if choice < 0.70:
        return be_clause(rng, subject(rng, is_question), tense, is_question)
    if choice < 0.83:
        return be_clause(rng, thing_phrase(rng), tense, is_question)
    if choice < 0.88:  # The dog sleeps in the garden.
        animal = noun_phrase(rng, ("animal",), words.SUBJECT)
        verb, place = rng.pick(words.ANIMAL), location(rng, ("home", "place"))
        return assemble(animal, verb, tense, place, is_question=is_question)
    if choice < 0.93:  # There is a cat on the table.
        thing = noun_phrase(rng, ("animal", "text", "thing", "food", "clothes"), words.INDEFINITE)
        there = Nominal((Word("there"),), person=thing.person)
        place = location(rng, ("furniture", "home"))
        return assemble(there, words.HABER, tense, thing + place, is_question=is_question)
    return like_clause(rng, "past" if tense == "past" else "present", is_question)


def action(rng: StableRandom, who: Nominal, tense: str, *, is_question: bool = False, time: str = "last") -> Phrase:
    """Make a clause in which somebody does something. time: where a phrase of time may be, "last", "anywhere" (first or
    last) or "nowhere"
    """
    negated = not is_question and who.kind != "who" and rng.chance(0.15)
    clitic = complement = NOTHING
    choice = rng.random()
    if choice < 0.65:
        verb = rng.pick(words.TRANSITIVE)
        complement = objects(rng, verb, negated, is_question)
        if tense in CONTINUOUS and "food" in verb.objects and rng.chance(0.2):
            complement = phrase("bread", "pan:0")
    elif choice < 0.75:
        verb = rng.pick([verb for verb in words.TRANSITIVE if "person" in verb.objects])
        reflexive = {0: (0, 3), 1: (1,), 3: (0, 3)}.get(who.person, ())  # "I see me" is left out
        english, spanish, _ = rng.pick([clitic for clitic in words.CLITICS if clitic[2] not in reflexive])
        clitic = phrase(english, f"{spanish}:0")  # sees him: lo ve
    elif choice < 0.9:
        verb = rng.pick(words.STAYING)
        complement = location(rng, ("home", "place"))
    else:
        verb = rng.pick(words.MOVING)
        complement = phrase("to", "a:0") + noun_phrase(rng, ("place",), words.LOCAL)
    if not verb.stative and rng.chance(0.08):
        complement += phrase("with", "con:0") + noun_phrase(rng, ("kin",), words.POSSESSIVES)

    modal = adverb = None
    if not verb.stative and tense in ("present", "past") and rng.chance(0.2):
        modal = rng.pick(words.MODALS[tense == "past" :])  # "was going to" is left out
    elif not (verb.stative or negated or is_question) and rng.chance(0.08):
        adverb = phrase(*rng.pick(words.ADVERBS))
    options = {"negated": negated, "is_question": is_question}
    event = assemble(who, verb, tense, complement, adverb=adverb, clitic=clitic, modal=modal, **options)
    if time == "nowhere" or adverb or verb.stative or not rng.chance(0.3):
        return event
    when = phrase(*rng.pick(words.TIMES["future" if modal == words.MODALS[0] else tense]))
    return when + event if time == "anywhere" and not is_question and rng.chance(0.4) else event + when


def be_clause(rng: StableRandom, who: Nominal, tense: str, is_question: bool) -> Phrase:
    """Make a clause with "be": is tall (ser), is tired (estar), is in the garden, is a doctor."""
    negated = not is_question and rng.chance(0.12)
    choice = rng.random()
    if choice < 0.7:
        is_permanent = choice < 0.4 or who.kind not in words.STATE
        verb, groups = (words.SER, words.AFTER) if is_permanent else (words.ESTAR, words.STATE)
        mentioned = {word.text for word in who.source}
        unused = [group for group in groups[who.kind] if mentioned.isdisjoint(english for english, _ in group)]
        complement = description(rng, unused or groups[who.kind], who, predicate=True)
    elif who.kind in words.HUMAN and choice < 0.85:
        english, forms = rng.pick(tuple(words.PROFESSIONS.items()))
        name = agree(english_plural(english) if who.plural else english, forms, who)
        verb, complement = words.SER, name if who.plural else phrase("a", "") + name
    else:
        kinds = ("furniture", "home") if who.kind in ("text", "clothes", "food", "animal") else ("home", "place")
        return assemble(who, words.ESTAR, tense, location(rng, kinds), negated=negated, is_question=is_question)
    return assemble(who, verb, tense, complement, negated=negated, is_question=is_question, predicate=True)


def like_clause(rng: StableRandom, tense: str, is_question: bool) -> Phrase:
    """Make a clause with "like", whose object is the subject in Spanish: I like cats, me gustan los gatos."""
    who = name_or_pronoun(rng, words.PRONOUNS[is_question:], is_dropped=True)
    kinds = ("animal", "text", "clothes", "food", "home", "place")
    is_bare = rng.chance(0.35)
    liked_thing = noun_phrase(rng, kinds, ("bare",) if is_bare else words.DEFINITE)
    article = Word(words.DETERMINERS["the"][2 + liked_thing.gender], None, liked_thing.heads)
    complement = Phrase((), (article,)) + liked_thing if is_bare else liked_thing
    clitic = Phrase((), (Word(words.DATIVES[who.person], who.source[0]),))
    forms = {when: (by_person[liked_thing.person],) * 5 for when, by_person in words.LIKE.spanish.items()}
    verb = words.LIKE._replace(spanish=forms)
    negated = not is_question and rng.chance(0.15)
    return assemble(who, verb, tense, complement, negated=negated, is_question=is_question, clitic=clitic)


def assemble(
    who: Nominal,
    verb: Verb,
    tense: str,
    complement: Phrase,
    *,
    negated: bool = False,
    is_question: bool = False,
    adverb: Phrase | None = None,
    clitic: Phrase = NOTHING,  # an object pronoun
    modal: tuple[Verb, str] | None = None,  # a verb that governs `verb`, and the Spanish for the "to" between them
    predicate: bool = False,  # whether the complement is a predicate of ser or estar
) -> Phrase:
    """Put subject, verb and complement into the word order of each language.

    English: who [will|do|be] not never verb it …; in questions the auxiliary comes first.
    Spanish: who no nunca lo verb …; in questions who follows the verb, or the predicate of ser and estar.
    """
    finite, chain = verb, NOTHING
    if tense in CONTINUOUS:
        tense = tense.split()[0]
        if not verb.stative:  # is eating: está comiendo
            finite, chain = words.ESTAR, phrase(verb.participle, f"{verb.gerund}:0")
    elif modal is not None:  # wants to buy: quiere comprar
        finite, to = modal
        chain = phrase(f"to {verb.base}", f"{to} {verb.infinitive}:1")
    if tense == "future":
        english = "will", finite.base
    elif finite.base == "be":  # is … going
        english = finite.english[tense][who.person], finite.participle
    elif negated or is_question:  # did … buy
        present = "does" if who.person == 2 else "do"
        english = "did" if tense == "past" else present, finite.base
    else:
        english = "", finite.english[tense][who.person]
    auxiliary, main = (phrase(verbs, "").source for verbs in english)
    particles = (phrase("not", "no:0") if negated else NOTHING) + (adverb or NOTHING)
    source = particles.source + main + chain.source + clitic.source + complement.source
    head = Word(finite.spanish[tense][who.person], (auxiliary + main)[-1])
    target = (*particles.target, *clitic.target, head)
    if predicate and is_question:
        return Phrase(auxiliary + who.source + source, target + complement.target + who.target)
    if is_question:
        return Phrase(auxiliary + who.source + source, target + who.target + chain.target + complement.target)
    return Phrase(who.source + auxiliary + source, who.target + target + chain.target + complement.target)


def objects(rng: StableRandom, verb: Verb, negated: bool, is_question: bool) -> Phrase:
    """Make one or two objects of the verb: a big cat but a small house."""
    kind = rng.pick(verb.objects)
    if kind in ("text", "thing", "clothes", "furniture") and rng.chance(0.06):
        return add_relative_clause(rng, noun_phrase(rng, (kind,), ("the",)))
    is_owned = verb.stative and "person" not in verb.objects  # things one has, wants or needs
    determiners: Sequence[str] = words.INDEFINITE if is_owned else words.ANY
    if negated:
        determiners = words.LACKING if is_owned else words.NEGATED
    first = noun_phrase(rng, (kind,), determiners)
    kinds = [other for other in verb.objects if (other in words.HUMAN) == (kind in words.HUMAN)]
    second = noun_phrase(rng, kinds, determiners)
    if negated or first.heads[0].text[:3] == second.heads[0].text[:3] or not rng.chance(0.2):
        return with_personal_a(first, verb)
    conjunction = phrase("or", "o:0") if is_question else phrase("and", "y:0")
    if is_owned and not is_question:
        conjunction = contrast(rng)
    return with_personal_a(first, verb) + conjunction + with_personal_a(second, verb)


def thing_phrase(rng: StableRandom) -> Nominal:
    """Make a subject that is a thing, sometimes with a relative clause."""
    kinds = ("animal", "text", "thing", "clothes", "food", "furniture", "home", "place", "part")
    if rng.chance(0.12):
        return add_relative_clause(rng, noun_phrase(rng, kinds[1:-2], ("the",)))
    return noun_phrase(rng, kinds, words.DEFINITE)


def add_relative_clause(rng: StableRandom, thing: Nominal) -> Nominal:
    """Add a relative clause to a thing: the house that my brother sold."""
    verbs = [verb for verb in words.TRANSITIVE if thing.kind in verb.objects and not verb.stative]
    whole = thing + phrase("that", "que:0") + assemble(subject(rng), rng.pick(verbs), "past", NOTHING)
    return replace(thing, source=whole.source, target=whole.target)


# Phrases


def subject(rng: StableRandom, is_question: bool = False) -> Nominal:
    """Make a subject of one or more persons: a pronoun, a noun phrase, a name, or a name and another person."""
    pronouns = words.PRONOUNS[1:] if is_question else words.PRONOUNS  # nobody asks what "I" do
    choice = rng.random()
    if choice < 0.55:
        return name_or_pronoun(rng, pronouns, is_dropped=True)
    if choice < 0.85:
        return noun_phrase(rng, words.HUMAN, words.SUBJECT)
    if choice < 0.93:
        return name_or_pronoun(rng, words.NAMES)
    first, second = name_or_pronoun(rng, words.NAMES[:-1]), name_or_pronoun(rng, words.NAMES[-1:])
    if rng.chance(0.6):
        second = noun_phrase(rng, ("kin",), words.POSSESSIVES)
    both = first + phrase("and", "y:0") + second
    return Nominal(both.source, both.target, 4, min(first.gender, second.gender), first.heads + second.heads)


def name_or_pronoun(rng: StableRandom, options: Sequence[tuple[str, int, int]], *, is_dropped: bool = False) -> Nominal:
    """Choose a name or a pronoun. is_dropped: whether Spanish drops it"""
    text, person, gender = rng.pick(options)
    word = Word(text)
    return Nominal((word,), () if is_dropped else (Word(text, word),), person, gender, (word,))


def with_personal_a(thing: Nominal, verb: Verb) -> Phrase:
    """Add the preposition "a" to an object that is a person, unless the verb is tener."""
    if thing.kind in words.HUMAN and verb is not words.HAVE:
        return Phrase((), (Word("a", None, thing.heads),)) + thing
    return thing


def location(rng: StableRandom, kinds: Sequence[str]) -> Phrase:
    """Make a phrase of place: in the garden, near my house."""
    noun = rng.pick(words.NOUNS[rng.pick(kinds)])
    usual = (noun.preposition, "en:0")
    relation = rng.pick((usual, usual, usual, usual, ("near", "cerca:0 de~0"), ("behind", "detrás:0 de~0")))
    return phrase(*relation) + noun_phrase(rng, kinds, words.LOCAL, noun=noun)


def noun_phrase(
    rng: StableRandom, kinds: Sequence[str], determiners: Sequence[str], *, noun: Noun | None = None
) -> Nominal:
    """Make a phrase with `noun`, or a noun of these kinds. Determiners that do not suit the noun are replaced."""
    noun = noun or rng.pick(words.NOUNS[rng.pick(kinds)])
    determiner_key = rng.pick(determiners)
    singular_only = len(noun.english) == 1
    if noun.kind == "kin" and (singular_only or "my" in determiners):
        determiner_key = rng.pick(words.POSSESSIVES)
    elif noun.kind == "person" and determiner_key in (*words.POSSESSIVES, "bare"):
        determiner_key = "the"
    is_plural = determiner_key in words.PLURAL
    if not (is_plural or singular_only or determiner_key in words.SINGULAR or determiners is words.LOCAL):
        is_plural = rng.chance(0.25)
    head, person = Word(noun.english[is_plural]), 4 if is_plural else 2
    nominal = Nominal((head,), (Word(noun.spanish[is_plural], head),), person, noun.gender, (head,), noun.kind)

    before = after = NOTHING
    if rng.chance(0.1) and not singular_only and determiner_key not in ("another", "many", "bare"):
        allows_rank = determiner_key in words.DEFINITE and determiner_key != "this"
        word = rng.pick(tuple(words.BEFORE) if allows_rank else ("good", "bad", "great"))
        before = agree(word, words.BEFORE[word], nominal)
    elif rng.chance(0.2 if determiners is words.LOCAL else 0.45):
        after = description(rng, words.AFTER[noun.kind], nominal)
    before = determiner(rng, determiner_key, nominal) + before
    source, target = before.source + after.source + nominal.source, before.target + nominal.target + after.target
    if noun.kind == "part" and determiner_key == "the":  # the door of the house
        whole = phrase("of", "de:0") + noun_phrase(rng, ("home", "place"), words.LOCAL)
        source, target = source + whole.source, target + whole.target
    return replace(nominal, source=source, target=target)


def determiner(rng: StableRandom, key: str, noun: Nominal) -> Phrase:
    """Make a determiner that agrees with the noun.

    key: a key of words.DETERMINERS; or "bare" for none, or "number" for a number or a choice such as "two or three"
    """
    if key == "bare":
        return NOTHING
    if key == "number":
        first = rng.pick(range(len(words.NUMBERS) - 1))
        low, high = (phrase(number, f"{spanish}:0") for number, spanish in words.NUMBERS[first : first + 2])
        return low + phrase("or", "o:0") + high if rng.chance(0.25) else low
    english = "these" if key == "this" and noun.plural else key
    return agree(english, words.DETERMINERS[key], noun)


def description(
    rng: StableRandom, groups: Sequence[Sequence[Adjective]], noun: Nominal, *, predicate: bool = False
) -> Phrase:
    """Choose an adjective (big, very big), or two of different groups (big and expensive; in predicates also "but")."""
    group = rng.pick(groups)
    english, forms = rng.pick(group)
    adjective = agree(english, forms, noun)
    other_groups = [other_group for other_group in groups if other_group is not group]
    if other_groups and rng.chance(0.2 if predicate else 0.06):
        conjunction = contrast(rng) if predicate else phrase("and", "y:0")
        return adjective + conjunction + agree(*rng.pick(rng.pick(other_groups)), noun)
    if english not in words.ABSOLUTE and rng.chance(0.15):
        return phrase("very", "muy:0") + adjective
    return adjective


def contrast(rng: StableRandom) -> Phrase:
    return rng.pick((phrase("and", "y:0"), phrase("but", "pero:0")))
