"""The built-in corpus: English sentences, their Spanish translations, and which word came from which.

A small grammar in the spirit of "I have a big cat but a small house." → "Tengo un gato grande pero una casa
pequeña.". The English determines the Spanish: "you" is always tú, a person of unknown sex is masculine,
past actions are in the preterite and past states in the imperfect. The words are in `toy_words.py`;
`toy_grammar.py` puts them together; here they become text and links.

Alignment: a Spanish word that has a counterpart has exactly one sure link (a verb to the verb, not to the
dropped pronoun). Possible links lead to the word that decides a gender, from "¿" to "?", and to the word that
requires one without a counterpart: "near" for "cerca *de*", the person for "veo *a* mi hermano".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqtool.data.corpora.draw import Draw
from seqtool.data.corpora.toy_grammar import Phrase, Word, long_sentence, sentence

GRAMMAR = (  # enters a cache's name: change an entry whenever the grammar generates different text
    "748fd6fa45a640fa46c31d9acc34f1a446c53bf6347044787b818fcbdb03de68",
    "01dea6b52d8e063af57afe730a0f50e852d3fe528e541ca70bdb8e4d7956e183",
    "ed0847435b0b641d1f75b99ef60b1326b1939252e0628d1651b9403c11829944",
    "5fd797ba3350113fff98de2e5d6c8e1ae1673786ea8d9a0c713dcc38d49591ab",
)
LONG = "2"  # the same for sentences longer than usual
SHORTEST, LONGEST = 3, 25  # words of a sentence; punctuation counts only towards the longest
MOST = 100  # words of long sentences
CONTRACTIONS = {"a": "al", "de": "del"}  # with "el"; sure link to "to" or "of", possible one to "the"


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, and their alignment in Pharaoh format: `i-j` sure, `i?j` possible."""

    source: str
    target: str
    alignment: str


def generate(*, seed: int, train: int, valid: int, test: int, longest: int = LONGEST) -> dict[str, list[Pair]]:
    """The three splits, of the sizes asked for. If `longest` is more than usual, sentences have any number of clauses:
    the lengths of test and valid are spread evenly, and those of train so that all lengths have as many words, but for
    the greatest, which few sentences have: none is cut to fit.

    No source and no target occurs twice, in one split or in two. The same seed gives the same corpus on every
    Python; test and valid do not depend on the size of train.
    """
    draw = Draw(seed)
    seen: set[str] = set()
    splits: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for name, size in (("test", test), ("valid", valid), ("train", train)):
        while len(splits[name]) < size:
            if longest == LONGEST:
                made = sentence(draw)
            else:
                share = draw.random()
                made = long_sentence(draw, int(longest**share) if name == "train" else 1 + int(longest * share))
            pair = surface(made, longest)
            if pair is not None and pair.source not in seen and pair.target not in seen:
                seen.update((pair.source, pair.target))
                splits[name].append(pair)
    return splits


def surface(made: Phrase, longest: int = LONGEST) -> Pair | None:
    """Contractions, euphony, spaces, capitals and links; None for a sentence too short or too long."""
    target: list[Word] = []
    for word in made.target:
        last = target[-1] if target else word
        if word.text == "el" and last.text in CONTRACTIONS:
            possible = *last.possible, *word.possible, *((word.sure,) if word.sure else ())
            target[-1] = Word(CONTRACTIONS[last.text], last.sure or word.sure, possible)
            continue
        if last.text == "y" and word.text.lower().startswith(("i", "hi")):
            target[-1] = replace(last, text="e")
        elif last.text == "o" and word.text.startswith(("o", "ho")):
            target[-1] = replace(last, text="u")
        target.append(word)

    english = [word.text for word in made.source]
    for i, following in enumerate(english[1:]):
        if english[i] == "a" and following[0] in "aeiou":
            english[i] = "an"
    spanish = [word.text for word in target]
    lengths = [sum(text not in ".,?¿" for text in side) for side in (english, spanish)]
    if min(lengths) < SHORTEST or max(len(english), len(spanish)) > longest:
        return None

    position = {word: i for i, word in enumerate(made.source)}
    links = []
    for j, word in enumerate(target):
        sure = {position[word.sure]} if word.sure else set()
        links += [f"{i}-{j}" for i in sure]
        links += [f"{i}?{j}" for i in sorted({position[other] for other in word.possible} - sure)]
    return Pair(written(english), written(spanish), " ".join(links))


def written(texts: Sequence[str]) -> str:
    text = " ".join(texts)
    for mark in ".,?":
        text = text.replace(" " + mark, mark)
    text = text.replace("¿ ", "¿")
    start = int(text.startswith("¿"))
    return text[:start] + text[start].upper() + text[start + 1 :]
