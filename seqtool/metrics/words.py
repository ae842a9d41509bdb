"""Statistics of the words in hypotheses.

- F1 of rare and of frequent words: by how often they occur in the training data, as in compare-mt (Neubig et al. 2019,
  section 3).
- Repetitions: words that occur several times in a row, as in the output of undertrained models.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.words import analyse_writing, characters, words
from seqtool.metrics.bootstrap import SAMPLES, Draws, Estimate, Indices, estimate, resampled

MAX_REPEAT_LENGTH = 8  # the maximum length, in words or characters, of a sequence whose repetition is looked for
EDGES = (1, 2, 5, 10, 100, 1000)  # the training counts at which a range starts: compare-mt's without 3 and 4
LABELS = ("0", "1", "2–4", "5–9", "10–99", "100–999", "1,000+")  # the labels of the ranges of training counts


@dataclass(frozen=True)
class WordScore:
    """F1 of the words whose training count lies in one range; `f1` is None if the references contain no such word."""

    label: str  # the range
    words: int  # the number of these words in the references
    f1: Estimate | None


def f1_by_count(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], counts: Mapping[str, int], *, samples: int = SAMPLES
) -> list[WordScore]:
    """F1 in per cent of the words of each range of training counts, with intervals from resampling sentences.

    references: one or more for each sentence; the reference that shares the most words with the hypothesis is used
    counts: how often each word occurs in the training data
    samples: the number of resamples; 0 leaves the intervals out

    A word that occurs n times in a reference is matched at most n times.
    """
    split = characters if unit_of(references) == "characters" else words
    overlaps = np.array([_overlap(*pair, counts, split) for pair in zip(hypotheses, references, strict=True)])

    def f1(sentences: Indices) -> Draws:
        matched, in_hypotheses, in_references = overlaps[sentences].sum(0).T
        per_cent: Draws = 200 * matched / np.maximum(1, in_hypotheses + in_references)
        return per_cent

    sentences = np.arange(len(overlaps))
    draws = resampled(f1, [sentences], samples).reshape(samples, len(LABELS))
    columns = zip(LABELS, overlaps[:, :, 2].sum(0).tolist(), f1(sentences).tolist(), draws.T, strict=True)
    return [WordScore(label, count, estimate(value, x) if count else None) for label, count, value, x in columns]


def unit_of(references: Sequence[Sequence[str]]) -> str:
    """The unit that is counted: words, or characters if the references have no spaces."""
    return "characters" if analyse_writing(chain.from_iterable(references)).has_no_spaces else "words"


def _overlap(
    hypothesis: str, references: Sequence[str], counts: Mapping[str, int], split: Callable[[str], list[str]]
) -> NDArray[np.int64]:
    """Ranges × 3: the numbers of matched words, of words in the hypothesis and of words in the reference."""
    hypothesis_words = Counter(split(hypothesis))
    candidates = [Counter(split(reference)) for reference in references]
    reference_words = max(candidates, key=lambda candidate: (hypothesis_words & candidate).total())
    overlap = np.zeros((len(LABELS), 3), np.int64)
    for column, column_words in enumerate((hypothesis_words & reference_words, hypothesis_words, reference_words)):
        for word, count in column_words.items():
            index = np.searchsorted(EDGES, counts.get(word, 0), side="right")
            overlap[index, column] += count
    return overlap


def repeats(text: str) -> bool:
    """Whether a text repeats words or characters in a row (see `is_repeated`)."""
    return is_repeated(*units(text))


def units(text: str) -> tuple[list[str], bool]:
    """The words of a text, or its characters if it has no spaces; and whether they are characters."""
    has_no_spaces = analyse_writing([text]).has_no_spaces
    return characters(text) if has_no_spaces else text.split(), has_no_spaces


def is_repeated(units: Sequence[str], are_characters: bool) -> bool:
    """Whether a sequence of units occurs several times in a row.

    A single word must occur three times, 2 to `MAX_REPEAT_LENGTH` words twice. 1 to 3 characters must occur four times,
    since Chinese and other languages double words, and 4 to `MAX_REPEAT_LENGTH` characters twice.
    """
    max_short, short_times = (3, 4) if are_characters else (1, 3)
    for length in range(1, MAX_REPEAT_LENGTH + 1):
        times = short_times if length <= max_short else 2
        equal = 0  # the number of successive units that equal the unit `length` before them
        for earlier_unit, unit in zip(units, units[length:], strict=False):
            equal = equal + 1 if unit == earlier_unit else 0
            if equal >= (times - 1) * length:
                return True
    return False
