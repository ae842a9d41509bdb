"""A trained model, or several as an ensemble, that writes text: the base of translators, captioners and generators."""

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.text.vocabulary import Vocabulary, load_all
from seqtool.decoding.ensemble import Ensemble
from seqtool.decoding.ranking import Hypothesis, Whole
from seqtool.decoding.settings import DecodeSettings, check_used
from seqtool.errors import InputError, out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.packed import laid_out
from seqtool.models.tokens import EOS
from seqtool.runtime.classes import build, modules
from seqtool.runtime.defaults import defaults
from seqtool.runtime.devices import (
    MODEL_TOO_LARGE,
    MachineSettings,
    as_default,
    check_threads,
    find_device,
    keep_memory,
    make_default,
    threads_set,
)
from seqtool.runtime.precision import check_precision
from seqtool.runtime.task_table import TASKS
from seqtool.settings import names, typed
from seqtool.training import checkpoint
from seqtool.training.checkpoint import Checkpoint

END = "<end>"  # how the end of a text or sentence is shown


@dataclass(frozen=True)
class Prediction:
    """One hypothesis for one source. log_probability in nats, EOS included; score: what it was ranked by.

    pieces: the entries of the vocabulary that make up the text; attention: pieces × source positions, None for a model
    without attention, and `whole_attention` with a row for the end of the text, if it ended, and a column for that of a
    source sentence; ended: by itself, not cut off at its maximum length; log_probabilities: of each piece, and of the
    end; predicted: what was expected there (`expectation`), if it was asked for. Of a text that was begun with a prefix
    log_probability and score are those of what follows, and `whole`, if it was asked for, has those of all.
    """

    text: str
    score: float
    log_probability: float
    pieces: list[str]
    attention: NDArray[np.float32] | None
    ended: bool
    log_probabilities: list[float] | None = field(default=None, kw_only=True)
    predicted: list[dict[str, Any]] | None = field(default=None, kw_only=True, repr=False)
    whole: Whole | None = field(default=None, kw_only=True)
    whole_attention: NDArray[np.float32] | None = field(default=None, kw_only=True, repr=False)

    @classmethod
    def of(cls, hypothesis: Hypothesis, vocabulary: Vocabulary, *, positions: int | None = None, **others: Any) -> Self:
        """`positions`: for how many source positions attention is kept; `others`: the fields that a task adds."""
        length, whole = len(hypothesis.tokens), None
        pieces = [vocabulary.piece(token) for token in hypothesis.tokens]
        if hypothesis.attention is not None:
            columns = None if positions is None else positions + 1
            whole = hypothesis.attention[: length + hypothesis.ended, :columns].float().cpu().numpy()
        return cls(
            text=vocabulary.decode(hypothesis.tokens),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            pieces=pieces,
            attention=None if whole is None else whole[:length, :positions],
            whole_attention=whole,
            ended=hypothesis.ended,
            log_probabilities=None if hypothesis.log_p is None else hypothesis.log_p.tolist(),
            predicted=_expectations([*pieces, *([END] if hypothesis.ended else [])], hypothesis, vocabulary),
            whole=hypothesis.whole,
            **others,
        )

    def record(self) -> dict[str, Any]:
        """Plain containers, for JSON."""
        record = {"text": self.text, "score": self.score, "log_probability": self.log_probability}
        return record if self.whole is None else {**record, **self.whole._asdict()}

    def given(self) -> dict[str, Any]:
        """Its tokens, <end> included, and their log-probabilities, for JSON."""
        tokens = [*self.pieces, END] if self.ended else self.pieces
        return {"tokens": tokens, "log_probabilities": [round(one, 6) for one in self.log_probabilities or ()]}

    def likeliest(self) -> dict[str, Any]:
        """What the model expected at every piece, and at the end, for JSON; nothing if that was not asked for."""
        return {} if self.predicted is None else {"predicted": self.predicted}

    def weights(self) -> dict[str, Any]:
        """The attention of every piece, and of the end, for JSON; nothing without attention."""
        if self.whole_attention is None:
            return {}
        return {"attention": [[round(weight, 4) for weight in row] for row in self.whole_attention.tolist()]}


def expectation(
    token: str, log_p: float, entropy: float, likeliest: Sequence[str], probabilities: Sequence[float]
) -> dict[str, Any]:
    """What a model expected where a token stands: its probability, the entropy of all in nats, and the likeliest ones
    with their probabilities, best first.
    """
    found = {"token": token, "probability": _six(math.exp(log_p)), "entropy": round(entropy, 4)}
    return {**found, "likeliest": [[one, _six(p)] for one, p in zip(likeliest, probabilities, strict=True)]}


def _six(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def _expectations(tokens: Sequence[str], found: Hypothesis, vocabulary: Vocabulary) -> list[dict[str, Any]] | None:
    if found.expected is None or found.log_p is None:
        return None
    shown = [[END if i == EOS else vocabulary.piece(i) for i in ids] for ids in found.expected.tokens.tolist()]
    columns = tokens, found.log_p.tolist(), found.expected.entropy.tolist(), shown, found.expected.log_p.exp().tolist()
    return [expectation(*row) for row in zip(*columns, strict=True)]


class Member(NamedTuple):
    """A checkpoint that was read: its model, its vocabularies by name, and the values that all members of an ensemble
    must have in common, each under the error message for two that differ.
    """

    model: Any
    vocabularies: dict[str, Vocabulary]
    common: dict[str, Any]


Own = TypeVar("Own", bound="Predictor")
P = ParamSpec("P")
R = TypeVar("R")


def with_own_threads(compute: Callable[Concatenate[Own, P], R]) -> Callable[Concatenate[Own, P], R]:
    """Let a predictor's method compute with the number of threads, and on the GPU, that it was loaded with."""

    @wraps(compute)
    def computing(predictor: Own, /, *arguments: P.args, **others: P.kwargs) -> R:
        with threads_set(predictor.threads), as_default(predictor.device):
            return compute(predictor, *arguments, **others)

    return computing


@dataclass(eq=False, repr=False)
class Predictor(ABC):
    """One model or an ensemble, ready to write. `config`, the first checkpoint's, may name classes from `trust`.
    threads: on a CPU, while it computes; None is the caller's number.
    """

    models: Sequence[Any]
    _: KW_ONLY
    target_vocabulary: Vocabulary
    device: torch.device
    settings: Any
    config: dict[str, Any]
    checkpoints: Sequence[Path] = ()
    trust: Sequence[str] = ()
    threads: int | None = None

    task: ClassVar[str]  # of its models, a name in `task_table.TASKS`
    command: ClassVar[str]  # the command that does the same; its YAML file has the defaults
    schema: ClassVar[type[Any]] = DecodeSettings  # of its settings
    base: ClassVar[type[Any]] = EncoderDecoder  # of its models
    parts: ClassVar[dict[str, Any]] = {}  # further arguments of its models, besides settings and vocabulary sizes
    sides: ClassVar[tuple[str, ...]] = ("target",)  # the sides that have vocabularies

    def __post_init__(self) -> None:
        self.model: Any = self.models[0] if len(self.models) == 1 else Ensemble(self.models)
        self.attends = any(model.attends for model in self.models)
        self.longest = min((model.longest for model in self.models if model.longest is not None), default=None)
        self.shortened = self.longest is not None and self.longest < self.settings.max_length
        if self.longest is not None and getattr(self.settings, "min_length", 0) > self.longest:
            raise InputError(
                f"min_length={self.settings.min_length} is more than the model's {self.longest:,} learnt positions: "
                "lower it."
            )
        if self.shortened:
            self.settings = replace(self.settings, max_length=self.longest)
        shortest = f"the model's {self.longest:,} learnt positions" if self.shortened else None
        self.limit = shortest or f"max_length={self.settings.max_length}"  # what bounds a text, for messages
        self._done = 0  # sentences or prompts so far: each one's number seeds its samples
        if isinstance(self.settings, DecodeSettings):
            check_used(self.settings, attends=self.attends, task=self.task)

    def __repr__(self) -> str:
        models = " + ".join(type(model).__name__.removeprefix("Quick") for model in self.models)
        entries = " and ".join(f"{len(getattr(self, f'{side}_vocabulary')):,} {side}" for side in self.sides)
        places = " + ".join(map(str, self.checkpoints))
        return f"{type(self).__name__}({places}: {models}, {entries} entries, {self.device})"

    @property
    def name(self) -> str:
        """The names of its runs."""
        return " + ".join(checkpoint.run_name(path) for path in self.checkpoints)

    @classmethod
    def decoding(cls) -> dict[str, Any]:
        """The default settings for decoding and for the machine."""
        written = defaults(cls.command)
        return {one.name: written[one.name] for one in (*fields(cls.schema), *fields(MachineSettings))}

    @classmethod
    def configured(cls, config: DictConfig) -> Self:
        """The predictor that `checkpoint=` names, with the decoding settings of the command line."""
        keep_memory()
        settings = {name: config[name] for name in cls.decoding()}
        predictor = cls.load(names(config.checkpoint), trust=modules(config.trust), **settings)
        make_default(predictor.device)
        return predictor

    @classmethod
    def load(
        cls, checkpoints: str | Path | Sequence[str | Path], *, trust: str | Sequence[str] = (), **settings: Any
    ) -> Self:
        """Load a run or checkpoint directory, or several as an ensemble. Settings: those of `decoding`;
        trust: the user's own modules whose classes a checkpoint may name.

        Raises InputError for an impossible setting, for checkpoints of another kind of model, and if those of an
        ensemble do not go together.
        """
        merged = {**cls.decoding(), **settings}
        machine = typed(MachineSettings, {one.name: merged.pop(one.name) for one in fields(MachineSettings)})
        chosen = typed(cls.schema, merged)
        check_threads(machine.threads)
        device = find_device(machine.device)
        check_precision(device, chosen.precision)
        paths, trust = [checkpoints] if isinstance(checkpoints, str | Path) else checkpoints, modules(trust)
        found = [checkpoint.find(path, trust=trust) for path in paths]
        if not found:
            raise InputError("checkpoint=… names no run or checkpoint.")
        for one in found:
            if one.model_task != cls.task:
                entry = TASKS[one.model_task]
                raise InputError(f"{one.path} holds {entry.model}: use seqtool {entry.command}.")
        members = [cls.read(one) for one in found]
        for one, member in zip(found, members, strict=True):
            for difference, value in member.common.items():
                if value != members[0].common[difference]:
                    raise InputError(f"{one.path} and {found[0].path} {difference}.")
        with as_default(device), out_of_memory(lambda: MODEL_TOO_LARGE, device):
            models = [laid_out(member.model, chosen.precision, device).to(device).eval() for member in members]
        return cls(
            models,
            device=device,
            settings=chosen,
            config=found[0].config,
            checkpoints=tuple(one.path for one in found),
            trust=trust,
            threads=machine.threads,
            **members[0].vocabularies,
        )

    def given(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> Sequence[Prediction]:
        """The given texts as if they had been written for the sources, or for nothing where None; with `likeliest`,
        also so many tokens that were expected at each place.
        """
        self.check_given(sources is not None)
        raise NotImplementedError

    def check_given(self, sources: bool) -> None:
        """Raise InputError unless this kind of model scores given texts (`given`), with sources or without them."""
        raise InputError(
            f"{self.checkpoints[0]} holds {TASKS[self.task].model}, but score takes translation and language models."
        )

    @classmethod
    def read(cls, found: Checkpoint) -> Member:
        """The model of a checkpoint with its weights; only classes of this package and of `found.trust` are built."""
        known = {f"{side}_vocabulary": one for side, one in load_all(found.path, cls.sides).items()}
        parts = {**cls.parts, **{name: len(one) for name, one in known.items()}}
        make = partial(build, found.config["model"], trusted=found.trust, base=cls.base, **parts)
        different = "have different vocabularies: an ensemble needs one vocabulary"
        return Member(found.load_model(make), known, {different: [one.fingerprint for one in known.values()]})
