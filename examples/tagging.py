"""Tagging of words (many to many, a label a step): the class of each word, from the words before it or on both sides.

In "that split cast cut her set", split is an adjective, cast a noun, cut a verb and set a noun, but each of them can be
any of the three, and "that" and "her" are determiners or pronouns. A recurrent network reads the words x_1 … x_T, and

    P(y_t | x) = softmax(W h_t + b)

is the probability of each class of the word x_t. With one direction, h_t depends on x_1 … x_t only; with two, it is
[h→_t, h←_t] and depends on all words. Whether a word is an adjective often shows only in the words after it.

    python examples/tagging.py

trains a tagger of each kind into runs/tagging_one and runs/tagging_two, and prints their accuracies on the words of
held-out sentences. In the folder examples/, or wherever Python finds this file and labelling.py:

    seqtool train data=tagging.WordClasses data.vocabulary.kind=word model=tagging.Tagger run=tagging
    seqtool translate checkpoint=runs/tagging trust=tagging
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from labelling import TRAINING, Accuracy, Labeller, Labelling, evaluate, print_table, run
from torch import Tensor

from seqtool.data.corpora.corpus import Digest, TextCorpus
from seqtool.models.cells import Encoding

CONTENT = ("cut", "set", "split", "cast", "spread", "hit", "burst", "shed")  # each a noun, a past tense, an adjective
DETERMINERS, PRONOUNS = ("the", "a", "her", "that"), ("she", "they", "her", "that")
PREPOSITIONS, ADVERBS = ("in", "near", "by"), ("again", "there")
NOUN, VERB, ADJECTIVE, DETERMINER = "NOUN", "VERB", "ADJ", "DET"  # the tags of Universal Dependencies
PRONOUN, PREPOSITION, ADVERB = "PRON", "ADP", "ADV"


class WordClasses(TextCorpus):
    """Sentences of a small grammar, each with the classes of its words. A sentence is in one split only."""

    task = "tagging.Tagging"
    contents, example = "sentences with word classes", "data=tagging.WordClasses"
    name, source_language, target_language = "word_classes", "words", "classes"

    def splits(self) -> tuple[str, ...]:
        return ("train", "valid", "test")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        draw, sentences = random.Random(0), dict[str, str]()
        while len(sentences) < 1500:
            words, classes = zip(*sentence(draw), strict=True)
            sentences[" ".join(words)] = " ".join(classes)
        bounds = {"train": (0, 1200), "valid": (1200, 1300), "test": (1300, None)}
        return iter(list(sentences.items())[slice(*bounds[split])])

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"words": str((CONTENT, DETERMINERS, PRONOUNS, PREPOSITIONS, ADVERBS)), "version": 1}


def sentence(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield the words of a random sentence with their classes: a noun phrase, a verb, a noun phrase, and an ending."""
    yield from noun_phrase(draw, ("she", "they", "that"))
    yield draw.choice(CONTENT), VERB
    yield from noun_phrase(draw, ("her", "that"))
    if draw.random() < 0.3:
        yield draw.choice(PREPOSITIONS), PREPOSITION
        yield from noun_phrase(draw, ("her", "that"))
    if draw.random() < 0.3:
        yield draw.choice(ADVERBS), ADVERB


def noun_phrase(draw: random.Random, pronouns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if draw.random() < 0.25:
        yield draw.choice(pronouns), PRONOUN
        return
    yield draw.choice(DETERMINERS), DETERMINER
    if draw.random() < 0.5:
        yield draw.choice(CONTENT), ADJECTIVE
    yield draw.choice(CONTENT), NOUN


class Tagging(Labelling):
    """The task: as labelling, but with a label for each word."""

    name = "tagging.Tagging"
    corpus, does, example = WordClasses, "tags words", "model=tagging.Tagger"
    unit, outputs = "sentences", "tags"


class Tagger(Labeller):
    """The labeller with the vectors v_t = h_t, one for each word."""

    task = "tagging.Tagging"

    def vectors(self, encoding: Encoding, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return encoding.annotations, lengths - 1  # </s> has no class


def commonest_class_accuracy(corpus: TextCorpus) -> float:
    """The accuracy on held-out sentences if each word has its commonest class, in per cent."""
    counts: dict[str, Counter[str]] = {}
    for words, classes in corpus.pairs("train"):
        for word, label in zip(words.split(), classes.split(), strict=True):
            counts.setdefault(word, Counter())[label] += 1
    sentences, references = zip(*corpus.pairs("test"), strict=True)
    tagged = [" ".join(counts[word].most_common(1)[0][0] for word in words.split()) for words in sentences]
    accuracy = Accuracy([[reference] for reference in references], name="accuracy")
    return accuracy.score(accuracy.statistics(tagged))


def main() -> None:
    baseline = f"{commonest_class_accuracy(WordClasses()):.1f} % by each word's commonest class"
    settings = "data=tagging.WordClasses data.vocabulary.kind=word model=tagging.Tagger optim.lr=0.005 train.epochs=8"
    rows = []
    for description, name, both in (
        ("one direction", "tagging_one", "false"),
        ("two directions", "tagging_two", "true"),
    ):
        run(f"train {settings} {TRAINING} run={name} model.bidirectional={both}")
        rows.append((f"word classes, {description}", evaluate(name, trust="tagging"), baseline))
    print_table(rows)


if __name__ == "__main__":
    main()
