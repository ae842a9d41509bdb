"""Decode sources in batches, with any model: the settings of decoding, batches sorted by length, beam search or
sampling of each, forced decoding, and ensembles.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from seqtool.data.batches import make_source, make_target
from seqtool.decoding.beam_search import Lattice, beam_search, length_penalty
from seqtool.decoding.common import Hypothesis, force, read_prefix
from seqtool.decoding.sampling import sample
from seqtool.errors import InputError, out_of_memory
from seqtool.models.contract import Prefilled, Step
from seqtool.models.inputs import Source
from seqtool.runtime import distributed
from seqtool.runtime.configs import defaults
from seqtool.runtime.precision import autocast, onednn
from seqtool.settings import declarations

X = TypeVar("X")

SAMPLING_SETTINGS = ("temperature", "top_k", "top_p")  # not `seed`, which also draws the locations of hard attention
MBR_SETTINGS = ("mbr_samples", "mbr_frequencies")
MIN_TEMPERATURE = 1e-4  # unless 0 (greedy): dividing logits by less could overflow


@dataclass
class DecodeSettings(declarations.Decode):
    """The settings of decoding; configs/decoding.yaml describes each and holds the defaults."""

    def __post_init__(self) -> None:
        problems = out_of_range(type(self), vars(self))
        if not problems:  # only values within their ranges are compared
            if not self.sample and self.n_best > self.beam:
                problems.append(f"n_best ({self.n_best}) cannot be more than beam ({self.beam})")
            if self.mbr is not None and (self.sample or self.beam == 1):
                problems.append("mbr= chooses from a beam: leave out sample=true, and set beam to 2 or more")
            if self.min_length > self.max_length:
                problems.append(f"min_length ({self.min_length}) cannot be more than max_length ({self.max_length})")
        if self.mbr is not None and self.mbr_samples is None:
            self.mbr_samples = declarations.DEFAULT_MBR_SAMPLES
        length_penalty(self.length_penalty, self.length_alpha)  # raises InputError for an unknown name
        if problems:
            raise InputError("; ".join(problems) + ".")

    @property
    def sources_per_batch(self) -> int:
        """The number of sources in a batch: `batch_size`, or as many as have `HYPOTHESES_PER_BATCH` hypotheses."""
        hypotheses_per_source = self.n_best if self.sample else max(self.beam, self.mbr_samples or 0)
        return self.batch_size or max(1, declarations.HYPOTHESES_PER_BATCH // hypotheses_per_source)

    @property
    def memory(self) -> str:
        """The settings to lower if memory runs out."""
        return f"{'' if self.mbr is None else 'mbr_samples, '}batch_size, beam, n_best or max_length"

    def uniform_noise(self, source_number: int) -> NDArray[np.float64]:
        """The random numbers in [0, 1) for the samples of one source, n_best or mbr_samples × max_length. They depend
        only on the seed and on the source's number, never on the other sources of its batch.
        """
        samples = self.n_best if self.sample else int(self.mbr_samples or 0)
        return np.random.default_rng([self.seed, source_number]).random((samples, self.max_length))


def source_length(settings: Any) -> int:
    """The maximum number of tokens of a source that are read, EOS included: at least the default `max_length`, so that
    a small `max_length` shortens outputs, not sources. settings: the decoding or the validation settings
    """
    return int(settings.max_source_length or max(settings.max_length, defaults("decoding")["max_length"]))


def out_of_range(schema: type, settings: Mapping[str, Any]) -> list[str]:
    """The problems with the values of decoding settings, which `schema` declares, each as a clause."""
    problems = declarations.out_of_range(schema, settings)
    if 0 < settings["temperature"] < MIN_TEMPERATURE:
        problems.append(
            f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, not {settings['temperature']:g}"
        )
    return problems


def check_used(settings: DecodeSettings, *, attends: bool, task: str) -> None:
    """Raise InputError for settings without effect: settings of sampling without `sample`, settings of minimum Bayes
    risk without `mbr`, the coverage penalty without attention, and the maximum length of sources in tasks other than
    translation.
    """
    changed_names = [name for name in SAMPLING_SETTINGS if getattr(settings, name) != defaults("decoding")[name]]
    if changed_names and not settings.sample:
        joined = ", ".join(f"{name}=" for name in changed_names)
        raise InputError(f"{joined} can only be given with sample=true, which draws words instead of searching.")
    for name in MBR_SETTINGS:
        if settings.mbr is None and getattr(settings, name) is not None:
            raise InputError(f"{name}= can only be given with mbr=, the score that chooses from the beam.")
    if settings.max_source_length is not None and task != "translation":
        raise InputError("max_source_length=… is for translations: a picture has no tokens.")
    if settings.coverage_penalty and not attends:
        raise InputError("coverage_penalty=… needs a model with attention; this one has a fixed context.")


@contextmanager
def computing(device: torch.device, precision: str, *, lower: str) -> Iterator[None]:
    """Compute without gradients within the context, in this precision, and with oneDNN where it is exact. If memory
    runs out, the error advises to lower the settings `lower`.
    """
    with (
        out_of_memory(lambda: f"while decoding: lower {lower}.", device),
        torch.inference_mode(),
        autocast(device, precision),
        onednn(),
    ):
        yield


@dataclass(frozen=True)
class Sources:
    """The sources to decode, one per row."""

    order: Sequence[int]  # the rows as they are batched: the longest first, so that similar lengths are together
    batch: Callable[[Sequence[int]], Any]  # returns the input of the model's `encode` for the rows with these indices
    maximum: Sequence[int] | None = None  # tokens of each row's output, with EOS, without a prefix; None: `max_length`
    change_memory: Callable[[Any, Sequence[int]], Any] | None = None  # such as adding random numbers to rows' memory

    def encode(self, model: Any, rows: Sequence[int], device: torch.device) -> tuple[Any, Any, Any]:
        """The batch of these rows, the model's memory of it, and the decoder's first state."""
        source = self.batch(rows).to(device)
        memory, state = model.encode(source)
        if self.change_memory is not None:
            memory = self.change_memory(memory, rows)
        return source, memory, state


def encoded_sentences(ids: Sequence[Sequence[int]]) -> Sources:
    """Sentences, as ids, to decode. An output may have three times as many tokens as its source, plus ten."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    maximum = [3 * len(sentence) + 10 for sentence in ids]
    return Sources(order, lambda rows: make_source([ids[i] for i in rows]), maximum)


def decode(
    model: Any,
    sources: Sources,
    settings: DecodeSettings,
    *,
    device: torch.device,
    source_numbers: Sequence[int] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    keep_attention: bool,
    progress: Callable[[int], None] | None = None,
    trace: Lattice | None = None,
    rank: Callable[[list[Hypothesis], list[Hypothesis]], list[Hypothesis]] | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses for each source, in the order of the rows. Several processes share the batches.

    source_numbers: the position of each row's source in the input, which seeds its samples; by default its row
    prefixes: the ids with which each output begins; all are equally long, and their length counts towards max_length
    progress: called after each batch with the number of sources that this process has just finished
    trace: records the search for a single source
    rank: puts the hypotheses of a beam in another order, given `mbr_samples` samples of their source
    """
    prefix_length = len(prefixes[0]) if prefixes else 0

    def begin(rows: Sequence[int], *, keep_attention: bool) -> tuple[Any, dict[str, Any]]:
        """The batch of these rows, and arguments that beam search and sampling have in common."""
        source, memory, state = sources.encode(model, rows, device)
        prefix = None
        if prefixes:
            tokens = torch.tensor([list(prefixes[i]) for i in rows], dtype=torch.int64, device=device)
            state, prefix = read_prefix(model, memory, state, tokens)
        return source, {
            "step": model.step if keep_attention or settings.coverage_penalty else model.step_without_attention,
            "memory": memory,
            "state": state,
            "maximum": [max(1, max_tokens(sources, i, settings, prefix_length) - prefix_length) for i in rows],
            "minimum": max(1, settings.min_length - prefix_length),
            "keep_attention": keep_attention,
            "prefix": prefix,
        }

    def draw(rows: Sequence[int], *, keep_attention: bool) -> list[list[Hypothesis]]:
        noise = [settings.uniform_noise(i if source_numbers is None else source_numbers[i]) for i in rows]
        _, arguments = begin(rows, keep_attention=keep_attention)
        return sample(
            uniform_noise=torch.from_numpy(np.stack(noise)).float(),
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            **arguments,
        )

    def search(rows: Sequence[int]) -> list[list[Hypothesis]]:
        source, arguments = begin(rows, keep_attention=keep_attention)
        return beam_search(
            beam=settings.beam,
            n_best=settings.n_best if rank is None else settings.beam,
            penalty=length_penalty(settings.length_penalty, settings.length_alpha),
            coverage=settings.coverage_penalty,
            mask=source.mask if isinstance(source, Source) else None,
            trace=trace,
            **arguments,
        )

    def decode_batch(rows: Sequence[int]) -> list[list[Hypothesis]]:
        with computing(device, settings.precision, lower=settings.memory):
            if settings.sample:
                # Samples that ended come first; both groups are sorted by log-probability.
                samples = draw(rows, keep_attention=keep_attention)
                n_best = [sorted(group, key=lambda h: (not h.ended, -h.log_probability)) for group in samples]
            elif rank is None:
                n_best = search(rows)
            else:
                lists = zip(search(rows), draw(rows, keep_attention=False), strict=True)
                n_best = [rank(*each)[: settings.n_best] for each in lists]
        if progress is not None:
            progress(len(rows))
        return n_best

    return map_in_batches(decode_batch, sources.order, settings.sources_per_batch)


def max_tokens(sources: Sources, row: int, settings: DecodeSettings, prefix_length: int) -> int:
    """The maximum number of tokens of a row's output, its prefix included."""
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
    """Forced decoding (`common.force`) of targets, ids without BOS and EOS, in batches.

    owners: for each target, the row of its source in `sources`; by default the i-th target belongs to row i
    likeliest: the number of likeliest tokens to keep at each position; 0 keeps neither them nor the entropy
    """
    owners = range(len(targets)) if owners is None else owners
    batch_position = {row: i for i, row in enumerate(sources.order)}

    def force_batch(batch: Sequence[int]) -> list[Hypothesis]:
        with computing(device, settings.precision, lower=f"{settings.memory}, or give shorter texts"):
            _, memory, state = sources.encode(model, [owners[i] for i in batch], device)
            target = make_target([targets[i] for i in batch]).to(device)
            return force(model.step, memory, state, target, likeliest=likeliest)

    order = sorted(range(len(targets)), key=lambda i: (len(targets[i]), -batch_position[owners[i]]))
    return map_in_batches(force_batch, order, settings.sources_per_batch)


def map_in_batches(function: Callable[[Sequence[int]], Sequence[X]], order: Sequence[int], size: int) -> list[X]:
    """Return a function's results for the rows 0, 1, 2, …, calling it with `size` rows at a time in the given order.
    Several processes share the batches, and then the sizes differ by at most one row.
    """
    batches, processes = list(chunks(order, size)), distributed.size()
    if processes > 1:
        count = min(processes * math.ceil(len(batches) / processes), len(order))  # as many for each process
        batches = [order[i * len(order) // count : (i + 1) * len(order) // count] for i in range(count)]
    results: dict[int, X] = {}
    for rows, batch_results in zip(batches, distributed.parallel_map(function, batches), strict=True):
        results.update(zip(rows, batch_results, strict=True))
    return [results[row] for row in range(len(order))]


def chunks(items: Sequence[X], size: int) -> Iterator[Sequence[X]]:
    """Split a sequence into pieces of `size` items; the last may be shorter."""
    return (items[i : i + size] for i in range(0, len(items), size))


class Ensemble:
    """Several models with the same vocabularies, decoded as one model: their probabilities are averaged
    (Sutskever et al. 2014, section 3.6). Memory and state are tuples with one entry per model.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = tuple(models)

    def encode(self, source: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        encoded = [model.encode(source) for model in self.models]
        return tuple(memory for memory, _ in encoded), tuple(state for _, state in encoded)

    def prefill(
        self, memory: tuple[Any, ...], state: tuple[Any, ...], tokens: Int[Tensor, "N t"]
    ) -> Prefilled[tuple[Any, ...]]:
        outputs = [model.prefill(m, s, tokens) for model, m, s in zip(self.models, memory, state, strict=True)]
        return Prefilled(tuple(output.state for output in outputs), _mean([output.attention for output in outputs]))

    def step(self, memory: tuple[Any, ...], state: tuple[Any, ...], token: Int[Tensor, "N"]) -> Step[tuple[Any, ...]]:
        return self._averaged([model.step for model in self.models], memory, state, token)

    def step_without_attention(self, *arguments: Any) -> Step[tuple[Any, ...]]:
        return self._averaged([model.step_without_attention for model in self.models], *arguments)

    def _averaged(self, functions: Sequence[Any], memory: Any, state: Any, token: Tensor) -> Step[tuple[Any, ...]]:
        """Call a function of each model, and average their probabilities and attention."""
        steps = [step(m, s, token) for step, m, s in zip(functions, memory, state, strict=True)]
        log_p = torch.stack([s.logits.float().log_softmax(-1) for s in steps]).logsumexp(0)
        attention = _mean([s.attention for s in steps])
        return Step(log_p - math.log(len(steps)), tuple(s.state for s in steps), attention)


def _mean(attention: Sequence[Float[Tensor, "N *t S"] | None]) -> Float[Tensor, "N *t S"] | None:
    """The mean attention of the models that have any; None if none has."""
    alphas = [alpha for alpha in attention if alpha is not None]
    return torch.stack(alphas).mean(0) if alphas else None
