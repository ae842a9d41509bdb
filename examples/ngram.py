"""N-gram language models with interpolated Kneser–Ney smoothing, beside a recurrent one on the same text.

An n-gram model is a Markov model of order n − 1: it predicts a token from the n − 1 tokens before it, and forgets all
others. With n = 1 it is memoryless. It is not trained by gradients, only counted:

    p_n(w | h) = max(c(h w) − D, 0) / c(h) + D · N₁₊(h •) / c(h) · p_{n-1}(w | h')
    p_0(w) = 1 / V

h are the n − 1 tokens before w, and h' the last n − 2 of them; D, between 0 and 1, is what is taken from each count and
given to the shorter context; N₁₊(h •) is how many different tokens were seen after h. In the order that is asked for,
c counts how often tokens were seen. In the shorter contexts, c(h w) is N₁₊(• h w), the number of different tokens
before h w: after "San", "Francisco" is frequent, but after a context that was never seen, it should be rare.
If h was never seen, p_n(w | h) = p_{n-1}(w | h').

Sources: Kneser and Ney (1995), "Improved backing-off for m-gram language modeling"; Ney, Essen and Kneser (1994), "On
structuring probabilistic dependences in stochastic language modelling", for D = n₁ / (n₁ + 2 n₂), where n₁ and n₂ are
the numbers of n-grams with counts of 1 and 2; Chen and Goodman (1999), "An empirical study of smoothing techniques for
language modeling", for the interpolated form.

    python examples/ngram.py
"""

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import seqtool
from seqtool.data.corpora import toy
from seqtool.data.corpora.plain_text import BUILT_IN

BEGIN = ""  # the token before the text, as often as a context needs it
UNKNOWN = "\0"  # stands for every token that was not counted


class Order(NamedTuple):
    """The counts of one order: of each token by context, and of each context."""

    tokens: dict[tuple[str, ...], Counter[str]]
    totals: dict[tuple[str, ...], int]
    discount: float

    @classmethod
    def of(cls, ngrams: Iterable[tuple[str, ...]]) -> "Order":
        """Count n-grams, each a context and a token."""
        tokens: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for *context, token in ngrams:
            tokens[tuple(context)][token] += 1
        sizes = Counter(count for counts in tokens.values() for count in counts.values())
        once, twice = sizes[1], sizes[2]
        discount = once / (once + 2 * twice) if once and twice else 0.5  # too little was counted to estimate it
        return cls(dict(tokens), {context: counts.total() for context, counts in tokens.items()}, discount)


class NGramModel:
    """An n-gram model of a sequence of tokens, and of the unknown token."""

    def __init__(self, tokens: Sequence[str], n: int) -> None:
        self.n, self.vocabulary = n, {*tokens, UNKNOWN}
        ngrams: Iterable[tuple[str, ...]] = self._windows(tokens)
        self.orders: list[Order] = []  # longest context first
        for _ in range(n):
            self.orders.append(Order.of(ngrams))
            different = [(*context, token) for context, counts in self.orders[-1].tokens.items() for token in counts]
            ngrams = [ngram[1:] for ngram in different]  # each of them once: N₁₊(• h w)

    def probability(self, token: str, context: Sequence[str]) -> float:
        """p(token | context); at least n − 1 tokens of context, of which the last count."""
        token = token if token in self.vocabulary else UNKNOWN
        p = 1 / len(self.vocabulary)
        for length, order in enumerate(reversed(self.orders)):
            h = tuple(context[len(context) - length :])
            if counts := order.tokens.get(h):
                share = order.discount * len(counts) / order.totals[h]
                p = max(counts[token] - order.discount, 0) / order.totals[h] + share * p
        return p

    def nats(self, tokens: Sequence[str]) -> float:
        """−log p of a text."""
        return -math.fsum(math.log(self.probability(token, h)) for *h, token in self._windows(tokens))

    def _windows(self, tokens: Sequence[str]) -> Iterable[tuple[str, ...]]:
        padded = [BEGIN] * (self.n - 1) + list(tokens)
        return zip(*(islice(padded, start, None) for start in range(self.n)), strict=False)


class Row(NamedTuple):
    name: str
    nats: float
    tokens: int
    unknown: int


def compare(train: str, test: str, orders: Sequence[int]) -> list[Row]:
    """Score `test` by n-gram models of the characters and of the words of `train`."""
    rows = []
    for unit, pattern in (("character", r"(?s)."), ("word", r"\w+|\W")):  # both keep every character
        seen, tokens = re.findall(pattern, train), re.findall(pattern, test)
        vocabulary = set(seen)
        unknown = sum(token not in vocabulary for token in tokens)
        rows.append(Row(f"uniform, {unit}s", len(tokens) * math.log(len(vocabulary) + 1), len(tokens), unknown))
        for n in orders:
            rows.append(Row(f"{n}-gram, {unit}s", NGramModel(seen, n).nats(tokens), len(tokens), unknown))
    return rows


def texts(file: Path | None) -> tuple[str, str]:
    """Split a text as `seqtool train data=text` does: the last tenth is not trained on. None: the built-in text."""
    if file is None:
        pairs = toy.generate(**BUILT_IN, valid=0, test=0)["train"]
        text = "".join(f"{pair.source}\n" for pair in pairs)
    else:
        text = file.read_text(encoding="utf-8")
    end = int(len(text) * (1 - 0.1))
    return text[:end], text[end:]


def recurrent(checkpoint: str, test: str) -> Row:
    """Score a text by a trained language model, from its start."""
    (scored,) = seqtool.load(checkpoint, device="cpu").forced(None, [test])
    return Row(
        f"{checkpoint} (LSTM)", -scored.log_probability, len(scored.log_probabilities), len(scored.target.unknown)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare n-gram models with a recurrent one on the same text.")
    parser.add_argument("--checkpoint", default="builtin/text", help="a language model (default: %(default)s)")
    parser.add_argument("--train", type=int, default=None, help="characters to count; all by default")
    parser.add_argument("--test", type=int, default=20_000, help="characters to score (default: %(default)s)")
    parser.add_argument("--text", type=Path, help="the text on which it was trained; by default the built-in one")
    options = parser.parse_args(arguments)
    train, test = texts(options.text)
    train, test = train[: options.train], test[: options.test]
    rows = [*compare(train, test, range(1, 6)), recurrent(options.checkpoint, test)]
    words = len(test.split())
    print(f"counted {len(train):,} characters, scored {len(test):,}\n")
    print(f"{'model':22}  tokens  unknown  perplexity/token  perplexity/character  perplexity/word  bits/character")
    for name, nats, tokens, unknown in rows:
        per_token, per_character, per_word = (math.exp(nats / count) for count in (tokens, len(test), words))
        line = f"{name:22}  {tokens:6,}  {unknown:7}  {per_token:16.2f}  {per_character:20.3f}  {per_word:15.5g}"
        print(f"{line}  {nats / math.log(2) / len(test):14.3f}")
    print(
        "\nA perplexity of k: on average, as uncertain as among k equally likely tokens. Per token, only models with\n"
        "the same tokens can be compared; per character or word, or in bits, all can. The uniform model knows only\n"
        "which tokens there are; the 1-gram, how frequent each is; an n-gram sees n − 1 tokens back; the LSTM, all."
    )


if __name__ == "__main__":
    main()
