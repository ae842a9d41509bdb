"""Turning a model into sentences: one batched beam search (greedy is beam 1), sampling, and forced decoding.

All see only a memory, a state and a step function; they know no model. States and memories are frozen dataclasses of
tensors, batch first, so keeping, repeating and reordering rows are all one function, `select`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from seqtool.data.vocabulary import BOS, EOS, PAD
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import Step

X = TypeVar("X")
StepFunction = Callable[[Any, Any, Tensor], Step[Any]]
LengthPenalty = Callable[[float], float]
BLOCK = 64  # numbers whose maximum is taken at once


class Hypothesis(NamedTuple):
    """A decoded sequence.

    tokens: its ids without BOS and EOS; log_probability: summed over tokens, EOS included, in nats; score: what it
    was ranked by; attention: T×S, a row for each token and one for EOS where it ended, or None; ended: with EOS,
    not by reaching the maximum length.
    """

    tokens: list[int]
    log_probability: float
    score: float
    attention: Tensor | None
    ended: bool


def length_penalty(name: str, alpha: float) -> LengthPenalty:
    """What a log-probability is divided by, given the length in tokens, EOS included.

    `none` 1; `average` the length; `gnmt` ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    penalties: dict[str, LengthPenalty] = {
        "none": lambda length: 1.0,
        "average": lambda length: length,
        "gnmt": lambda length: float(((5 + length) / 6) ** alpha),
    }
    if name not in penalties:
        raise InputError(f"Unknown length_penalty '{name}'; choose from {', '.join(penalties)}.")
    return penalties[name]


def select(tree: X, rows: Tensor) -> X:
    """The given rows of every tensor in a tree of dataclasses and tuples."""
    return cast(X, _select(tree, rows))


def _select(tree: Any, rows: Tensor) -> Any:
    if isinstance(tree, Tensor):
        return tree.index_select(0, rows)
    if isinstance(tree, tuple):
        return tuple(_select(branch, rows) for branch in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: _select(getattr(tree, f.name), rows) for f in fields(tree)})
    return tree


@dataclass(frozen=True)
class _Beams:
    """Partial hypotheses, in N rows: log_p N, tokens N×t from BOS on, attention N×t×S or None."""

    log_p: Tensor
    tokens: Tensor
    attention: Tensor | None

    def extended(self, parents: Tensor, log_p: Tensor, token: Tensor, alpha: Tensor | None) -> "_Beams":
        attention = None
        if alpha is not None:
            attention = alpha[parents, None]
            if self.attention is not None:
                attention = torch.cat([self.attention[parents], attention], 1)
        return _Beams(log_p, torch.cat([self.tokens[parents], token[:, None]], 1), attention)

    def cpu(self) -> "_Beams":
        """Where hypotheses are read from one by one."""
        return _Beams(self.log_p.cpu(), self.tokens.cpu(), None if self.attention is None else self.attention.cpu())


@torch.no_grad()
def beam_search(
    step: StepFunction,
    memory: Any,
    state: Any,
    *,
    beam: int,
    maximum: Sequence[int],
    minimum: int = 1,
    n_best: int,
    penalty: LengthPenalty,
    coverage: float,
    keep_attention: bool,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first; always at least one, also when no beam ends.

    At every step the 2·beam best continuations of a sentence are taken (of a beam of 1 the best: when that ends, the
    sentence is finished). Those among the first `beam` that end are set aside; the best `beam` that do not end live on.
    A sentence is finished when `beam` hypotheses have ended, when no live one can enter its n best any more, or at its
    `maximum` length (tokens, EOS included); it then leaves the batch. None ends before its `minimum` length. `coverage`
    is β of Wu et al. 2016, equation 14: a hypothesis that ended gets β Σ_j log min(Σ_i α_ij, 1).
    """
    finished: list[list[Hypothesis]] = [[] for _ in maximum]
    active = list(range(len(maximum)))
    n = len(active)
    limit, has_finished = torch.tensor(maximum), torch.zeros(n, dtype=torch.bool)  # of the active sentences
    device = _device(state)
    state = select(state, torch.arange(n, device=device).repeat_interleave(beam))
    log_p = torch.full((n, beam), -math.inf)
    log_p[:, 0] = 0.0  # the beams of a sentence start alike: only the first may be continued
    live = _Beams(log_p.flatten(), torch.full((n * beam, 1), BOS), None)  # on the CPU: one wait a step for a GPU
    there = partial(Tensor.to, device=device, non_blocking=True)

    def set_aside(owners: Iterable[int], beams: _Beams) -> None:
        for i, hypothesis in zip(owners, _hypotheses(beams, penalty, coverage), strict=True):
            finished[active[i]].append(hypothesis)

    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha = step(memory, state, there(live.tokens[:, -1]))
        vocabulary = logits.shape[-1]
        log_p = _log_softmax(logits, may_end=length >= minimum).add_(there(live.log_p[:, None]))
        width = 1 if beam == 1 else min(2 * beam, beam * vocabulary)
        best, index = (one.cpu() for one in _highest(log_p.view(n, -1), width))
        del logits, log_p  # so that the next ones take their place
        parents = index // vocabulary + torch.arange(n)[:, None] * beam
        token = index % vocabulary
        candidates = parents.flatten(), best.flatten(), token.flatten()
        weights = alpha.cpu() if alpha is not None and (keep_attention or coverage) else None

        ends = token == EOS
        surviving, chosen = best.masked_fill(ends, -math.inf).topk(beam, -1)
        chosen += torch.arange(n)[:, None] * width  # as rows of `candidates`
        owner, rank = (ends & (best != -math.inf))[:, :beam].nonzero(as_tuple=True)
        if len(owner):
            has_finished[owner] = True
            set_aside(owner.tolist(), live.extended(*select(candidates, owner * width + rank), weights))

        leaving: list[int] = []
        cut: list[tuple[int, int]] = []
        uncertain = has_finished | (limit == length) | (surviving[:, 0] == -math.inf)
        for i, top in zip(uncertain.nonzero().flatten().tolist(), surviving[uncertain, 0].tolist(), strict=True):
            done, most = finished[active[i]], maximum[active[i]]
            if length == most:
                alive = int((surviving[i] != -math.inf).sum()) or int(not done)
                cut += [(i, row) for row in chosen[i, : min(alive, max(0, n_best - len(done)))].tolist()]
            elif len(done) < beam and top != -math.inf:
                hopeless = len(done) >= n_best and top / penalty(most) <= _nth_score(done, n_best)
                if not hopeless:
                    continue
            leaving.append(i)
        if cut:
            owners, rows = zip(*cut, strict=True)
            set_aside(owners, live.extended(*select(candidates, torch.tensor(rows)), weights))
        if len(leaving) == n:
            break
        if leaving:
            stays = torch.ones(n, dtype=torch.bool)
            stays[leaving] = False
            kept = stays.nonzero().flatten()
            surviving, chosen, limit, has_finished = select((surviving, chosen, limit, has_finished), kept)
            memory = select(memory, there(kept))
            active = [active[i] for i in kept.tolist()]
            n = len(active)
        parents, _, token = select(candidates, chosen.flatten())
        live = live.extended(parents, surviving.flatten(), token, weights)
        if beam > 1 or leaving:  # otherwise each row goes on by itself
            state = select(state, there(parents))
    for hypotheses in finished:
        hypotheses.sort(key=lambda h: (not h.ended, -h.score))
    return [hypotheses[:n_best] for hypotheses in finished]


@torch.no_grad()
def sample(
    step: StepFunction,
    memory: Any,
    state: Any,
    *,
    uniforms: Tensor,
    maximum: Sequence[int],
    minimum: int = 1,
    temperature: float,
    top_k: int,
    top_p: float,
    keep_attention: bool,
) -> list[list[Hypothesis]]:
    """Ancestral sampling, most probable first, with the chance passed in: a sentence's samples depend on nothing else.

    `uniforms`, sentences × samples × length, lie in [0, 1): each picks a word by the inverse of the cumulative
    distribution.

    The distribution is sharpened by 1/temperature and cut to the `top_k` most probable tokens (0: all) and to the
    smallest set that holds `top_p` of the probability (Holtzman et al. 2020). Log-probabilities are the model's own.
    """
    device = _device(state)
    n, samples, _ = uniforms.shape
    uniforms = uniforms.to(device).flatten(0, 1)
    state = select(state, torch.arange(n, device=device).repeat_interleave(samples))
    rows = n * samples
    live = _Beams(torch.zeros(rows, device=device), torch.full((rows, 1), BOS, device=device), None)
    everyone = torch.arange(rows, device=device)
    limit = torch.tensor(maximum, device=device).repeat_interleave(samples)
    over = torch.zeros(rows, dtype=torch.bool, device=device)
    for length in range(1, max(maximum, default=0) + 1):
        logits, state, alpha = step(memory, state, live.tokens[:, -1])
        log_p = _log_softmax(logits, may_end=length >= minimum)
        p = _truncated(log_p / temperature, top_k, top_p)
        cumulative = p.cumsum(-1)
        aimed = uniforms[:, length - 1, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, aimed, right=True).clamp(max=p.shape[-1] - 1)
        token = token.masked_fill(over[:, None], PAD)
        gain = log_p.gather(1, token).squeeze(1).masked_fill(over, 0.0)
        live = live.extended(everyone, live.log_p + gain, token.squeeze(1), alpha if keep_attention else None)
        over = over | (token.squeeze(1) == EOS) | (limit == length)
        if bool(over.all()):
            break
    drawn = _hypotheses(live.cpu(), length_penalty("none", 0.0), 0.0)
    groups = [drawn[i * samples : (i + 1) * samples] for i in range(n)]
    return [sorted(group, key=lambda h: -h.log_probability) for group in groups]


@torch.no_grad()
def force(step: StepFunction, memory: Any, state: Any, targets: Tensor) -> list[Hypothesis]:
    """Forced decoding: the probability of given targets (B×(T+1) ids: BOS … EOS, then padding), and the attention."""
    device = targets.device
    live = _Beams(torch.zeros(len(targets), device=device), targets[:, :1], None)
    everyone = torch.arange(len(targets), device=device)
    for token, following in zip(targets.T[:-1], targets.T[1:], strict=True):
        logits, state, alpha = step(memory, state, token)
        gain = logits.float().log_softmax(-1).gather(1, following[:, None]).squeeze(1)
        live = live.extended(everyone, live.log_p + gain.masked_fill(following == PAD, 0.0), following, alpha)
    return _hypotheses(live.cpu(), length_penalty("none", 0.0), 0.0)


class Ensemble:
    """Several models that share vocabularies, decoded as one: their probabilities are averaged
    (Sutskever et al. 2014, section 3.6). Memory and state are tuples, one entry a model.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = tuple(models)

    def encode(self, source: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        encoded = [model.encode(source) for model in self.models]
        return tuple(memory for memory, _ in encoded), tuple(state for _, state in encoded)

    def step(self, memory: tuple[Any, ...], state: tuple[Any, ...], token: Tensor) -> Step[tuple[Any, ...]]:
        steps = [model.step(m, s, token) for model, m, s in zip(self.models, memory, state, strict=True)]
        log_p = torch.stack([s.logits.float().log_softmax(-1) for s in steps]).logsumexp(0)
        alphas = [s.attention for s in steps if s.attention is not None]
        attention = torch.stack(alphas).mean(0) if alphas else None
        return Step(log_p - math.log(len(steps)), tuple(s.state for s in steps), attention)


def _log_softmax(logits: Tensor, *, may_end: bool) -> Tensor:
    """N×V log-probabilities of what may be written: neither padding nor a second beginning, nor an end too early.

    Logits in single precision are overwritten.
    """
    log_p = logits.float()
    torch.log_softmax(log_p, -1, out=log_p)
    for token in (PAD, BOS) if may_end else (PAD, BOS, EOS):  # for an index that is a list, a GPU is waited for
        log_p[:, token] = -math.inf
    return log_p


def _highest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of each row, and where they are, like `topk` but in a quarter of its time on long rows: they lie in
    the k blocks with the highest maxima, or behind the last whole block.
    """
    whole = x.shape[1] // BLOCK * BLOCK
    if whole < 8 * k * BLOCK:
        highest: tuple[Tensor, Tensor] = x.topk(k, -1)
        return highest
    blocks = x[:, :whole].reshape(len(x), -1, BLOCK)
    first = BLOCK * blocks.amax(-1).topk(k, -1).indices[:, :, None]
    index = (first + torch.arange(BLOCK, device=x.device)).flatten(1)
    index = torch.cat([index, torch.arange(whole, x.shape[1], device=x.device).expand(len(x), -1)], 1)
    values, chosen = x.gather(1, index).topk(k, -1)
    return values, index.gather(1, chosen)


def _truncated(log_p: Tensor, top_k: int, top_p: float) -> Tensor:
    if top_k:
        smallest = log_p.topk(min(top_k, log_p.shape[-1]), -1).values[:, -1:]
        log_p = log_p.masked_fill(log_p < smallest, -math.inf)
    p, order = log_p.softmax(-1).sort(-1, descending=True)
    p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0.0)  # the first token always stays
    return torch.zeros_like(p).scatter(-1, order, p)


def _hypotheses(beams: _Beams, penalty: LengthPenalty, coverage: float) -> list[Hypothesis]:
    """One for each row."""
    hypotheses = []
    for row, (tokens, log_p) in enumerate(zip(beams.tokens[:, 1:].tolist(), beams.log_p.tolist(), strict=True)):
        ended = EOS in tokens
        tokens = tokens[: tokens.index(EOS)] if ended else [token for token in tokens if token != PAD]
        length = len(tokens) + ended
        attention = None if beams.attention is None else beams.attention[row, :length].clone()  # no view
        score = log_p / penalty(length)
        if coverage and attention is not None and ended:
            covered = attention.sum(0)
            score += coverage * float(covered[covered > 0].clamp(max=1).log().sum())  # 0 only at padding
        hypotheses.append(Hypothesis(tokens, log_p, score, attention, ended))
    return hypotheses


def _nth_score(hypotheses: list[Hypothesis], n: int) -> float:
    return sorted((h.score for h in hypotheses), reverse=True)[n - 1]


def _device(tree: Any) -> torch.device:
    """Where the first tensor of a tree is."""
    while not isinstance(tree, Tensor):
        tree = tree[0] if isinstance(tree, tuple) else getattr(tree, fields(tree)[0].name)
    return tree.device
