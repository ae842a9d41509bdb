"""What a report shows of a sentence only when it is opened, packed: words as places in one list, and numbers as digits
of base 64. `web/unpacking.js` reads it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
STEPS = 64**2 - 1  # a number has two digits
WORDS = 64**3  # different words, of three digits; those beyond are all shown as one
OTHER = "…"
SIZE = 100  # sentences in a chunk, which the page parses when one of them is opened
MOST = 16.0  # nats of an entropy, and of −log p, which keeps small probabilities apart


class Details:
    """The details of one sentence after another."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._sentences: list[str] = []

    def add(
        self,
        *,
        source: Sequence[str] = (),
        target: Sequence[str] = (),
        weights: NDArray[np.floating] | None = None,
        predicted: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """One sentence: its words and their attention (target × source), or None; and what was expected at each token,
        in the form of `predictor.expectation`, or None.
        """
        found: dict[str, str] = {}
        if weights is not None and weights.size:
            found |= {"source": self._words(source), "target": self._words(target), "weights": fractions(weights)}
        if predicted:
            others = [other for one in predicted for other in one["likeliest"]]
            found |= {
                "tokens": self._words([one["token"] for one in predicted]),
                "nats": surprise([one["probability"] for one in predicted]),
                "entropies": fractions(np.array([one["entropy"] for one in predicted]) / MOST),
                "likeliest": self._words([token for token, _ in others]),
                "likeliest_nats": surprise([probability for _, probability in others]),
            }
        self._sentences.append(json.dumps(found, separators=(",", ":")))

    def described(self) -> dict[str, Any]:
        """What the page must know to read them."""
        return {"size": SIZE, "pieces": list(self._places), "nats": MOST}

    def chunks(self) -> Iterator[str]:
        """JSON lists of the details of `SIZE` sentences each."""
        for start in range(0, len(self._sentences), SIZE):
            yield f"[{','.join(self._sentences[start : start + SIZE])}]"

    def _words(self, words: Sequence[str]) -> str:
        places = []
        for word in words:
            if word not in self._places and len(self._places) == WORDS - 1:
                word = OTHER
            places.append(self._places.setdefault(word, len(self._places)))
        return digits(np.array(places, np.int64), 3)


def fractions(values: ArrayLike) -> str:
    """Numbers from 0 to 1 in two digits each, to within 1/8190."""
    return digits(np.rint(np.clip(np.asarray(values, float), 0, 1) * STEPS).astype(np.int64), 2)


def surprise(probabilities: Sequence[float]) -> str:
    """−log p in nats, up to `MOST`, in two digits each."""
    return fractions(-np.log(np.maximum(probabilities, np.exp(-MOST))) / MOST)


def digits(values: NDArray[np.int64], width: int) -> str:
    """Whole numbers in `width` digits each."""
    powers = 64 ** np.arange(width - 1, -1, -1)
    found: bytes = DIGITS[values.reshape(-1, 1) // powers % 64].tobytes()
    return found.decode()
