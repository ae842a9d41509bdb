"""A trained model, or several as an ensemble, that writes text: what translators, captioners and generators share. The
lists that callers in Python hand over are checked before any work, and refused without printing what they hold.
"""

import math
from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.text.alignment import joined, piece_words
from seqtool.data.text.vocabulary import Vocabulary, load_all
from seqtool.decoding.batching import DecodeSettings, Ensemble, Sources, check_used, decode, force_all
from seqtool.decoding.beam_search import length_penalty
from seqtool.decoding.common import Expected, Hypothesis, Whole
from seqtool.errors import InputError, out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, Parts, build_model
from seqtool.models.tokens import END, EOS, UNK
from seqtool.runtime import devices
from seqtool.runtime.defaults import defaults
from seqtool.runtime.precision import check_precision
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import modules
from seqtool.training.checkpoint import Checkpoint, find, run_name


@dataclass(eq=False)
class EncodedText:
    """A text and the ids of its tokens, without BOS and EOS. Its pieces and words, which only some outputs need, are
    worked out when they are asked for.

    limit: the number of tokens that the model reads; None is all of them
    split: the text into the words that links number
    """

    text: str
    ids: list[int]
    vocabulary: Vocabulary
    limit: int | None = None
    split: Callable[[str], list[str]] = str.split

    @property
    def read(self) -> list[int]:
        """The ids that the model reads."""
        return self.ids[: self.limit]

    @cached_property
    def all_pieces(self) -> list[str]:
        """A piece for each id; unknown ones as they are written."""
        if UNK in self.ids:
            return self.vocabulary.pieces(self.text)
        return list(map(self.vocabulary.piece, self.ids))

    @property
    def pieces(self) -> list[str]:
        """A piece for each id that the model reads."""
        return self.all_pieces[: self.limit]

    @cached_property
    def unknown(self) -> list[str]:
        """The pieces of the whole text that the vocabulary does not have."""
        if UNK not in self.ids:
            return []
        return [piece for piece, index in zip(self.all_pieces, self.ids, strict=True) if index == UNK]

    @cached_property
    def words(self) -> list[str]:
        """All words, as they are written."""
        return self.split(self.text)

    @cached_property
    def places(self) -> list[int]:
        """The word of each piece that the model reads."""
        return piece_words(self.pieces, list(map(self.vocabulary.form.normalize, self.words)))


def encoded(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    limit: int | None = None,
    split: Callable[[str], list[str]] = str.split,
) -> list[EncodedText]:
    """The texts with their ids; `limit` and `split` as in `EncodedText`."""
    ids = vocabulary.encode_batch(texts)
    return [EncodedText(*pair, vocabulary, limit, split) for pair in zip(texts, ids, strict=True)]


@dataclass(frozen=True)
class Prediction:
    """One hypothesis for one source, or a text that was scored.

    text: as it is written; of a scored text, as it was given
    score: what it was ranked by
    log_probability: in nats, EOS included
    pieces: the entries of the vocabulary that make up the text
    attention: pieces × source positions; None for a model without attention
    ended: by itself, not cut off at its maximum length
    log_probabilities: of each piece and of the end, if they were asked for
    predicted: what was expected at each of these (`expectations`), if it was asked for
    whole: with its prefix, if it has one: log-probability and score, since those above are of what follows the prefix
    whole_attention: with a row for the end of the text, if it ended, and a column for that of a source sentence
    prefix: the beginning from which it was decoded
    target: the text that was scored
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
    prefix: EncodedText | None = field(default=None, kw_only=True, repr=False, compare=False)
    target: EncodedText | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, hypothesis: Hypothesis, vocabulary: Vocabulary, *, positions: int | None = None, **others: Any) -> Self:
        """The prediction that a decoded hypothesis is.

        positions: the number of source positions for which attention is kept; None is all
        others: the fields that a task adds
        """
        length, whole = len(hypothesis.tokens), None
        if hypothesis.attention is not None:
            columns = None if positions is None else positions + 1
            whole = hypothesis.attention[: length + hypothesis.ended, :columns].float().cpu().numpy()
        predicted = None
        if hypothesis.expected is not None and hypothesis.log_p is not None:
            tokens = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
            predicted = expectations(tokens, hypothesis.log_p.tolist(), hypothesis.expected, vocabulary)
        return cls(
            text=vocabulary.decode(hypothesis.tokens),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            pieces=[vocabulary.piece(token) for token in hypothesis.tokens],
            attention=None if whole is None else whole[:length, :positions],
            whole_attention=whole,
            ended=hypothesis.ended,
            log_probabilities=None if hypothesis.log_p is None else hypothesis.log_p.tolist(),
            predicted=predicted,
            whole=hypothesis.whole,
            **others,
        )

    @property
    def prefix_unknown(self) -> list[str]:
        """The pieces of the prefix that the model does not know."""
        return [] if self.prefix is None else self.prefix.unknown

    def record(self, *, weights: bool = False) -> dict[str, Any]:
        """Plain containers, for JSON: with what was expected, if that was asked for, and, if `weights` are wanted and
        there are any, the attention of every piece and of the end.
        """
        record = self.summary()
        if self.predicted is not None:
            record["predicted"] = self.predicted
        if weights and self.whole_attention is not None:
            rows = [[round(weight, 4) for weight in row] for row in self.whole_attention.tolist()]
            record |= {**self.columns(), "attention": rows}
        return record

    def summary(self) -> dict[str, Any]:
        """What a record has in any case."""
        record = {"text": self.text, "score": self.score, "log_probability": self.log_probability}
        return record if self.whole is None else {**record, **self.whole._asdict()}

    def columns(self) -> dict[str, Any]:
        """What the columns of the attention in a record stand for."""
        return {}

    def scored_record(self, *, weights: bool = False) -> dict[str, Any]:
        """The record of a scored text: with its tokens, <end> included, and their log-probabilities."""
        record = self.record(weights=weights)
        record |= {"tokens": [*self.pieces, END] if self.ended else self.pieces}
        record["log_probabilities"] = [round(log_p, 6) for log_p in self.log_probabilities or ()]
        return {name: value for name, value in record.items() if name not in ("score", "ended")}

    def inputs(self) -> dict[str, Any]:
        """What was given beside a scored text, for JSON, and which pieces the model does not know."""
        return {"unknown": [] if self.target is None else self.target.unknown}


def displayed(token: int, vocabulary: Vocabulary) -> str:
    """A token for people."""
    return END if token == EOS else vocabulary.piece(token)


def expectations(
    tokens: Sequence[int], log_p: Sequence[float], expected: Expected, vocabulary: Vocabulary
) -> list[dict[str, Any]]:
    """What a model expected where each token (an id) stands, for JSON: its probability, the entropy of all in nats, and
    the likeliest tokens with their probabilities, best first.
    """

    def rounded(probability: float) -> float:
        return float(f"{probability:.6g}")

    records = []
    best = expected.tokens.tolist(), expected.log_p.exp().tolist()
    for token, logarithm, entropy, ids, p in zip(tokens, log_p, expected.entropy.tolist(), *best, strict=True):
        tokens_there = zip(ids, p, strict=True)
        likeliest = [[displayed(index, vocabulary), rounded(probability)] for index, probability in tokens_there]
        record = {"token": displayed(token, vocabulary), "probability": rounded(math.exp(logarithm))}
        records.append({**record, "entropy": round(entropy, 4), "likeliest": likeliest})
    return records


class EnsembleMember(NamedTuple):
    """The model of a checkpoint, its vocabularies by the arguments of a predictor, and the values that all members of
    an ensemble must have in common, each under the error message for two that differ.
    """

    model: Any
    vocabularies: dict[str, Vocabulary]
    common: dict[str, Any]


@dataclass(eq=False, repr=False)
class Predictor(ABC):
    """One model or an ensemble, ready to write.

    config: the first checkpoint's, which may name classes from the modules `trust`
    checkpoints: those that the models are from
    threads: on a CPU, while it computes; None is the caller's number
    """

    models: Sequence[Any]
    _: KW_ONLY
    target_vocabulary: Vocabulary
    device: torch.device
    settings: Any
    config: dict[str, Any]
    checkpoints: Sequence[Checkpoint] = ()
    trust: Sequence[str] = ()
    threads: int | None = None

    task: ClassVar[str]  # of its models, a name in `task_table.TASKS`
    writes: ClassVar[str]  # what it writes, in messages
    command: ClassVar[str]  # the command that does the same; its YAML file has the defaults
    schema: ClassVar[type[Any]] = DecodeSettings  # of its settings
    base: ClassVar[type[Any]] = EncoderDecoder  # of its models
    parts: ClassVar[dict[str, Any]] = {}  # further arguments of its models, besides settings and vocabulary sizes
    sides: ClassVar[tuple[str, ...]] = ("target",)  # the sides that have vocabularies

    def __post_init__(self) -> None:
        self.model: Any = self.models[0] if len(self.models) == 1 else Ensemble(self.models)
        self.attends = any(model.attends for model in self.models)
        self.longest = min(
            (model.max_positions for model in self.models if model.max_positions is not None), default=None
        )
        self._prefix_limit = f"max_length={self.settings.max_length}: shorten it, or allow more"
        if self.longest is not None and getattr(self.settings, "min_length", 0) > self.longest:
            raise InputError(
                f"min_length={self.settings.min_length} is more than the model's {self.longest:,} learnt positions: "
                "lower it."
            )
        if self.longest is not None and self.longest < self.settings.max_length:
            self.settings = replace(self.settings, max_length=self.longest)
            self._prefix_limit = f"the model's {self.longest:,} learnt positions: shorten it"
        self._done = 0  # sentences or prompts so far: each one's number seeds its samples
        if isinstance(self.settings, DecodeSettings):
            check_used(self.settings, attends=self.attends, task=self.task)

    def __repr__(self) -> str:
        models = " + ".join(map(class_name, self.checkpoints))
        entries = " and ".join(f"{len(getattr(self, f'{side}_vocabulary')):,} {side}" for side in self.sides)
        places = " + ".join(str(checkpoint.path) for checkpoint in self.checkpoints)
        return f"{type(self).__name__}({places}: {models}, {entries} entries, {self.device})"

    @property
    def name(self) -> str:
        """The names of its runs."""
        return " + ".join(run_name(checkpoint.path) for checkpoint in self.checkpoints)

    @classmethod
    def decoding(cls) -> dict[str, Any]:
        """The default settings for decoding and for the machine."""
        written = defaults(cls.command)
        return {setting.name: written[setting.name] for setting in (*fields(cls.schema), *fields(declarations.Machine))}

    @classmethod
    def configured(cls, config: DictConfig) -> Self:
        """The predictor that `checkpoint=` names, with the decoding settings of the command line."""
        devices.keep_memory()
        settings = {name: config[name] for name in cls.decoding()}
        predictor = cls.load(names(config.checkpoint), trust=modules(config.trust), **settings)
        devices.make_default(predictor.device)
        return predictor

    @classmethod
    def load(
        cls,
        checkpoints: str | Path | Checkpoint | Sequence[str | Path | Checkpoint],
        *,
        trust: str | Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """Load a run or checkpoint directory, or several as an ensemble.

        checkpoints: one or a list, each a path or a checkpoint that was opened (`checkpoint.find`)
        trust: the user's own modules whose classes the checkpoints at these paths may name
        settings: those of `decoding`

        Raises InputError for an impossible setting, for checkpoints of another kind of model, and if those of an
        ensemble do not go together.
        """
        merged = {**cls.decoding(), **settings}
        machine = typed(
            declarations.Machine, {setting.name: merged.pop(setting.name) for setting in fields(declarations.Machine)}
        )
        chosen = typed(cls.schema, merged)
        devices.check_threads(machine.threads)
        device = devices.find_device(machine.device)
        check_precision(device, chosen.precision)
        listed = [checkpoints] if isinstance(checkpoints, str | Path | Checkpoint) else checkpoints
        opened = [
            checkpoint if isinstance(checkpoint, Checkpoint) else find(checkpoint, trust=modules(trust))
            for checkpoint in listed
        ]
        if not opened:
            raise InputError("checkpoint=… names no run or checkpoint.")
        for checkpoint in opened:
            if checkpoint.model_task != cls.task:
                entry = TASKS[checkpoint.model_task]
                raise InputError(f"{checkpoint.path} holds {entry.model}: use seqtool {entry.command}.")
        members = [cls.read(checkpoint, parts_for(device)) for checkpoint in opened]
        for checkpoint, member in zip(opened, members, strict=True):
            for difference, value in member.common.items():
                if value != members[0].common[difference]:
                    raise InputError(f"{checkpoint.path} and {opened[0].path} {difference}.")
        with devices.computing_on(device), out_of_memory(lambda: devices.MODEL_TOO_LARGE, device):
            models = [
                optimise_for_decoding(member.model, chosen.precision, device).to(device).eval() for member in members
            ]
        return cls(
            models,
            device=device,
            settings=chosen,
            config=opened[0].config,
            checkpoints=opened,
            trust=opened[0].trust,
            threads=machine.threads,
            **members[0].vocabularies,
        )

    @classmethod
    def read(cls, checkpoint: Checkpoint, parts: Parts = PLAIN) -> EnsembleMember:
        """The model of a checkpoint, built of these parts, with its weights; only classes of this package and of its
        `trust` are built.
        """
        vocabularies = load_all(checkpoint.path, cls.sides)
        arguments = {f"{side}_vocabulary": vocabulary for side, vocabulary in vocabularies.items()}
        others = {**cls.parts, **{name: len(vocabulary) for name, vocabulary in arguments.items()}}
        settings = checkpoint.config["model"]
        make = partial(build_model, settings, base=cls.base, trusted=checkpoint.trust, parts=parts, **others)
        prints = [vocabulary.fingerprint for vocabulary in vocabularies.values()]
        different = "have different vocabularies: an ensemble needs one vocabulary"
        return EnsembleMember(checkpoint.load_model(make), arguments, {different: prints})

    def own_machine(self) -> AbstractContextManager[None]:
        """Within it, torch computes with the number of threads, and on the GPU, that the model was loaded with."""
        return devices.computing_on(self.device, self.threads)

    def encode_prefix(self, prefix: str | Sequence[str]) -> EncodedText:
        """How a text is to begin, given as a text or as pieces. InputError for one that leaves no room for more."""
        ids = self.target_vocabulary.encode_beginning(prefix)
        if len(ids) >= self.settings.max_length:
            raise InputError(
                f"The prefix '{joined(prefix)[:40]}' has {len(ids):,} tokens, but {self.writes} has at most "
                f"{self._prefix_limit}."
            )
        encoded = EncodedText(joined(prefix), ids, self.target_vocabulary)
        if not isinstance(prefix, str):
            encoded.all_pieces = list(prefix)
        return encoded

    def search(
        self,
        sources: Callable[[Sequence[int]], Sources],
        numbers: Sequence[int],
        prefixes: Sequence[EncodedText],
        *,
        likeliest: int = 0,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """The n best hypotheses for each source, best first: those whose prefixes are equally long at once.

        sources: some rows → the sources to decode
        numbers: seed the samples of each row
        prefixes: how the texts of each row begin
        likeliest: the number of tokens that were expected at each place, to be kept too
        options: of `batching.decode`: keep_attention, progress, trace
        """
        result: dict[int, list[Hypothesis]] = {}
        for length in sorted({len(prefix.ids) for prefix in prefixes}):
            rows = [row for row, prefix in enumerate(prefixes) if len(prefix.ids) == length]
            batch, begun = sources(rows), [prefixes[row].ids for row in rows]
            options |= {"numbers": [numbers[row] for row in rows], "prefixes": begun if length else None}
            with self.own_machine():
                bests = decode(self.model, batch, self.settings, device=self.device, **options)
                if likeliest:
                    bests = self._with_expected(batch, bests, likeliest)
                if length:
                    bests = self._with_prefixes(batch, begun, bests)
            result |= zip(rows, bests, strict=True)
        return [result[row] for row in range(len(numbers))]

    def _with_expected(
        self, sources: Sources, bests: Sequence[Sequence[Hypothesis]], likeliest: int
    ) -> list[list[Hypothesis]]:
        """The n best also with what the model expected at each token, those of a prefix included."""
        owners, hypotheses = zip(*((row, best) for row, n_best in enumerate(bests) for best in n_best), strict=True)
        targets = [hypothesis.tokens for hypothesis in hypotheses]
        all_forced = force_all(
            self.model, sources, targets, self.settings, device=self.device, owners=owners, likeliest=likeliest
        )
        result: list[list[Hypothesis]] = [[] for _ in bests]
        for row, hypothesis, forced in zip(owners, hypotheses, all_forced, strict=True):
            length = len(hypothesis.tokens) + hypothesis.ended  # one that was cut off has no end
            assert forced.log_p is not None and forced.expected is not None
            here = forced.expected.first(length)
            result[row].append(hypothesis._replace(log_p=forced.log_p[:length], expected=here))
        return result

    def _with_prefixes(
        self, sources: Sources, prefixes: Sequence[Sequence[int]], bests: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The n best also with the probability and score of the whole, prefix and what follows."""
        settings = self.settings
        penalty = length_penalty(settings.length_penalty, settings.length_alpha)
        all_forced = force_all(self.model, sources, prefixes, settings, device=self.device)
        result = []
        for prefix, forced, n_best in zip(prefixes, all_forced, bests, strict=True):
            count, unknown = len(prefix), prefix.count(UNK)
            before = 0.0 if forced.log_p is None else float(forced.log_p[:count].double().sum())
            wholes = []
            for hypothesis in n_best:
                length, log_p = len(hypothesis.tokens) + hypothesis.ended, before + hypothesis.log_probability
                score = log_p
                if not settings.sample:
                    coverage = hypothesis.score - hypothesis.log_probability / penalty(length - count)
                    score = log_p / penalty(length) + coverage
                wholes.append(hypothesis._replace(whole=Whole(count, unknown, log_p, score)))
            result.append(wholes)
        return result

    def forced(
        self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0
    ) -> Sequence[Prediction]:
        """Score texts by forced decoding: as if they had been written for the sources, or for nothing where None.

        likeliest: the number of tokens that were expected at each place, to be kept too

        Raises InputError for a kind of model that scores no texts.
        """
        self.check_scoring(with_sources=sources is not None)
        raise NotImplementedError

    def check_scoring(self, *, with_sources: bool) -> None:
        """Raise InputError unless this kind of model scores texts (`forced`), with sources or without them."""
        kind = TASKS[self.task].model
        raise InputError(f"{self.checkpoints[0].path} holds {kind}, but score takes translation and language models.")


def class_name(checkpoint: Checkpoint) -> str:
    """The name of the class of a checkpoint's model."""
    return str(checkpoint.config["model"]["_target_"]).rpartition(".")[2]


def check_texts(values: Any, *, what: str, kind: str) -> list[str]:
    """The texts of a list. `what`: the beginning of a message, as "translate takes"; `kind`: what each text is."""
    return [str(text) for text in check_list(values, what, kind, lambda text: isinstance(text, str), "text")]


def check_paths(values: Any, *, what: str, kind: str) -> list[str]:
    """The paths of a list."""
    listed = check_list(values, what, kind, lambda path: isinstance(path, str | PathLike), "a path")
    return [str(fspath(path)) for path in listed]


def check_list(values: Any, what: str, kind: str, suits: Callable[[Any], bool], wanted: str) -> list[Any]:
    """The items of a list, a tuple, or an array or column of a table; a set has no order, and a table has columns."""
    if suits(values):
        raise InputError(f"{what} a list of {kind}s: write [{kind}] for a single one.")
    unfit = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Collection)
    if unfit or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{what} a list of {kind}s, not {_described(values)}.")
    items = list(values)
    for number, item in enumerate(items, 1):
        if not suits(item):
            raise InputError(f"{what} a list of {kind}s, but number {number:,} is {_described(item)}, not {wanted}.")
    return items


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} ({' × '.join(map(str, value.shape)) or 'one number'})"
    name = type(value).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'aeiou' else ''} {name}"
