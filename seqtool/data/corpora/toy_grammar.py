"""The sentences and clauses of the built-in corpus, both languages at once; whole sentences come first."""

from collections.abc import Sequence
from dataclasses import replace

from seqtool.data.corpora import toy_words as words
from seqtool.data.corpora.toy_inflection import Verb, english_plural
from seqtool.data.corpora.toy_phrases import (
    NOTHING,
    Draw,
    English,
    Nominal,
    Phrase,
    Spanish,
    agreeing,
    contrast,
    description,
    location,
    noun_phrase,
    object_pronoun,
    personal,
    phrase,
    pronoun,
    subject,
)

# Sentences


def sentence(draw: Draw) -> Phrase:
    tense = draw.pick(("present", "present", "past", "past", "future"))
    shape = draw.random()
    if shape < 0.12:
        return question(clause(draw, tense, asked=True))
    if shape < 0.20:
        return question(open_question(draw, tense))
    if shape < 0.58:
        return statement(clause(draw, tense, time="anywhere"))
    if shape < 0.70:  # My mother bought a red car but sold the house.
        who = subject(draw)
        unsaid = replace(who, source=(), target=())
        return statement(action(draw, who, tense) + contrast(draw) + action(draw, unsaid, tense))
    if shape < 0.78:
        return statement(clause(draw, tense) + phrase(",", ",:0") + contrast(draw) + clause(draw, tense))
    if shape < 0.86:
        return statement(clause(draw, tense) + phrase("because", "porque:0") + clause(draw, tense))
    if shape < 0.90:
        tense = draw.pick(("present", "past"))
        return statement(phrase("when", "cuando:0") + clause(draw, tense) + phrase(",", ",:0") + clause(draw, tense))
    if shape < 0.94:
        condition = phrase("if", "si:0") + clause(draw, "present") + phrase(",", ",:0")
        return statement(condition + clause(draw, "future"))
    said = phrase("that", "que:0") + clause(draw, tense)
    return statement(assemble(subject(draw), draw.pick(words.SAYING), "past" if tense == "past" else "present", said))


def statement(said: Phrase) -> Phrase:
    return said + phrase(".", ".:0")


def question(asked: Phrase) -> Phrase:
    end = phrase("?", "?:0")
    return Phrase((), (Spanish("¿", None, end.source),)) + asked + end


def open_question(draw: Draw, tense: str) -> Phrase:
    """Who, where, why, when."""
    shape = draw.random()
    if shape < 0.35:
        who = phrase("who", "quién:0")
        return action(draw, Nominal(who.source, who.target, kind="who"), tense)
    if shape < 0.6:
        thing = noun_phrase(draw, ("kin", "animal", "text", "thing", "clothes", "place"), words.DEFINITE)
        return phrase("where", "dónde:0") + assemble(thing, words.ESTAR, tense, NOTHING, asked=True)
    asked = draw.pick((phrase("why", "por:0 qué:0"), phrase("when", "cuándo:0")))
    return asked + action(draw, subject(draw, asked=True), tense, asked=True, time="nowhere")


# Clauses


def clause(draw: Draw, tense: str, *, asked: bool = False, time: str = "last") -> Phrase:
    shape = draw.random()
    if shape < 0.55:
        return action(draw, subject(draw, asked), tense, asked=asked, time=time)
    if shape < 0.70:
        return being(draw, subject(draw, asked), tense, asked)
    if shape < 0.83:
        return being(draw, thing_phrase(draw), tense, asked)
    if shape < 0.88:  # The dog sleeps in the garden.
        animal = noun_phrase(draw, ("animal",), words.SUBJECT)
        verb = draw.pick((words.SLEEP, words.RUN))
        return assemble(animal, verb, tense, location(draw, ("home", "place")), asked=asked)
    if shape < 0.93:  # There is a cat on the table.
        thing = noun_phrase(draw, ("animal", "text", "thing", "food", "clothes"), words.INDEFINITE)
        there = Nominal((English("there"),), person=thing.person)
        return assemble(there, words.HABER, tense, thing + location(draw, ("furniture", "home")), asked=asked)
    return liking(draw, "past" if tense == "past" else "present", asked)


def action(draw: Draw, who: Nominal, tense: str, *, asked: bool = False, time: str = "last") -> Phrase:
    """Somebody does something. When it is done may be said last, anywhere or nowhere."""
    negated = not asked and who.kind != "who" and draw.chance(0.15)
    clitic = rest = NOTHING
    shape = draw.random()
    if shape < 0.65:
        verb = draw.pick(words.TRANSITIVE)
        rest = objects(draw, verb, negated, asked)
    elif shape < 0.75:
        verb = draw.pick([verb for verb in words.TRANSITIVE if "person" in verb.objects])
        clitic = object_pronoun(draw, who)
    elif shape < 0.9:
        verb = draw.pick(words.STAYING)
        rest = location(draw, ("home", "place"))
    else:
        verb = draw.pick(words.MOVING)
        rest = phrase("to", "a:0") + noun_phrase(draw, ("place",), words.LOCAL)
    if not verb.stative and draw.chance(0.08):
        rest += phrase("with", "con:0") + noun_phrase(draw, ("kin",), words.POSSESSIVES)

    modal = adverb = None
    if not verb.stative and tense != "future" and draw.chance(0.2):
        modal = draw.pick(words.MODALS[tense == "past" :])  # "was going to" is left out
    elif not (verb.stative or negated or asked) and draw.chance(0.08):
        adverb = phrase(*draw.pick(words.ADVERBS))
    made = assemble(who, verb, tense, rest, negated=negated, asked=asked, adverb=adverb, clitic=clitic, modal=modal)
    if time == "nowhere" or adverb or verb.stative or not draw.chance(0.3):
        return made
    when = phrase(*draw.pick(words.TIMES["future" if modal == words.MODALS[0] else tense]))
    return when + made if time == "anywhere" and not asked and draw.chance(0.4) else made + when


def being(draw: Draw, who: Nominal, tense: str, asked: bool) -> Phrase:
    """Is tall (ser), is tired (estar), is in the garden, is a doctor."""
    human = who.kind in words.HUMAN
    negated = not asked and draw.chance(0.12)
    shape = draw.random()
    if shape < 0.7:
        verb, groups = (
            (words.SER, words.AFTER) if shape < 0.4 or who.kind not in words.STATE else (words.ESTAR, words.STATE)
        )
        said = {word.text for word in who.source}
        news = [group for group in groups[who.kind] if said.isdisjoint(english for english, _ in group)]
        rest = description(draw, news, who, predicate=True)
        return assemble(who, verb, tense, rest, negated=negated, asked=asked, predicate=True)
    if human and shape < 0.85:
        english = draw.pick(tuple(words.PROFESSIONS))
        name = agreeing(english_plural(english) if who.plural else english, words.PROFESSIONS[english], who)
        rest = name if who.plural else phrase("a", "") + name
        return assemble(who, words.SER, tense, rest, negated=negated, asked=asked, predicate=True)
    kinds = ("furniture", "home") if who.kind in ("text", "clothes", "food", "animal") else ("home", "place")
    return assemble(who, words.ESTAR, tense, location(draw, kinds), negated=negated, asked=asked)


def liking(draw: Draw, tense: str, asked: bool) -> Phrase:
    """I like cats: me gustan los gatos, where the cats are the subject."""
    who = pronoun(draw, asked)
    kinds = ("animal", "text", "clothes", "food", "home", "place")
    bare = draw.chance(0.35)
    liked = noun_phrase(draw, kinds, ("bare",) if bare else words.DEFINITE)
    article = Spanish(words.DETERMINERS["the"][2 + liked.gender], None, liked.heads)
    rest = Phrase((), (article,)) + liked if bare else liked
    clitic = Phrase((), (Spanish(words.DATIVES[who.person], who.source[0]),))
    agreed = {when: (forms[liked.person],) * 5 for when, forms in words.LIKE.spanish.items()}
    verb = replace(words.LIKE, spanish=agreed)
    negated = not asked and draw.chance(0.15)
    return assemble(who, verb, tense, rest, negated=negated, asked=asked, clitic=clitic)


def assemble(
    who: Nominal,
    verb: Verb,
    tense: str,
    rest: Phrase,
    *,
    negated: bool = False,
    asked: bool = False,
    adverb: Phrase | None = None,
    clitic: Phrase = NOTHING,
    modal: tuple[Verb, str] | None = None,
    predicate: bool = False,
) -> Phrase:
    """Subject, verb and the rest, in the order of each language.

    English: who [will|do|be] not never verb it …; in questions the auxiliary comes first.
    Spanish: who no nunca lo verb …; in questions who follows the verb, or the predicate of ser and estar.
    """
    finite, chain = verb, NOTHING
    if modal is not None:  # wants to buy: quiere comprar
        finite, to = modal
        chain = phrase(f"to {verb.base}", f"{to} {verb.infinitive}:1")
    verbs = english_verb(finite, who.person, tense, helped=negated or asked)
    auxiliary, main = (phrase(english, "").source for english in verbs)
    particles = (phrase("not", "no:0") if negated else NOTHING) + (adverb or NOTHING)
    source = particles.source + main + chain.source + clitic.source + rest.source
    head = Spanish(finite.spanish[tense][who.person], (auxiliary + main)[-1])
    target = (*particles.target, *clitic.target, head)
    if predicate and asked:
        return Phrase(auxiliary + who.source + source, target + rest.target + who.target)
    if asked:
        return Phrase(auxiliary + who.source + source, target + who.target + chain.target + rest.target)
    return Phrase(who.source + auxiliary + source, who.target + target + chain.target + rest.target)


def english_verb(verb: Verb, person: int, tense: str, *, helped: bool) -> tuple[str, str]:
    """The auxiliary, if any, and the rest: will buy, did … buy, is … going."""
    if tense == "future":
        return "will", verb.base
    if verb.base == "be":
        return verb.english[tense][person], verb.participle
    if helped:
        return "did" if tense == "past" else "does" if person == 2 else "do", verb.base
    return "", verb.english[tense][person]


def objects(draw: Draw, verb: Verb, negated: bool, asked: bool) -> Phrase:
    """One object or two: a big cat but a small house."""
    kind = draw.pick(verb.objects)
    if kind in ("text", "thing", "clothes", "furniture") and draw.chance(0.06):
        return relative(draw, noun_phrase(draw, (kind,), ("the",)))
    owned = verb.stative and "person" not in verb.objects  # what one has, wants or needs
    determiners: Sequence[str] = words.INDEFINITE if owned else words.ANY
    if negated:
        determiners = words.LACKING if owned else words.NEGATED
    first = noun_phrase(draw, (kind,), determiners)
    kinds = [other for other in verb.objects if (other in words.HUMAN) == (kind in words.HUMAN)]
    second = noun_phrase(draw, kinds, determiners)
    if negated or first.heads[0].text[:3] == second.heads[0].text[:3] or not draw.chance(0.2):
        return personal(first, verb)
    joined = phrase("or", "o:0") if asked else contrast(draw) if owned else phrase("and", "y:0")
    return personal(first, verb) + joined + personal(second, verb)


def thing_phrase(draw: Draw) -> Nominal:
    """A thing to say something about, sometimes one that somebody bought."""
    kinds = ("animal", "text", "thing", "clothes", "food", "furniture", "home", "place", "part")
    if draw.chance(0.12):
        return relative(draw, noun_phrase(draw, kinds[1:-2], ("the",)))
    return noun_phrase(draw, kinds, words.DEFINITE)


def relative(draw: Draw, thing: Nominal) -> Nominal:
    """The house that my brother sold."""
    verbs = [verb for verb in words.TRANSITIVE if thing.kind in verb.objects and not verb.stative]
    both = thing + phrase("that", "que:0") + assemble(subject(draw), draw.pick(verbs), "past", NOTHING)
    return replace(thing, source=both.source, target=both.target)
