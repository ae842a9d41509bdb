"""From sources to hypotheses: batches in a good order, then beam search or sampling, for any model and any source."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from seqtool.data.batches import make_source, make_target
from seqtool.decoding.beam_search import Lattice, beam_search, length_penalty
from seqtool.decoding.hypotheses import Hypothesis, force, read_prefix
from seqtool.decoding.sampling import sample
from seqtool.decoding.settings import DecodeSettings
from seqtool.errors import out_of_memory
from seqtool.models.inputs import Source
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

    order: the order in which rows are batched, similar lengths together and the longest first
    batch: from rows to the input of the model's `encode`
    maximum: each row's greatest output length in tokens, with EOS and without a prefix, or None
    remember: changes the memory of a batch of rows, if that is needed
    """

    order: Sequence[int]
    batch: Callable[[Sequence[int]], Any]
    maximum: Sequence[int] | None = None
    remember: Callable[[Any, Sequence[int]], Any] | None = None

    def encoded(self, model: Any, rows: Sequence[int], device: torch.device) -> tuple[Any, Any, Any]:
        """A batch, its memory and the decoder's first state."""
        source = self.batch(rows).to(device)
        memory, state = model.encode(source)
        return source, memory if self.remember is None else self.remember(memory, rows), state


def encoded_sentences(ids: Sequence[Sequence[int]]) -> Sources:
    """Encoded sentences: an output may have three times as many tokens as its source, plus ten."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    maximum = [3 * len(sentence) + 10 for sentence in ids]
    return Sources(order, lambda rows: make_source([ids[i] for i in rows]), maximum)


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
    """The n best hypotheses for each source, in the order of its rows; several processes share out the batches.

    numbers: of each source, which seeds its samples; by default its row
    prefixes: the ids with which each output begins, all of one length, which counts as part of the output's
    progress: is called after each batch with the number of sources that this process has just finished
    trace: records the search for a single source
    """
    prefix_length = len(prefixes[0]) if prefixes else 0

    def decode_batch(rows: Sequence[int]) -> list[list[Hypothesis]]:
        with computing(device, settings.precision, lower=settings.memory):
            source, memory, state = sources.encoded(model, rows, device)
            prefix = None
            if prefixes:
                tokens = torch.tensor([list(prefixes[i]) for i in rows], dtype=torch.int64, device=device)
                state, prefix = read_prefix(model, memory, state, tokens)
            common: dict[str, Any] = {
                "step": model.step,
                "memory": memory,
                "state": state,
                "maximum": [max(1, most_tokens(sources, i, settings, prefix_length) - prefix_length) for i in rows],
                "minimum": max(1, settings.min_length - prefix_length),
                "keep_attention": keep_attention,
                "prefix": prefix,
            }
            if settings.sample:
                drawn = [settings.uniforms(i if numbers is None else numbers[i]) for i in rows]
                samples = sample(
                    uniform_noise=torch.from_numpy(np.stack(drawn)).float(),
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    top_p=settings.top_p,
                    **common,
                )  # those that ended come first, the likelier before the others
                n_best = [sorted(each, key=lambda h: (not h.ended, -h.log_probability)) for each in samples]
            else:
                n_best = beam_search(
                    beam=settings.beam,
                    n_best=settings.n_best,
                    penalty=length_penalty(settings.length_penalty, settings.length_alpha),
                    coverage=settings.coverage_penalty,
                    mask=source.mask if isinstance(source, Source) else None,
                    trace=trace,
                    **common,
                )
        if progress is not None:
            progress(len(rows))
        return n_best

    return in_batches(decode_batch, sources.order, settings.at_once)


def most_tokens(sources: Sources, row: int, settings: DecodeSettings, prefix_length: int) -> int:
    """How many tokens a row's output may have, with its prefix."""
    if sources.maximum is None:
        return settings.max_length
    return max(settings.min_length, min(settings.max_length, sources.maximum[row] + prefix_length))


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
    """Forced decoding (`hypotheses.force`) of targets, ids without BOS and EOS, in batches.

    owners: for each target the row of `sources` that it belongs to; by default one target for each
    likeliest: also what was expected, so many tokens at each place
    """
    owners = range(len(targets)) if owners is None else owners
    place = {row: i for i, row in enumerate(sources.order)}

    def force_batch(batch: Sequence[int]) -> list[Hypothesis]:
        with computing(device, settings.precision, lower=f"{settings.memory}, or give shorter texts"):
            _, memory, state = sources.encoded(model, [owners[i] for i in batch], device)
            target = make_target([targets[i] for i in batch]).to(device)
            return force(model.step, memory, state, target, likeliest=likeliest)

    order = sorted(range(len(targets)), key=lambda i: (len(targets[i]), -place[owners[i]]))
    return in_batches(force_batch, order, settings.at_once)


def in_batches(function: Callable[[Sequence[int]], Sequence[X]], order: Sequence[int], size: int) -> list[X]:
    """The function's results for the rows 0, 1, 2, …, called with `size` of them at a time in the given order;
    several processes share out the batches.
    """
    batches = list(chunks(order, size))
    results: dict[int, X] = {}
    for rows, of_batch in zip(batches, distributed.together(function, batches), strict=True):
        results.update(zip(rows, of_batch, strict=True))
    return [results[row] for row in range(len(order))]


def chunks(items: Sequence[X], size: int) -> Iterator[Sequence[X]]:
    return (items[i : i + size] for i in range(0, len(items), size))
