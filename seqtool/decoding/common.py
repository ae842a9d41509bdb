"""What all ways of decoding share: hypotheses, the step function, prefixes that the model has read, and the tokens that
may come next; and forced decoding, which gives the probability of a text. Where a hypothesis ends is decided in
`beam_search.py` and `sampling.py`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.models.contract import Step, stacked
from seqtool.models.tokens import BOS, EOS, PAD, UNK

AT_ONCE = 1000  # tokens of a prefix that are read at once, however long it is
StepFunction = Callable[[Any, Any, Int[Tensor, "N"]], Step[Any]]


class Expected(NamedTuple):
    """What a model expected where each token of a text stands, EOS included: the entropy of its distribution in nats,
    and the k likeliest tokens, best first, with their log-probabilities.
    """

    entropy: Float[Tensor, "T"]
    tokens: Int[Tensor, "T k"]
    log_p: Float[Tensor, "T k"]

    def first(self, count: int) -> "Expected":
        return Expected(*(column[:count] for column in self))


class Whole(NamedTuple):
    """A hypothesis with the prefix from which it was decoded: the prefix's length in tokens, how many of them the model
    does not know, and the log-probability and score of all tokens together.
    """

    prefix_tokens: int
    prefix_unknown: int
    log_probability_with_prefix: float
    score_with_prefix: float


class Hypothesis(NamedTuple):
    """A decoded sequence.

    tokens: its ids without BOS and EOS, with a prefix's
    log_probability: summed over tokens, EOS included, in nats, without a prefix's
    score: what it was ranked by, likewise
    attention: a row for each token and, if it ended, one for EOS, with a prefix's, or None
    ended: whether with EOS, not by reaching the maximum length
    log_p: of each token of a text that was forced (`force`), EOS included
    expected: what the model expected there, if it was asked for
    whole: with the prefix from which it was decoded, if it was asked for
    locations: for each row of attention the source position that hard attention chose; None if it chose none
    """

    tokens: list[int]
    log_probability: float
    score: float
    attention: Float[Tensor, "T S"] | None
    ended: bool
    log_p: Float[Tensor, "T"] | None = None
    expected: Expected | None = None
    whole: Whole | None = None
    locations: list[int] | None = None


def hypotheses(
    ids: Sequence[list[int]],
    attention: Float[Tensor, "N T S"] | None,
    locations: Int[Tensor, "N T"] | None,
    log_p: Float[Tensor, "N"],
) -> list[Hypothesis]:
    """N rows of ids, without BOS, as hypotheses: each up to its EOS, without padding, scored by log-probability."""
    attention = None if attention is None else attention.cpu()
    chosen = None if locations is None else locations.tolist()
    result = []
    for row, (tokens, log_probability) in enumerate(zip(ids, log_p.tolist(), strict=True)):
        ended = EOS in tokens
        tokens = tokens[: tokens.index(EOS)] if ended else [token for token in tokens if token != PAD]
        alpha = None if attention is None else attention[row, : len(tokens) + ended].clone()  # no view
        chosen_here = None if chosen is None else chosen[row][: len(tokens) + ended]
        result.append(Hypothesis(tokens, log_probability, log_probability, alpha, ended, locations=chosen_here))
    return result


class Prefix(NamedTuple):
    """The beginnings of B sentences' outputs.

    tokens: BOS and t ids, of which the model has read all but the last
    attention, location: over the source and of hard attention, as in `contract.Step`, or None
    """

    tokens: Int[Tensor, "B length"]
    attention: Float[Tensor, "B t S"] | None
    location: Int[Tensor, "B t"] | None = None


@torch.no_grad()
def read_prefix(model: Any, memory: Any, state: Any, tokens: Int[Tensor, "B t"]) -> tuple[Any, Prefix]:
    """Have the model read known tokens, ids without BOS. Returns the state to decode from and the prefix."""
    tokens = torch.cat([tokens.new_full((len(tokens), 1), BOS), tokens], 1)
    alphas, locations = [], []
    for piece in torch.split(tokens[:, :-1], AT_ONCE, 1) if tokens.shape[1] > 1 else ():
        state, alpha, location = model.prefill(memory, state, piece)
        alphas += [] if alpha is None else [alpha]
        locations += [] if location is None else [location]
    attention, location = (torch.cat(pieces, 1) if pieces else None for pieces in (alphas, locations))
    return state, Prefix(tokens, attention, location)


@torch.no_grad()
def force(
    step: StepFunction, memory: Any, state: Any, targets: Int[Tensor, "B T"], *, likeliest: int = 0
) -> list[Hypothesis]:
    """Forced decoding: the probability of targets (ids: BOS … EOS, then padding), token by token, and the attention;
    with `likeliest`, also what was expected there, so many tokens at each place.
    """
    gains, alphas, expected = [], [], []
    for token, following in zip(targets.T[:-1], targets.T[1:], strict=True):
        logits, state, alpha, _ = step(memory, state, token)
        log_p = logits.float().log_softmax(-1)
        gain = log_p.gather(1, following[:, None]).squeeze(1)
        gains.append(gain.masked_fill(following == PAD, 0.0))
        if likeliest:
            possible = log_p.index_fill(1, torch.tensor([PAD, BOS], device=log_p.device), -torch.inf)
            best = possible.topk(min(likeliest, log_p.shape[1] - 2), -1)
            expected.append((torch.special.entr(log_p.exp()).sum(-1), best.indices, best.values))
        alphas.append(alpha)
    total = torch.stack(gains, 1).cpu()
    forced = hypotheses(targets[:, 1:].tolist(), stacked(alphas), None, total.sum(1))
    forced = [h._replace(log_p=row[: len(h.tokens) + h.ended]) for h, row in zip(forced, total, strict=True)]
    if not likeliest:
        return forced
    columns = [torch.stack(column, 1).cpu() for column in zip(*expected, strict=True)]
    rows = [Expected(*row) for row in zip(*columns, strict=True)]
    return [h._replace(expected=row.first(len(h.tokens) + h.ended)) for h, row in zip(forced, rows, strict=True)]


def log_probabilities(logits: Float[Tensor, "N V"], *, may_end: bool, unknown: bool = True) -> Float[Tensor, "N V"]:
    """Log-probabilities of the tokens that may come next: no padding, no second BOS, no EOS too early, and the unknown
    token only if `unknown`. They are the model's own: those that are left need not sum to 1.

    Logits in single precision are overwritten.
    """
    log_p = logits.float()
    torch.log_softmax(log_p, -1, out=log_p)
    for tokens in impossible(may_end=may_end, unknown=unknown):
        log_p[:, tokens] = -math.inf
    return log_p


def impossible(*, may_end: bool, unknown: bool) -> tuple[slice, slice]:
    """The tokens that cannot come next. As slices: indexing by a list would wait for the GPU."""
    return slice(PAD, PAD + 1), slice(BOS if unknown else UNK, (BOS if may_end else EOS) + 1)
