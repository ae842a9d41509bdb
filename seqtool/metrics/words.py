"""Words as a system writes them: how well it writes rare and frequent ones, F1 by how often a word stands in the
training data as in compare-mt (Neubig et al. 2019, section 3); and those repeated in a row, as models write them that
have learnt too little.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from seqtool.data.text.words import characters, words, writing
from seqtool.metrics.bootstrap import SAMPLES, Estimate, bootstrap

LONGEST = 8  # words of a repeated sequence
EDGES = (1, 2, 5, 10, 100, 1000)
LABELS = ("0", "1", "2–4", "5–9", "10–99", "100–999", "1,000+")  # of the ranges between them


@dataclass(frozen=True)
class WordScore:
    """F1 of the words that stand so often in the training data; None if the references have none.

    words: their number in the references.
    """

    label: str
    words: int
    f1: Estimate | None


def f1_by_count(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], counts: Mapping[str, int], *, samples: int = SAMPLES
) -> list[WordScore]:
    """F1 in per cent for each range of `EDGES` of which the references have words, with intervals from resampling
    sentences; `counts`: how often each word stands in the training data. A word that stands n times in a reference is
    matched at most n times; of several references of a sentence the one counts that shares the most words with the
    hypothesis.
    """
    split = characters if unit_of(references) == "characters" else words
    overlaps = np.array([_overlap(*pair, counts, split) for pair in zip(hypotheses, references, strict=True)])
    scores = []
    for place, label in enumerate(LABELS):

        def f1(rows: NDArray[np.int64], overlaps: NDArray[np.int64] = overlaps[:, place]) -> float:
            matched, written, wanted = overlaps[rows].sum(0).tolist()
            return float(200 * matched / max(1, written + wanted))

        number = int(overlaps[:, place, 2].sum())
        estimate = bootstrap(f1, [np.arange(len(overlaps))], samples) if number else None
        scores.append(WordScore(label, number, estimate))
    return scores


def unit_of(references: Sequence[Sequence[str]]) -> str:
    """What is counted: words, or characters where references have no spaces."""
    return "characters" if writing(chain.from_iterable(references)).has_no_spaces else "words"


def _overlap(
    hypothesis: str, references: Sequence[str], counts: Mapping[str, int], split: Callable[[str], list[str]]
) -> NDArray[np.int64]:
    """Ranges × 3: the words that match, those of the hypothesis and those of the reference."""
    written = Counter(split(hypothesis))
    wanted = max((Counter(split(reference)) for reference in references), key=lambda words: (written & words).total())
    overlap = np.zeros((len(EDGES) + 1, 3), np.int64)
    for column, of_column in enumerate((written & wanted, written, wanted)):
        for word, count in of_column.items():
            overlap[np.searchsorted(EDGES, counts.get(word, 0), side="right"), column] += count
    return overlap


def repeats(text: str) -> bool:
    """Whether a sequence of words is repeated in a row (`is_repeated`)."""
    return is_repeated(*units(text))


def units(text: str) -> tuple[list[str], bool]:
    """The words of a text, or its characters where it has no spaces between words; and whether they are characters."""
    has_no_spaces = writing([text]).has_no_spaces
    return characters(text) if has_no_spaces else text.split(), has_no_spaces


def is_repeated(units: Sequence[str], are_characters: bool) -> bool:
    """Whether a sequence of 2 to `LONGEST` words stands twice in a row, or one word three times; of characters 4 to
    `LONGEST` twice, or fewer four times, since Chinese and others double words.
    """
    few, often = (3, 4) if are_characters else (1, 3)
    for length in range(1, LONGEST + 1):
        times = often if length <= few else 2
        alike = 0  # units in a row that are equal to those `length` before
        for before, unit in zip(units, units[length:], strict=False):
            alike = alike + 1 if unit == before else 0
            if alike >= (times - 1) * length:
                return True
    return False
