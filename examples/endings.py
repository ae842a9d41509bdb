"""A metric: the percentage of captions that stop too early, with an article, a preposition or a conjunction last.

Training on sequences whose rewards leave out the end (`train.reward_end=false`) gives many of them.

    seqtool eval checkpoint=builtin/soft split=test scores=endings.BadEndings
"""

from collections.abc import Sequence

import numpy as np

from seqtool.data.text.words import words
from seqtool.metrics.scores import Metric, Statistics

ARTICLES = "a an the"
CONJUNCTIONS = "and or but nor while as because that if than when where which who"
# without those that often stand alone, such as "up" in "a boy looks up"
PREPOSITIONS = (
    "of in on at to with from by for into onto over under through near behind beside between against along across "
    "toward towards above below beneath during without within upon among inside atop like"
)
UNFINISHED = frozenset(f"{ARTICLES} {CONJUNCTIONS} {PREPOSITIONS}".split())


class BadEndings(Metric):
    """The percentage of texts that are empty or whose last word is one of `UNFINISHED`."""

    higher_is_better = False

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        last_words = ((words(text) or [""])[-1] for text in hypotheses)
        return np.array([[word in UNFINISHED or not word] for word in last_words], float)

    def score(self, statistics: Statistics) -> float:
        return 100 * float(statistics.mean())
