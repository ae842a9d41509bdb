"""Known tokens: the probability of whole targets, and prefixes from which decoding continues."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.decoding.ranking import Expected, Hypothesis, hypotheses
from seqtool.models.contract import Step, stacked
from seqtool.models.tokens import BOS, PAD

AT_ONCE = 1000  # tokens of a prefix that are read at once, however long it is
StepFunction = Callable[[Any, Any, Int[Tensor, "N"]], Step[Any]]


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
