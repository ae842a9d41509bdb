"""The sentences and clauses of the built-in corpus, in both languages at once; whole sentences come first."""

from collections.abc import Sequence
from dataclasses import replace

from seqtool.data.corpora import toy_phrases as phrases
from seqtool.data.corpora import toy_words as words
from seqtool.data.corpora.toy_inflection import Verb, english_plural
from seqtool.data.corpora.toy_phrases import NOTHING, Draw, Nominal, Phrase, Word, agreeing, noun_phrase, phrase

TENSES = ("present", "present", "past", "past", "future")

# Sentences


def sentence(draw: Draw) -> Phrase:
    tense = draw.pick(TENSES)
    shape = draw.random()
    if shape < 0.12:
        return question(clause(draw, tense, asked=True))
    if shape < 0.20:
        return question(open_question(draw, tense))
    if shape < 0.58:
        return statement(clause(draw, tense, time="anywhere"))
    if shape < 0.70:  # My mother bought a red car but sold the house.
        who = phrases.subject(draw)
        unsaid = replace(who, source=(), target=())
        return statement(action(draw, who, tense) + phrases.contrast(draw) + action(draw, unsaid, tense))
    if shape < 0.78:
        return statement(clause(draw, tense) + phrase(",", ",:0") + phrases.contrast(draw) + clause(draw, tense))
    if shape < 0.86:
        return statement(clause(draw, tense) + phrase("because", "porque:0") + clause(draw, tense))
    if shape < 0.90:
        tense = draw.pick(("present", "past"))
        return statement(phrase("when", "cuando:0") + clause(draw, tense) + phrase(",", ",:0") + clause(draw, tense))
    if shape < 0.94:
        condition = phrase("if", "si:0") + clause(draw, "present") + phrase(",", ",:0")
        return statement(condition + clause(draw, "future"))
    said = phrase("that", "que:0") + clause(draw, tense)
    who, verb = phrases.subject(draw), draw.pick(words.SAYING)
    return statement(assemble(who, verb, "past" if tense == "past" else "present", said))


def long_sentence(draw: Draw, words: int) -> Phrase:
    """Clauses joined by conjunctions until there are this many English words."""
    made = clause(draw, draw.pick(TENSES))
    while len(made.source) < words:
        joined = phrase("because", "porque:0") if draw.chance(0.3) else phrase(",", ",:0") + phrases.contrast(draw)
        made += joined + clause(draw, draw.pick(TENSES))
    return statement(made)


def statement(said: Phrase) -> Phrase:
    return said + phrase(".", ".:0")


def question(asked: Phrase) -> Phrase:
    end = phrase("?", "?:0")
    return Phrase((), (Word("¿", None, end.source),)) + asked + end


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
    return asked + action(draw, phrases.subject(draw, asked=True), tense, asked=True, time="nowhere")


# Clauses


def clause(draw: Draw, tense: str, *, asked: bool = False, time: str = "last") -> Phrase:
    shape = draw.random()
    if shape < 0.55:
        return action(draw, phrases.subject(draw, asked), tense, asked=asked, time=time)
    if shape < 0.70:
        return being(draw, phrases.subject(draw, asked), tense, asked)
    if shape < 0.83:
        return being(draw, thing_phrase(draw), tense, asked)
    if shape < 0.88:  # The dog sleeps in the garden.
        animal = noun_phrase(draw, ("animal",), words.SUBJECT)
        return assemble(animal, draw.pick(words.ANIMAL), tense, phrases.location(draw, ("home", "place")), asked=asked)
    if shape < 0.93:  # There is a cat on the table.
        thing = noun_phrase(draw, ("animal", "text", "thing", "food", "clothes"), words.INDEFINITE)
        there = Nominal((Word("there"),), person=thing.person)
        return assemble(there, words.HABER, tense, thing + phrases.location(draw, ("furniture", "home")), asked=asked)
    return liking(draw, "past" if tense == "past" else "present", asked)


def action(draw: Draw, who: Nominal, tense: str, *, asked: bool = False, time: str = "last") -> Phrase:
    """Somebody does something. An adverbial of time may come last, elsewhere or not at all."""
    negated = not asked and who.kind != "who" and draw.chance(0.15)
    clitic = rest = NOTHING
    shape = draw.random()
    if shape < 0.65:
        verb = draw.pick(words.TRANSITIVE)
        rest = objects(draw, verb, negated, asked)
    elif shape < 0.75:
        verb = draw.pick([verb for verb in words.TRANSITIVE if "person" in verb.objects])
        mine = {0: (0, 3), 1: (1,), 3: (0, 3)}.get(who.person, ())  # "I see me" is left out
        english, spanish, _ = draw.pick([one for one in words.CLITICS if one[2] not in mine])
        clitic = phrase(english, f"{spanish}:0")  # sees him: lo ve
    elif shape < 0.9:
        verb = draw.pick(words.STAYING)
        rest = phrases.location(draw, ("home", "place"))
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
    negated = not asked and draw.chance(0.12)
    shape = draw.random()
    if shape < 0.7:
        lasts = shape < 0.4 or who.kind not in words.STATE
        verb, groups = (words.SER, words.AFTER) if lasts else (words.ESTAR, words.STATE)
        said = {word.text for word in who.source}
        news = [group for group in groups[who.kind] if said.isdisjoint(english for english, _ in group)]
        rest = phrases.description(draw, news or groups[who.kind], who, predicate=True)  # or what was said already
    elif who.kind in words.HUMAN and shape < 0.85:
        english, forms = draw.pick(tuple(words.PROFESSIONS.items()))
        name = agreeing(english_plural(english) if who.plural else english, forms, who)
        verb, rest = words.SER, name if who.plural else phrase("a", "") + name
    else:
        kinds = ("furniture", "home") if who.kind in ("text", "clothes", "food", "animal") else ("home", "place")
        return assemble(who, words.ESTAR, tense, phrases.location(draw, kinds), negated=negated, asked=asked)
    return assemble(who, verb, tense, rest, negated=negated, asked=asked, predicate=True)


def liking(draw: Draw, tense: str, asked: bool) -> Phrase:
    """I like cats: me gustan los gatos, where the cats are the subject."""
    who = phrases.one_word(draw, words.PRONOUNS[asked:], said=False)
    kinds = ("animal", "text", "clothes", "food", "home", "place")
    bare = draw.chance(0.35)
    liked = noun_phrase(draw, kinds, ("bare",) if bare else words.DEFINITE)
    article = Word(words.DETERMINERS["the"][2 + liked.gender], None, liked.heads)
    rest = Phrase((), (article,)) + liked if bare else liked
    clitic = Phrase((), (Word(words.DATIVES[who.person], who.source[0]),))
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
    if tense == "future":
        english = "will", finite.base
    elif finite.base == "be":  # is … going
        english = finite.english[tense][who.person], finite.participle
    elif negated or asked:  # did … buy
        english = "did" if tense == "past" else "does" if who.person == 2 else "do", finite.base
    else:
        english = "", finite.english[tense][who.person]
    auxiliary, main = (phrase(verbs, "").source for verbs in english)
    particles = (phrase("not", "no:0") if negated else NOTHING) + (adverb or NOTHING)
    source = particles.source + main + chain.source + clitic.source + rest.source
    head = Word(finite.spanish[tense][who.person], (auxiliary + main)[-1])
    target = (*particles.target, *clitic.target, head)
    if predicate and asked:
        return Phrase(auxiliary + who.source + source, target + rest.target + who.target)
    if asked:
        return Phrase(auxiliary + who.source + source, target + who.target + chain.target + rest.target)
    return Phrase(who.source + auxiliary + source, who.target + target + chain.target + rest.target)


def objects(draw: Draw, verb: Verb, negated: bool, asked: bool) -> Phrase:
    """One object or two: a big cat but a small house."""
    kind = draw.pick(verb.objects)
    if kind in ("text", "thing", "clothes", "furniture") and draw.chance(0.06):
        return relative(draw, noun_phrase(draw, (kind,), ("the",)))
    owned = verb.stative and "person" not in verb.objects  # things one has, wants or needs
    determiners: Sequence[str] = words.INDEFINITE if owned else words.ANY
    if negated:
        determiners = words.LACKING if owned else words.NEGATED
    first = noun_phrase(draw, (kind,), determiners)
    kinds = [other for other in verb.objects if (other in words.HUMAN) == (kind in words.HUMAN)]
    second = noun_phrase(draw, kinds, determiners)
    if negated or first.heads[0].text[:3] == second.heads[0].text[:3] or not draw.chance(0.2):
        return phrases.personal(first, verb)
    joined = phrase("or", "o:0") if asked else phrases.contrast(draw) if owned else phrase("and", "y:0")
    return phrases.personal(first, verb) + joined + phrases.personal(second, verb)


def thing_phrase(draw: Draw) -> Nominal:
    """A thing to say something about, sometimes one that somebody bought."""
    kinds = ("animal", "text", "thing", "clothes", "food", "furniture", "home", "place", "part")
    if draw.chance(0.12):
        return relative(draw, noun_phrase(draw, kinds[1:-2], ("the",)))
    return noun_phrase(draw, kinds, words.DEFINITE)


def relative(draw: Draw, thing: Nominal) -> Nominal:
    """The house that my brother sold."""
    verbs = [verb for verb in words.TRANSITIVE if thing.kind in verb.objects and not verb.stative]
    both = thing + phrase("that", "que:0") + assemble(phrases.subject(draw), draw.pick(verbs), "past", NOTHING)
    return replace(thing, source=both.source, target=both.target)
