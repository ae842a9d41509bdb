"""From sources to hypotheses: batches in a good order, then beam search or sampling, for any model and any source."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from seqtool.data.batches import make_source, make_target
from seqtool.decoding.beam_search import beam_search
from seqtool.decoding.forced import force, read_prefix
from seqtool.decoding.pointers import Lattice
from seqtool.decoding.ranking import Hypothesis, Whole, length_penalty
from seqtool.decoding.sampling import sample
from seqtool.decoding.settings import DecodeSettings
from seqtool.errors import out_of_memory
from seqtool.models.inputs import Source
from seqtool.models.tokens import UNK
from seqtool.runtime import distributed
from seqtool.runtime.precision import autocast, onednn

X = TypeVar("X")


@contextmanager
def computing(device: torch.device, precision: str, *, lower: str) -> Iterator[None]:
    """Without gradients, and as fast as the device can; if memory runs out, OutOfMemoryError says what to `lower`."""
    with (
        out_of_memory(lambda: f"while decoding: lower {lower}.", device),
        torch.inference_mode(),
        autocast(device, precision),
        onednn(),
    ):
        yield


@dataclass(frozen=True)
class Sources:
    """The sources to decode, one per row.

    order: the order in which rows are batched, similar lengths together and the longest first; batch: given some rows,
    the input of the model's `encode`; maximum: each row's greatest output length in tokens, EOS included and a prefix
    not, or None.
    """

    order: Sequence[int]
    batch: Callable[[Sequence[int]], Any]
    maximum: Sequence[int] | None = None


def encoded_sentences(ids: Sequence[Sequence[int]]) -> Sources:
    """Encoded sentences: an output may have three times as many tokens as its source, plus ten."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    return Sources(order, lambda rows: make_source([ids[i] for i in rows]), [3 * len(one) + 10 for one in ids])


def decode(
    model: Any,
    sources: Sources,
    settings: DecodeSettings,
    *,
    device: torch.device,
    numbers: Sequence[int] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    keep_attention: bool,
    progress: Callable[[int], None] | None = None,
    trace: Lattice | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for each source, in the order given; several processes share out the batches.

    `numbers`, one per source (by default its row), seed the sampling. `prefixes`: with what ids each output begins, all
    of one length, which counts as part of the output's. After each batch `progress` is called with the number of
    sources that this process has just finished. `trace` records the search for a single source.
    """
    penalty = length_penalty(settings.length_penalty, settings.length_alpha)
    known = len(prefixes[0]) if prefixes else 0

    def decoded(rows: Sequence[int]) -> list[list[Hypothesis]]:
        with computing(device, settings.precision, lower=settings.memory):
            source = sources.batch(rows).to(device)
            memory, state = model.encode(source)
            prefix = None
            if prefixes:
                tokens = torch.tensor([list(prefixes[i]) for i in rows], dtype=torch.int64, device=device)
                state, prefix = read_prefix(model, memory, state, tokens)
            limits = {
                "maximum": _limits(sources, rows, settings, known),
                "minimum": max(1, settings.min_length - known),
            }
            start = (model.step, memory, state)
            asked: dict[str, Any] = {**limits, "keep_attention": keep_attention, "prefix": prefix}
            if settings.sample:
                found = _sampled(start, settings, [i if numbers is None else numbers[i] for i in rows], asked)
            else:
                found = beam_search(
                    *start,
                    beam=settings.beam,
                    n_best=settings.n_best,
                    penalty=penalty,
                    coverage=settings.coverage_penalty,
                    mask=source.mask if isinstance(source, Source) else None,
                    trace=trace,
                    **asked,
                )
        if progress is not None:
            progress(len(rows))
        return found

    return in_batches(decoded, sources.order, settings.at_once)


def _limits(sources: Sources, rows: Sequence[int], settings: DecodeSettings, known: int) -> list[int]:
    """How many tokens each row may have after a prefix of `known` ones."""
    return [max(1, most_tokens(sources, i, settings, known) - known) for i in rows]


def most_tokens(sources: Sources, row: int, settings: DecodeSettings, known: int) -> int:
    """How many tokens a row may have, with its prefix of `known` ones."""
    if sources.maximum is None:
        return settings.max_length
    return max(settings.min_length, min(settings.max_length, sources.maximum[row] + known))


def _sampled(
    start: tuple[Any, Any, Any], settings: DecodeSettings, numbers: Sequence[int], asked: dict[str, Any]
) -> list[list[Hypothesis]]:
    """Samples of each source, those that ended first, the likelier before the others."""
    uniforms = np.stack([settings.uniforms(number) for number in numbers])
    drawn = sample(
        *start,
        uniforms=torch.from_numpy(uniforms).float(),
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        **asked,
    )
    return [sorted(some, key=lambda one: (not one.ended, -one.log_probability)) for some in drawn]


def force_all(
    model: Any,
    sources: Sources,
    targets: Sequence[Sequence[int]],
    settings: DecodeSettings,
    *,
    device: torch.device,
    owners: Sequence[int] | None = None,
    likeliest: int = 0,
) -> list[Hypothesis]:
    """Forced decoding (`forced.force`) of targets, ids without BOS and EOS, in batches, for the sources that are their
    `owners`: rows of `sources`, by default one for each.
    """
    owners = range(len(targets)) if owners is None else owners
    place = {row: i for i, row in enumerate(sources.order)}

    def forced(some: Sequence[int]) -> list[Hypothesis]:
        with computing(device, settings.precision, lower=f"{settings.memory}, or give shorter texts"):
            memory, state = model.encode(sources.batch([owners[i] for i in some]).to(device))
            target = make_target([targets[i] for i in some]).to(device)
            return force(model.step, memory, state, target, likeliest=likeliest)

    order = sorted(range(len(targets)), key=lambda i: (len(targets[i]), -place[owners[i]]))
    return in_batches(forced, order, settings.at_once)


def explained(
    model: Any,
    sources: Sources,
    found: Sequence[Sequence[Hypothesis]],
    settings: DecodeSettings,
    *,
    device: torch.device,
    likeliest: int,
) -> list[list[Hypothesis]]:
    """The n best of each source, also with what the model expected at each token, those of a prefix included."""
    flat = [(row, one) for row, n_best in enumerate(found) for one in n_best]
    asked: dict[str, Any] = {"device": device, "owners": [row for row, _ in flat], "likeliest": likeliest}
    forced = force_all(model, sources, [one.tokens for _, one in flat], settings, **asked)
    result: list[list[Hypothesis]] = [[] for _ in found]
    for (row, one), again in zip(flat, forced, strict=True):
        length = len(one.tokens) + one.ended  # one that was cut off has no end
        log_p, expected = again.log_p, again.expected
        if log_p is not None and expected is not None:
            result[row].append(one._replace(log_p=log_p[:length], expected=expected.first(length)))
    return result


def with_prefixes(
    model: Any,
    sources: Sources,
    prefixes: Sequence[Sequence[int]],
    found: Sequence[Sequence[Hypothesis]],
    settings: DecodeSettings,
    *,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """The n best of each source, decoded from its prefix, also with the probability and score of the whole."""
    penalty = length_penalty(settings.length_penalty, settings.length_alpha)
    result = []
    for prefix, forced, n_best in zip(
        prefixes, force_all(model, sources, prefixes, settings, device=device), found, strict=True
    ):
        count, unknown = len(prefix), prefix.count(UNK)
        before = 0.0 if forced.log_p is None else float(forced.log_p[:count].double().sum())
        wholes = []
        for one in n_best:
            length, log_p = len(one.tokens) + one.ended, before + one.log_probability
            coverage = 0.0 if settings.sample else one.score - one.log_probability / penalty(length - count)
            score = log_p if settings.sample else log_p / penalty(length) + coverage
            wholes.append(one._replace(whole=Whole(count, unknown, log_p, score)))
        result.append(wholes)
    return result


def in_batches(function: Callable[[Sequence[int]], Sequence[X]], order: Sequence[int], size: int) -> list[X]:
    """The function's results for the rows 0, 1, 2, …, called with `size` of them at a time in the given order;
    several processes share out the batches.
    """
    batches = list(chunks(order, size))
    results = distributed.together(function, batches)
    found = {row: one for rows, some in zip(batches, results, strict=True) for row, one in zip(rows, some, strict=True)}
    return [found[row] for row in range(len(order))]


def chunks(items: Sequence[X], size: int) -> Iterator[Sequence[X]]:
    return (items[i : i + size] for i in range(0, len(items), size))
