"""The data in a report, compressed: JSON in gzip in base 64, which `read` in `web/report.js` undoes."""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 100  # sentences in a chunk, which the page reads when one of them is opened
DIGITS = 3  # of weights after the point, and of other numbers in all: as many as the page shows


class Details:
    """What a report shows of each sentence only when it is opened."""

    def __init__(self) -> None:
        self._packed: list[str] = []
        self._sentences: list[dict[str, Any]] = []  # those after the last packed chunk

    def add(
        self,
        *,
        source: Sequence[str] = (),
        target: Sequence[str] = (),
        weights: NDArray[np.floating] | None = None,
        predicted: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """One more sentence.

        source, target: its words.
        weights: their attention, target × source, or None.
        predicted: what was expected at each token, in the form of `predictor.expectation`, or None.
        """
        sentence: dict[str, Any] = {}
        if weights is not None and weights.size:
            sentence |= {"source": list(source), "target": list(target), "weights": rounded_weights(weights)}
        if predicted:
            sentence["predicted"] = json.loads(json.dumps(predicted), parse_float=_rounded)
        self._sentences.append(sentence)
        if len(self._sentences) == SIZE:
            self._packed.append(packed(self._sentences))
            self._sentences = []

    def described(self) -> dict[str, Any]:
        """What the page must know to find a sentence."""
        return {"size": SIZE}

    def chunks(self) -> Iterator[str]:
        """The packed details of `SIZE` sentences each."""
        yield from self._packed
        if self._sentences:
            yield packed(self._sentences)


def packed(value: Any) -> str:
    """A value of JSON as text that HTML can hold; the same value always gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    content = text.encode("utf-8", "backslashreplace")  # a lone surrogate is written as its escape
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def rounded_weights(weights: NDArray[np.floating]) -> list[list[float]]:
    rows: list[list[float]] = np.asarray(weights, float).round(DIGITS).tolist()
    return rows


def _rounded(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")
