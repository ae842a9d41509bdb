"""`Predictor`: the base class of translators, captioners and generators, each with one model or an ensemble.

Lists from callers in Python are checked before any work. Error messages about them do not print their contents.
"""

import copy
import math
from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig

from seqtool.data.text.alignment import join_pieces, piece_words
from seqtool.data.text.vocabulary import Vocabulary, load_all
from seqtool.decoding.batching import DecodeSettings, Ensemble, Sources, check_used, decode, force_all
from seqtool.decoding.beam_search import length_penalty
from seqtool.decoding.common import Hypothesis, TokenPredictions, Whole
from seqtool.errors import InputError, out_of_memory
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.parts import PLAIN, Parts, build_model
from seqtool.models.tokens import END, EOS, UNK
from seqtool.predict.attribution import STEPS, Attribution, Contrast
from seqtool.predict.trace import Example, Trace
from seqtool.runtime import devices
from seqtool.runtime.configs import defaults
from seqtool.runtime.precision import check_precision
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, typed
from seqtool.settings.classes import import_class, modules
from seqtool.training.checkpoint import Checkpoint, find, run_directory

Text = str | Sequence[str] | None  # a text or its pieces, to be read by a model; None is the best prediction


@dataclass(eq=False)
class EncodedText:
    """A text and its ids, without BOS and EOS. Pieces and words, which some outputs need, are computed on demand."""

    text: str
    ids: list[int]
    vocabulary: Vocabulary
    limit: int | None = None  # the maximum number of tokens that the model reads; None: all
    split: Callable[[str], list[str]] = str.split  # splits the text into the words that alignments number
    ended: bool = True  # whether the text ends there; an output that was cut off does not

    @property
    def read(self) -> list[int]:
        """The ids that the model reads."""
        return self.ids[: self.limit]

    @cached_property
    def all_pieces(self) -> list[str]:
        """The piece of each id; unknown pieces are spelt as in the text."""
        if UNK in self.ids:
            return self.vocabulary.pieces(self.text)
        return list(map(self.vocabulary.piece, self.ids))

    @property
    def pieces(self) -> list[str]:
        """The piece of each id that the model reads."""
        return self.all_pieces[: self.limit]

    @cached_property
    def unknown(self) -> list[str]:
        """The pieces of the whole text that are not in the vocabulary."""
        if UNK not in self.ids:
            return []
        return [piece for piece, index in zip(self.all_pieces, self.ids, strict=True) if index == UNK]

    @cached_property
    def words(self) -> list[str]:
        """The words of the whole text, spelt as in the text."""
        return self.split(self.text)

    @cached_property
    def word_indices(self) -> list[int]:
        """The index of the word to which each piece that the model reads belongs."""
        return piece_words(self.pieces, list(map(self.vocabulary.form.normalize, self.words)))


def encode(
    texts: Sequence[str],
    vocabulary: Vocabulary,
    limit: int | None = None,
    split: Callable[[str], list[str]] = str.split,
) -> list[EncodedText]:
    """Encode texts together; `limit` and `split` as in `EncodedText`."""
    ids = vocabulary.encode_batch(texts)
    return [EncodedText(*pair, vocabulary, limit, split) for pair in zip(texts, ids, strict=True)]


@dataclass(frozen=True)
class Prediction:
    """One hypothesis for one source, or a text that was scored.

    text: the decoded text; for a scored text, the text as it was given
    score: the number by which it was ranked, without the prefix; the expected score with it if `mbr` ranked
    log_probability: the log-probability in nats, EOS included, without the prefix
    pieces: the vocabulary's entries that make up the text
    attention: pieces × source positions; None for a model without attention
    ended: true if it ended with EOS, false if it was cut off at its maximum length
    log_probabilities: the log-probability of each piece and of EOS, if requested
    predicted: what the model predicted at each piece and at EOS (`prediction_records`), if requested
    whole: the log-probability and score including the prefix, if there is one
    attribution: what its tokens depend on, if requested
    whole_attention: the attention with a row for EOS, if the text ended, and a column for the EOS of a source sentence
    prefix: the beginning from which the text was decoded
    target: the text that was scored
    """

    text: str
    score: float
    log_probability: float
    pieces: list[str]
    attention: NDArray[np.float32] | None = field(compare=False)
    ended: bool
    log_probabilities: list[float] | None = field(default=None, kw_only=True)
    predicted: list[dict[str, Any]] | None = field(default=None, kw_only=True, repr=False)
    whole: Whole | None = field(default=None, kw_only=True)
    attribution: Attribution | None = field(default=None, kw_only=True, repr=False, compare=False)
    whole_attention: NDArray[np.float32] | None = field(default=None, kw_only=True, repr=False, compare=False)
    prefix: EncodedText | None = field(default=None, kw_only=True, repr=False, compare=False)
    target: EncodedText | None = field(default=None, kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, hypothesis: Hypothesis, vocabulary: Vocabulary, *, positions: int | None = None, **added: Any) -> Self:
        """Make a prediction of a decoded hypothesis.

        positions: the number of source positions for which attention is kept, EOS left out; None: all
        added: the fields that the subclass adds
        """
        length, whole_attention = len(hypothesis.tokens), None
        if hypothesis.attention is not None:
            columns = None if positions is None else positions + 1
            whole_attention = hypothesis.attention[: length + hypothesis.ended, :columns].float().cpu().numpy()
        predicted = None
        if hypothesis.predictions is not None and hypothesis.log_p is not None:
            tokens = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
            predicted = prediction_records(tokens, hypothesis.log_p.tolist(), hypothesis.predictions, vocabulary)
        return cls(
            text=vocabulary.decode(hypothesis.tokens),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            pieces=[vocabulary.piece(token) for token in hypothesis.tokens],
            attention=None if whole_attention is None else whole_attention[:length, :positions],
            whole_attention=whole_attention,
            ended=hypothesis.ended,
            log_probabilities=None if hypothesis.log_p is None else hypothesis.log_p.tolist(),
            predicted=predicted,
            whole=hypothesis.whole,
            **added,
        )

    @property
    def prefix_unknown(self) -> list[str]:
        """The pieces of the prefix that the model does not know."""
        return [] if self.prefix is None else self.prefix.unknown

    def record(self, *, weights: bool = False) -> dict[str, Any]:
        """The record for JSON, with `predicted` if it was requested, and with the attention if `weights` is true."""
        record = self.summary()
        if self.predicted is not None:
            record["predicted"] = self.predicted
        if self.attribution is not None:
            record["attribution"] = self.attribution.record()
        if weights and self.whole_attention is not None:
            rows = [[round(weight, 4) for weight in row] for row in self.whole_attention.tolist()]
            record |= {**self.columns(), "attention": rows}
        return record

    def summary(self) -> dict[str, Any]:
        """The fields of every record."""
        record = {"text": self.text, "score": self.score, "log_probability": self.log_probability}
        if self.whole is not None:
            record |= {**self.whole._asdict(), "prefix_unknown": self.prefix_unknown}
        return record

    def columns(self) -> dict[str, Any]:
        """The fields of a record that describe the columns of its attention."""
        return {}

    def scored_record(self, *, weights: bool = False) -> dict[str, Any]:
        """The record of a scored text for JSON, with its tokens, <end> included, and their log-probabilities."""
        record = self.record(weights=weights)
        record |= {"tokens": [*self.pieces, END] if self.ended else self.pieces}
        record["log_probabilities"] = [round(log_p, 6) for log_p in self.log_probabilities or ()]
        return {name: value for name, value in record.items() if name not in ("score", "ended")}

    def inputs(self) -> dict[str, Any]:
        """The fields about the input of a scored text, for JSON: here its pieces that the model does not know."""
        return {"unknown": [] if self.target is None else self.target.unknown}


class Head(NamedTuple):
    """A head of a Transformer, and how much the loss rises in nats per token without it; layers and heads from 1 on."""

    attention: str  # encoder-self-attention, decoder-self-attention or cross-attention
    layer: int
    head: int
    rise: float


def display_token(token: int, vocabulary: Vocabulary) -> str:
    """A token as people read it: its piece, or <end> for EOS."""
    return END if token == EOS else vocabulary.piece(token)


def prediction_records(
    tokens: Sequence[int], log_p: Sequence[float], predictions: TokenPredictions, vocabulary: Vocabulary
) -> list[dict[str, Any]]:
    """The record of what a model predicted at each token, for JSON: the token's probability, the entropy of the
    distribution in nats, and the likeliest tokens with their probabilities, best first.
    """

    def round_probability(probability: float) -> float:
        return float(f"{probability:.6g}")

    records = []
    best = predictions.tokens.tolist(), predictions.log_p.exp().tolist()
    for token, token_log_p, entropy, ids, p in zip(tokens, log_p, predictions.entropy.tolist(), *best, strict=True):
        likeliest_ids = zip(ids, p, strict=True)
        likeliest = [[display_token(index, vocabulary), round_probability(value)] for index, value in likeliest_ids]
        record = {"token": display_token(token, vocabulary), "probability": round_probability(math.exp(token_log_p))}
        records.append({**record, "entropy": round(entropy, 4), "likeliest": likeliest})
    return records


class EnsembleMember(NamedTuple):
    """A model of an ensemble."""

    model: Any  # the model of a checkpoint
    vocabularies: dict[str, Vocabulary]  # its vocabularies, by the names of the predictor's arguments
    shared: dict[str, Any]  # what must be equal in all members; each key is the end of a message if two differ


@dataclass(eq=False, repr=False)
class Predictor(ABC):
    """One trained model or an ensemble, with its vocabulary and settings.

    config: the configuration of the first checkpoint; it may name classes from the modules `trust`
    checkpoints: the checkpoints of the models
    trust: the user's modules whose classes the checkpoints may name
    threads: the number of CPU threads while it computes; None leaves the caller's number
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

    task: ClassVar[str]  # the task of its models (`task_table`); users' tasks derived from it may use this class too
    output_name: ClassVar[str]  # what messages call its output
    command: ClassVar[str]  # the command that uses it, whose YAML file has the defaults
    schema: ClassVar[type[Any]] = DecodeSettings  # the class of its settings
    base: ClassVar[type[Any]] = EncoderDecoder  # the base class of its models
    parts: ClassVar[dict[str, Any]] = {}  # arguments of its models, besides settings and vocabulary sizes
    example: ClassVar[Callable[..., Example]]  # encodes what `trace` takes, on this predictor's device
    sides: ClassVar[tuple[str, ...]] = ("target",)  # the sides that have vocabularies

    def __post_init__(self) -> None:
        self.model: Any = self.models[0] if len(self.models) == 1 else Ensemble(self.models)
        self.attends = any(model.attends for model in self.models)
        self.max_positions = min(
            (model.max_positions for model in self.models if model.max_positions is not None), default=None
        )
        self._prefix_limit = f"max_length={self.settings.max_length}: shorten it, or allow more"
        if self.max_positions is not None and getattr(self.settings, "min_length", 0) > self.max_positions:
            problem = f"is more than the model's {self.max_positions:,} learnt positions"
            raise InputError(f"min_length={self.settings.min_length} {problem}: lower it.")
        if self.max_positions is not None and self.max_positions < self.settings.max_length:
            self.settings = replace(self.settings, max_length=self.max_positions)
            self._prefix_limit = f"the model's {self.max_positions:,} learnt positions: shorten it"
        self._next_seed_number = 0  # the number of the next sentence or prompt, which seeds its samples
        if isinstance(self.settings, DecodeSettings):
            check_used(self.settings, attends=self.attends, task=self.task)
            _ = self._rank  # refuses invalid settings before any work

    @cached_property
    def _rank(self) -> Callable[[list[Hypothesis], list[Hypothesis]], list[Hypothesis]] | None:
        """The function that ranks a beam by minimum Bayes risk; None if the scores of the search do."""
        if self.settings.mbr is None:
            return None
        from seqtool.predict.minimum_bayes_risk import MinimumBayesRisk  # imports sacreBLEU

        tokenize = self.config.get("validation", {}).get("tokenize")
        return MinimumBayesRisk.of(self.settings, self.task, self.target_vocabulary.decode, tokenize).rank

    def __repr__(self) -> str:
        models = " + ".join(map(class_name, self.checkpoints))
        entries = " and ".join(f"{len(getattr(self, f'{side}_vocabulary')):,} {side}" for side in self.sides)
        paths = " + ".join(str(checkpoint.path) for checkpoint in self.checkpoints)
        return f"{type(self).__name__}({paths}: {models}, {entries} entries, {self.device})"

    @property
    def name(self) -> str:
        """The names of the runs of its models."""
        return " + ".join(run_directory(checkpoint.path).name for checkpoint in self.checkpoints)

    @classmethod
    def default_settings(cls) -> dict[str, Any]:
        """The default settings of decoding and of the hardware (`declarations.Machine`)."""
        command_defaults = defaults(cls.command)
        settings = (*fields(cls.schema), *fields(declarations.Machine))
        return {setting.name: command_defaults[setting.name] for setting in settings}

    @classmethod
    def from_config(cls, config: DictConfig) -> Self:
        """Load the checkpoints that a command's configuration names, with its settings."""
        devices.keep_memory()
        settings = {name: config[name] for name in cls.default_settings()}
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

        checkpoints: one or a list, each a path or an open checkpoint (`checkpoint.find`)
        trust: the user's modules whose classes the checkpoints may name
        settings: any of `default_settings`

        Raises InputError for an invalid setting, a checkpoint of another task, and models that do not form an ensemble.
        """
        merged = {**cls.default_settings(), **settings}
        machine = {setting.name: merged.pop(setting.name) for setting in fields(declarations.Machine)}
        hardware = typed(declarations.Machine, machine)
        decode_settings = typed(cls.schema, merged)
        declarations.check_values(hardware)
        device = devices.find_device(hardware.device)
        check_precision(device, decode_settings.precision)
        paths = [checkpoints] if isinstance(checkpoints, str | Path | Checkpoint) else checkpoints
        open_checkpoints = [
            checkpoint if isinstance(checkpoint, Checkpoint) else find(checkpoint, trust=modules(trust))
            for checkpoint in paths
        ]
        if not open_checkpoints:
            raise InputError("checkpoint=… names no run or checkpoint.")
        for checkpoint in open_checkpoints:
            if not cls._uses(checkpoint):
                entry = TASKS[checkpoint.model_task]
                raise InputError(f"{checkpoint.path} holds {entry.model}: use seqtool {entry.command}.")
        members = [cls.read(checkpoint, parts_for(device)) for checkpoint in open_checkpoints]
        for checkpoint, member in zip(open_checkpoints, members, strict=True):
            for difference, value in member.shared.items():
                if value != members[0].shared[difference]:
                    raise InputError(f"{checkpoint.path} and {open_checkpoints[0].path} {difference}.")
        with devices.computing_on(device), out_of_memory(lambda: devices.MODEL_TOO_LARGE, device):
            models = [
                optimise_for_decoding(member.model, decode_settings.precision, device).to(device).eval()
                for member in members
            ]
        return cls(
            models,
            device=device,
            settings=decode_settings,
            config=open_checkpoints[0].config,
            checkpoints=open_checkpoints,
            trust=open_checkpoints[0].trust,
            threads=hardware.threads,
            **members[0].vocabularies,
        )

    @classmethod
    def read(cls, checkpoint: Checkpoint, parts: Parts = PLAIN) -> EnsembleMember:
        """Build the model of a checkpoint from these parts and load its weights. The model's classes must be
        from this package or from a module in the checkpoint's `trust`.
        """
        vocabularies = load_all(checkpoint.path, cls.sides)
        arguments = {f"{side}_vocabulary": vocabulary for side, vocabulary in vocabularies.items()}
        options = cls.parts | {name: len(vocabulary) for name, vocabulary in arguments.items()}
        settings = checkpoint.config["model"]
        make = partial(build_model, settings, base=cls.base, trusted=checkpoint.trust, parts=parts, **options)
        fingerprints = [vocabulary.fingerprint for vocabulary in vocabularies.values()]
        difference = "have different vocabularies: an ensemble needs one vocabulary"
        return EnsembleMember(checkpoint.load_model(make), arguments, {difference: fingerprints})

    def on_device(self) -> AbstractContextManager[None]:
        """Use this predictor's GPU and number of CPU threads within the context."""
        return devices.computing_on(self.device, self.threads)

    def encode_prefix(self, prefix: str | Sequence[str]) -> EncodedText:
        """Encode a prefix, a text or a list of pieces. Raises InputError if it leaves no room for a continuation."""
        encoded = self._encode_beginning(prefix)
        if (length := len(encoded.ids)) >= self.settings.max_length:
            problem = f"has {length:,} tokens, but {self.output_name} has at most {self._prefix_limit}"
            raise InputError(f"The prefix '{join_pieces(prefix)[:40]}' {problem}.")
        return encoded

    def search(
        self,
        sources: Callable[[Sequence[int]], Sources],
        source_numbers: Sequence[int],
        prefixes: Sequence[EncodedText],
        *,
        likeliest: int = 0,
        **options: Any,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses for each row, best first. Rows with equally long prefixes are decoded together.

        sources: returns the encoder's input for the rows with these indices
        source_numbers: the position of each row's source in the input; samples are seeded by it
        likeliest: the number of likeliest tokens to keep at each position; 0 keeps none
        options: arguments of `batching.decode`: keep_attention, progress, trace
        """
        result: dict[int, list[Hypothesis]] = {}
        for length in sorted({len(prefix.ids) for prefix in prefixes}):
            rows = [row for row, prefix in enumerate(prefixes) if len(prefix.ids) == length]
            batch, prefix_ids = sources(rows), [prefixes[row].ids for row in rows]
            numbers = [source_numbers[row] for row in rows]
            options |= {"source_numbers": numbers, "prefixes": prefix_ids if length else None}
            with self.on_device():
                n_best_lists = decode(self.model, batch, self.settings, device=self.device, rank=self._rank, **options)
                if likeliest:
                    n_best_lists = self._with_predictions(batch, n_best_lists, likeliest)
                if length:
                    n_best_lists = self._with_prefixes(batch, prefix_ids, n_best_lists)
            result |= zip(rows, n_best_lists, strict=True)
        return [result[row] for row in range(len(source_numbers))]

    def _with_predictions(
        self, sources: Sources, n_best_lists: Sequence[Sequence[Hypothesis]], likeliest: int
    ) -> list[list[Hypothesis]]:
        """Add to the hypotheses what the model predicted at each token, including a prefix."""
        owners = [row for row, n_best in enumerate(n_best_lists) for _ in n_best]
        targets = [hypothesis.tokens for n_best in n_best_lists for hypothesis in n_best]
        options: dict[str, Any] = {"device": self.device, "owners": owners, "likeliest": likeliest}
        forced_hypotheses = iter(force_all(self.model, sources, targets, self.settings, **options))

        def with_predictions(hypothesis: Hypothesis) -> Hypothesis:
            forced, length = next(forced_hypotheses), len(hypothesis.tokens) + hypothesis.ended  # no EOS if cut off
            assert forced.log_p is not None and forced.predictions is not None
            return hypothesis._replace(log_p=forced.log_p[:length], predictions=forced.predictions.truncate(length))

        return [[*map(with_predictions, n_best)] for n_best in n_best_lists]

    def _with_prefixes(
        self, sources: Sources, prefixes: Sequence[Sequence[int]], n_best_lists: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Add to each hypothesis the log-probability and the score of its prefix and continuation together."""
        settings, prefix_length = self.settings, len(prefixes[0])  # all are equally long
        penalty = length_penalty(settings.length_penalty, settings.length_alpha)
        forced_prefixes = force_all(self.model, sources, prefixes, settings, device=self.device)

        def with_prefix(hypothesis: Hypothesis, prefix: Hypothesis) -> Hypothesis:
            assert prefix.log_p is not None
            length = len(hypothesis.tokens) + hypothesis.ended
            log_p = float(prefix.log_p[:prefix_length].double().sum()) + hypothesis.log_probability
            score = log_p
            if settings.mbr is not None:
                score = hypothesis.score  # that of the whole text already
            elif not settings.sample:
                coverage = hypothesis.score - hypothesis.log_probability / penalty(length - prefix_length)
                score = log_p / penalty(length) + coverage
            return hypothesis._replace(whole=Whole(prefix_length, log_p, score))

        pairs = zip(forced_prefixes, n_best_lists, strict=True)
        return [[with_prefix(hypothesis, prefix) for hypothesis in n_best] for prefix, n_best in pairs]

    @cached_property
    def plain_model(self) -> Any:
        """The model built of plain parts, whose states and gradients can be looked at; the models that decode have
        faster parts. Raises InputError for an ensemble.
        """
        if len(self.checkpoints) != 1:
            raise InputError("Only one model can be looked into, not an ensemble: name one run or checkpoint.")
        with torch.inference_mode(False):  # tensors made in inference mode have no gradients
            return self.read(self.checkpoints[0]).model.to(self.device).eval()

    def trace(self, *example: Any) -> Trace:
        """Return the states, gates and attention of an example: a source and its translation, an image and its caption,
        or the text of a language model. Without a translation or caption, the model reads its best one.
        """
        with self.on_device():
            return Trace.of(self.plain_model, self.example(*example))

    def attribute(
        self, *example: Any, method: str = "integrated", contrast: Contrast = None, steps: int = STEPS
    ) -> Attribution:
        """Return how much each token of a text depends on the source and on the tokens before it.

        example: as for `trace`; a `Prediction` stands for its source and text
        method, contrast, steps: as in `Attribution.of`
        """
        with self.on_device():
            return Attribution.of(self.plain_model, self.example(*example), method, contrast, steps)

    def __reduce__(self) -> Any:
        raise TypeError("A loaded model cannot be pickled or copied: call seqtool.load where it is needed.")

    def encode_text(self, text: str | Sequence[str] | Prediction) -> EncodedText:
        """Encode a text, its pieces or a prediction that the model is to read.

        Raises InputError if it has more tokens than the model has positions.
        """
        text, ended = (text.pieces, text.ended) if isinstance(text, Prediction) else (text, True)
        check_texts([text] if isinstance(text, str) else text, caller="trace and attribute take", item="text")
        encoded = self._encode_beginning(text)
        encoded.ended = ended
        self.check_length(encoded)
        return encoded

    def _encode_beginning(self, text: str | Sequence[str]) -> EncodedText:
        """Encode a text or pieces, which are kept as they are."""
        ids, is_text = self.target_vocabulary.encode_beginning(text), isinstance(text, str)
        encoded = EncodedText(str(text) if is_text else join_pieces(text), ids, self.target_vocabulary)
        if not is_text:
            encoded.all_pieces = list(text)
        return encoded

    def check_length(self, *texts: EncodedText) -> None:
        """Raise InputError unless the model has a position for every token of these texts, and for EOS if they end."""
        limit = self.max_positions or math.inf
        for text in (text for text in texts if len(text.ids) + text.ended > limit):
            problem = f"has {len(text.ids) + 1:,} tokens with its end, but the model reads at most {limit:,}"
            raise InputError(f"'{text.text[:40]}…' {problem}, the number of its learnt positions: shorten it.")

    def head_ranking(self: Any, *texts: Sequence[str]) -> list[Head]:
        """Rank the heads of a Transformer by how much the loss rises when the output of one is set to 0, the greatest
        rise first (Michel et al. 2019, section 3.2).

        texts: sources and their translations, or the texts of a language model
        """
        plain, ranking = replace(self, models=[copy.deepcopy(self.plain_model)]), []

        def loss() -> float:
            log_p = [value for text in plain.forced(*[None, *texts][-2:]) for value in text.log_probabilities]
            return -math.fsum(log_p) / max(1, len(log_p))

        if not all(map(len, texts)) or not any(self.target_vocabulary.encode_batch(texts[-1])):
            raise InputError("The texts are empty: there is nothing by which to rank heads.")
        if not (heads := self.trace(*(column[0] for column in texts)).heads()):
            raise InputError(f"{self.checkpoints[0].path} has no heads to rank: choose a Transformer.")
        whole = loss()
        for kind, layers in heads.items():
            for layer, attention in enumerate(map(plain.model.get_submodule, layers), 1):
                for head, columns in enumerate(attention.output.weight.data.chunk(attention.heads, 1), 1):
                    kept = columns.clone()
                    columns.zero_()  # the columns of W^O that multiply the head's output
                    ranking.append(Head(kind, layer, head, loss() - whole))
                    columns.copy_(kept)
        return sorted(ranking, key=lambda head: -head.rise)

    def forced(
        self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0
    ) -> Sequence[Prediction]:
        """Score texts by forced decoding. Raises InputError if models of this task cannot score texts.

        sources: the source of each text; None for a language model
        texts: the texts to score
        likeliest: the number of likeliest tokens to keep at each position; 0 keeps none
        """
        self.check_scoring(with_sources=sources is not None)
        raise NotImplementedError

    @classmethod
    def _uses(cls, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint's model is for this class's task, or for a user's task that names this class."""
        task = checkpoint.model_task
        if task in TASKS:
            return task == cls.task
        user_task: Any = import_class(task, object, setting="task", trusted=checkpoint.trust)
        return issubclass(resolve_name(user_task.predictor), cls)

    def check_scoring(self, *, with_sources: bool) -> None:
        """Raise InputError unless models of this task score texts (`forced`), with sources or without as requested."""
        kind = TASKS[self.task].model
        raise InputError(f"{self.checkpoints[0].path} holds {kind}, but score takes translation and language models.")


def class_name(checkpoint: Checkpoint) -> str:
    """The class name of a checkpoint's model."""
    return str(checkpoint.config["model"]["_target_"]).rpartition(".")[2]


def check_texts(values: Any, *, caller: str, item: str) -> list[str]:
    """Return the texts of a list; `caller` and `item` as in `check_list`."""
    texts = check_list(values, caller=caller, item=item, is_valid=lambda text: isinstance(text, str), expected="text")
    return [str(text) for text in texts]


def check_list(values: Any, *, caller: str, item: str, is_valid: Callable[[Any], bool], expected: str) -> list[Any]:
    """Return the items of a list, a tuple, a one-dimensional array, or one column of a table. Raises InputError for
    anything else: sets, which have no order, and tables with several columns.

    caller: the beginning of a message, such as "translate takes"
    item: the noun for one item
    is_valid: whether a value can be an item
    expected: a description of valid items
    """
    if is_valid(values):
        raise InputError(f"{caller} a list of {item}s: write [{item}] for a single one.")
    is_list = isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping | Set)
    if not is_list or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{caller} a list of {item}s, not {_type_of(values)}.")
    items = list(values)
    for number, value in enumerate(items, 1):
        if not is_valid(value):
            raise InputError(f"{caller} a list of {item}s, but number {number:,} is {_type_of(value)}, not {expected}.")
    return items


def _type_of(value: Any) -> str:
    """The type of a value with its article, for messages: "an array of uint8 (4 × 4 × 3)", "a tuple", "None"."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} ({' × '.join(map(str, value.shape)) or 'one number'})"
    name = type(value).__name__
    starts_with_vowel = name[0].lower() in "aeio" or name.startswith("un")  # not u: "a uint8"
    return f"{'an' if starts_with_vowel else 'a'} {name}"
