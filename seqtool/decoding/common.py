"""The basis of beam search and sampling: hypotheses, the step function, prefixes, and which tokens may come next.

Forced decoding, which gives the probability of a text, is in this module too. `beam_search.py` and `sampling.py` decide
where a hypothesis ends.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqtool.models.contract import Step, stack
from seqtool.models.tokens import BOS, EOS, PAD, UNK

PREFILL_TOKENS = 1000  # the number of tokens of a prefix read at once; this bounds the memory for long prefixes
StepFunction = Callable[[Any, Any, Int[Tensor, "N"]], Step[Any]]


class TokenPredictions(NamedTuple):
    """What a model predicted at each token of a text, EOS included."""

    entropy: Float[Tensor, "T"]  # the entropy of the distribution, in nats
    tokens: Int[Tensor, "T k"]  # the k likeliest tokens, best first
    log_p: Float[Tensor, "T k"]  # the log-probabilities of these tokens

    def truncate(self, count: int) -> "TokenPredictions":
        """Return the predictions at the first `count` tokens."""
        return TokenPredictions(*(field[:count].clone() for field in self))  # a view would keep those of a batch


class Whole(NamedTuple):
    """The numbers of a whole output: the prefix from which a hypothesis was decoded, and its continuation."""

    prefix_tokens: int  # the length of the prefix, in tokens
    log_probability_with_prefix: float  # the log-probability of all tokens, in nats
    score_with_prefix: float  # the score of all tokens


class Hypothesis(NamedTuple):
    """A decoded sequence."""

    tokens: list[int]  # its ids, including a prefix, without BOS and EOS
    log_probability: float  # the sum over its tokens in nats, EOS included, without a prefix
    score: float  # the number by which it was ranked, without a prefix; the expected score with it if `mbr` ranked
    attention: Float[Tensor, "T S"] | None  # a row for each token and, if it ended, for EOS; None if it was not kept
    ended: bool  # true if it ended with EOS, false if it reached the maximum length
    log_p: Float[Tensor, "T"] | None = None  # of each token, EOS included, after forced decoding (`force`)
    predictions: TokenPredictions | None = None  # what the model predicted at each token, if this was requested
    whole: Whole | None = None  # the numbers of prefix and continuation together, if it has a prefix
    locations: list[int] | None = None  # the source positions chosen by hard attention, one for each row


def hypotheses(
    ids: Sequence[list[int]],
    attention: Float[Tensor, "N T S"] | None,
    locations: Int[Tensor, "N T"] | None,
    log_p: Float[Tensor, "N"],
) -> list[Hypothesis]:
    """Make hypotheses of N rows of ids without BOS: each is cut at its EOS and scored by its log-probability.

    attention, locations: a row of each for every id, as in `Hypothesis`
    log_p: the log-probability of each row, summed over its tokens
    """
    attention = None if attention is None else attention.cpu()
    location_lists = None if locations is None else locations.tolist()
    result = []
    for row, (tokens, log_probability) in enumerate(zip(ids, log_p.tolist(), strict=True)):
        ended = EOS in tokens
        tokens = tokens[: tokens.index(EOS)] if ended else [token for token in tokens if token != PAD]
        length = len(tokens) + ended
        alpha = None if attention is None else attention[row, :length].clone()  # a view would keep all of `attention`
        row_locations = None if location_lists is None else location_lists[row][:length]
        result.append(Hypothesis(tokens, log_probability, log_probability, alpha, ended, locations=row_locations))
    return result


class Prefix(NamedTuple):
    """The beginnings of the outputs of B sentences, all of one length."""

    tokens: Int[Tensor, "B length"]  # BOS and t ids, of which the model has read all but the last
    attention: Float[Tensor, "B t S"] | None  # over the source at each id that was read; None without attention
    location: Int[Tensor, "B t"] | None = None  # the source position that hard attention chose at each, if any


@torch.no_grad()
def read_prefix(model: Any, memory: Any, state: Any, tokens: Int[Tensor, "B t"]) -> tuple[Any, Prefix]:
    """Have the model read known tokens, ids without BOS. Return the state to decode from, and the prefix."""
    tokens = torch.cat([tokens.new_full((len(tokens), 1), BOS), tokens], 1)
    alphas, locations = [], []
    for chunk in torch.split(tokens[:, :-1], PREFILL_TOKENS, 1) if tokens.shape[1] > 1 else ():
        state, alpha, location = model.prefill(memory, state, chunk)
        alphas += [] if alpha is None else [alpha]
        locations += [] if location is None else [location]
    attention, location = (torch.cat(chunks, 1) if chunks else None for chunks in (alphas, locations))
    return state, Prefix(tokens, attention, location)


@torch.no_grad()
def force(
    step: StepFunction, memory: Any, state: Any, targets: Int[Tensor, "B T"], *, likeliest: int = 0
) -> list[Hypothesis]:
    """Forced decoding: return the targets as hypotheses with the log-probability of every token, and the attention.

    targets: ids, BOS … EOS and then padding
    likeliest: the number of likeliest tokens to keep at each position; 0 keeps neither them nor the entropy
    """
    all_log_p, alphas, top_tokens = [], [], []
    for token, next_token in zip(targets.T[:-1], targets.T[1:], strict=True):
        logits, state, alpha, _ = step(memory, state, token)
        log_p = logits.float().log_softmax(-1)
        token_log_p = log_p.gather(1, next_token[:, None]).squeeze(1)
        all_log_p.append(token_log_p.masked_fill(next_token == PAD, 0.0))
        if likeliest:
            possible_log_p = log_p.index_fill(1, torch.tensor([PAD, BOS], device=log_p.device), -torch.inf)
            best = possible_log_p.topk(min(likeliest, log_p.shape[1] - 2), -1)
            top_tokens.append((torch.special.entr(log_p.exp()).sum(-1), best.indices, best.values))
        alphas.append(alpha)
    log_p = torch.stack(all_log_p, 1).cpu()
    results = hypotheses(targets[:, 1:].tolist(), stack(alphas), None, log_p.sum(1))
    results = [h._replace(log_p=row[: len(h.tokens) + h.ended].clone()) for h, row in zip(results, log_p, strict=True)]
    if not likeliest:
        return results
    columns = [torch.stack(column, 1).cpu() for column in zip(*top_tokens, strict=True)]
    rows = [TokenPredictions(*row) for row in zip(*columns, strict=True)]
    return [h._replace(predictions=row.truncate(len(h.tokens) + h.ended)) for h, row in zip(results, rows, strict=True)]


def log_probabilities(logits: Float[Tensor, "N V"], *, may_end: bool, unknown: bool = True) -> Float[Tensor, "N V"]:
    """The log-probabilities of the next token, −∞ for tokens that may not come next: padding, BOS, EOS unless
    `may_end`, and the unknown token unless `unknown`. The remaining probabilities are not renormalised.
    Logits in single precision are overwritten.
    """
    log_p = logits.float()
    torch.log_softmax(log_p, -1, out=log_p)
    for tokens in excluded_ids(may_end=may_end, unknown=unknown):
        log_p[:, tokens] = -math.inf
    return log_p


def excluded_ids(*, may_end: bool, unknown: bool) -> tuple[slice, slice]:
    """The ids that may not come next, as two slices, since indexing with a list would wait for the GPU."""
    return slice(PAD, PAD + 1), slice(BOS if unknown else UNK, (BOS if may_end else EOS) + 1)
