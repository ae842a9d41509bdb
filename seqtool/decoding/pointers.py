"""How a search remembers where its rows came from."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.decoding.forced import Prefix


class Branches(NamedTuple):
    """Continuations, all on the CPU: row, the row of the search that each goes on from; token, its id; log_p, in nats,
    from the first step on. Those of a step are B×W, W for each sentence; others are in a row.
    """

    row: Int[Tensor, "..."]
    token: Int[Tensor, "..."]
    log_p: Float[Tensor, "..."]


class Pointers:
    """Of every step of a search: the row that each new row goes on from and its token, and the attention as the step
    computed it, so of the rows before. Nothing is copied as rows are reordered; `trace` follows the pointers back.
    """

    def __init__(self, prefix: Prefix, sentences: Int[Tensor, "N"]) -> None:
        """`sentences`: whose each of the first rows is."""
        self._prefix = prefix
        self._known = prefix.tokens[:, 1:].tolist()
        self._sentences = sentences.tolist()
        self._rows: list[list[int]] = []
        self._tokens: list[list[int]] = []
        self._attention: list[Tensor] = []

    def attend(self, alpha: Float[Tensor, "N S"]) -> None:
        """A step's attention: at every step or at none."""
        self._attention.append(alpha.cpu())

    def extend(self, rows: Int[Tensor, "N"], tokens: Int[Tensor, "N"]) -> None:
        """The rows that the new ones go on from, and what they are continued with."""
        self._rows.append(rows.tolist())
        self._tokens.append(tokens.tolist())

    def trace(
        self, rows: Int[Tensor, "n"], tokens: Int[Tensor, "n"]
    ) -> tuple[list[list[int]], Float[Tensor, "n T S"] | None]:
        """The hypotheses that go on from `rows` and end with `tokens`, as they were since BOS: their ids, and their
        attention or None.
        """
        path, ids = [rows.tolist()], [tokens.tolist()]
        for parents, fed in zip(reversed(self._rows), reversed(self._tokens), strict=True):
            ids.append([fed[row] for row in path[-1]])
            path.append([parents[row] for row in path[-1]])
        sentences = [self._sentences[row] for row in path[-1]]
        whole = [[*self._known[i], *reversed(one)] for i, one in zip(sentences, zip(*ids, strict=True), strict=True)]
        if not self._attention:
            return whole, None
        steps = zip(self._attention, torch.tensor(path[::-1]), strict=True)
        alphas = [alpha.index_select(0, attending) for alpha, attending in steps]
        return whole, torch.stack(self._prefix.alphas(torch.tensor(sentences)) + alphas, 1)
