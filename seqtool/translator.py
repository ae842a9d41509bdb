"""A trained model with its vocabularies: text in, text out. What `translate`, `eval` and notebooks use."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from seqtool import checkpoint, decoding
from seqtool.cli import config_directory
from seqtool.config import build, names, typed
from seqtool.data import vocabulary
from seqtool.data.alignment import Link, Matrix, hard_alignment, word_attention, words
from seqtool.data.batches import make_source, make_target
from seqtool.data.vocabulary import UNK, Vocabulary
from seqtool.decoding import Ensemble, Hypothesis
from seqtool.devices import MachineSettings, choose_device, set_threads
from seqtool.errors import InputError
from seqtool.models.encoder_decoder import EncoderDecoder

LEAST = {"temperature": 1e-4, "top_k": 0, "length_alpha": 0, "coverage_penalty": 0, "seed": 0}


@dataclass
class DecodeSettings:
    """configs/decoding.yaml, where the defaults are."""

    beam: int
    n_best: int
    length_penalty: str
    length_alpha: float
    coverage_penalty: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_length: int
    batch_size: int

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in ("beam", "n_best", "max_length", "batch_size")
            if getattr(self, name) < 1
        ]
        if not self.sample and self.n_best > self.beam:
            problems.append(f"n_best ({self.n_best}) cannot be more than beam ({self.beam})")
        problems += [
            f"{name} must be at least {least}, not {getattr(self, name)}"
            for name, least in LEAST.items()
            if getattr(self, name) < least
        ]
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if problems:
            raise InputError("; ".join(problems) + ".")


DECODING = (*(field.name for field in fields(DecodeSettings)), "device", "threads")  # configs/decoding.yaml


@dataclass(frozen=True)
class Translation:
    """One hypothesis for one sentence. log_probability in nats, EOS included; score: what it was ranked by.

    attention: target pieces × source pieces (EOS left out on both sides), None for a model without attention.
    """

    text: str
    score: float
    log_probability: float
    source_pieces: list[str]
    pieces: list[str]
    attention: NDArray[np.float32] | None

    @property
    def word_attention(self) -> Matrix | None:
        """Target words × source words."""
        if self.attention is None:
            return None
        return word_attention(self.attention, self.source_pieces, self.pieces)

    @property
    def alignment(self) -> set[Link] | None:
        """Each target word's most attended source word, as (source, target)."""
        matrix = self.word_attention
        return None if matrix is None else hard_alignment(matrix)

    @property
    def source_words(self) -> list[str]:
        return words(_joined(self.source_pieces))

    @property
    def words(self) -> list[str]:
        return words(_joined(self.pieces))


class Translator:
    """One model or an ensemble, ready to translate."""

    def __init__(
        self,
        models: Sequence[EncoderDecoder[Any]],
        *,
        source_vocabulary: Vocabulary,
        target_vocabulary: Vocabulary,
        device: torch.device,
        settings: DecodeSettings,
        config: dict[str, Any],
    ) -> None:
        self.model = models[0] if len(models) == 1 else Ensemble(models)
        self.source_vocabulary = source_vocabulary
        self.target_vocabulary = target_vocabulary
        self.device = device
        self.settings = settings
        self.config = config
        self._sentences = 0  # translated so far: the number of a sentence seeds its samples

    @classmethod
    def load(cls, checkpoints: str | Sequence[str], **settings: Any) -> "Translator":
        """From a run or checkpoint directory; several make an ensemble. Settings: those of configs/decoding.yaml."""
        defaults: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / "decoding.yaml"))
        merged = {**defaults, **settings}
        machine = typed(MachineSettings, {name: merged.pop(name) for name in ("device", "threads")})
        decode = typed(DecodeSettings, merged)
        set_threads(machine.threads)
        where = choose_device(machine.device)
        paths = [checkpoints] if isinstance(checkpoints, str) else list(checkpoints)
        found = [checkpoint.find(path) for path in paths]
        sides = [vocabulary.load_pair(one.path) for one in found]
        for one, (source, target) in zip(found, sides, strict=True):
            if (source.fingerprint, target.fingerprint) != (sides[0][0].fingerprint, sides[0][1].fingerprint):
                raise InputError(
                    f"{one.path} and {found[0].path} have different vocabularies: an ensemble needs one vocabulary."
                )
        models = [load_model(one, *side).to(where).eval() for one, side in zip(found, sides, strict=True)]
        source, target = sides[0]
        return cls(
            models,
            source_vocabulary=source,
            target_vocabulary=target,
            device=where,
            settings=decode,
            config=found[0].config,
        )

    @property
    def attends(self) -> bool:
        """Whether the model has attention."""
        models = self.model.models if isinstance(self.model, Ensemble) else (self.model,)
        return any(hasattr(model, "attention") for model in models)

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence; an empty sentence stays empty."""
        return [hypotheses[0].text for hypotheses in self.hypotheses(sentences)]

    def hypotheses(
        self, sentences: Sequence[str], *, attention: bool = False, replace_unknown: bool = False
    ) -> list[list[Translation]]:
        """The n best of each sentence, best first; one empty translation for an empty sentence.

        Samples depend on the seed and on how many sentences this translator had before, not on batches.
        """
        if isinstance(sentences, str):
            raise InputError("translate takes a list of sentences: write [sentence] for a single one.")
        settings = self.settings
        ids = [tokens[: settings.max_length - 1] for tokens in self.source_vocabulary.encode_batch(sentences)]
        full = [i for i, tokens in enumerate(ids) if tokens]
        draws = None
        if settings.sample:
            shape = settings.n_best, settings.max_length
            draws = [np.random.default_rng([settings.seed, self._sentences + i]).random(shape) for i in full]
        self._sentences += len(sentences)
        decoded = decode(
            self.model,
            [ids[i] for i in full],
            settings,
            device=self.device,
            draws=draws,
            keep_attention=attention or replace_unknown,
        )
        result = [[Translation("", 0.0, 0.0, [], [], None)] for _ in sentences]
        for i, n_best in zip(full, decoded, strict=True):
            pieces = self.source_vocabulary.pieces(sentences[i])[: len(ids[i])]
            result[i] = [self._translation(h, pieces, replace_unknown=replace_unknown) for h in n_best]
        return result

    def forced(self, sources: Sequence[str], targets: Sequence[str]) -> list[Translation]:
        """The given targets as if they had been decoded: their probabilities, and attention where there is one."""
        if len(sources) != len(targets):
            raise InputError(f"There are {len(sources):,} sources but {len(targets):,} targets: give one for each.")
        pairs = [
            (self.source_vocabulary.encode(source), self.target_vocabulary.encode(target))
            for source, target in zip(sources, targets, strict=True)
        ]
        result: list[Translation | None] = [None] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
        for rows in _chunks(order, self.settings.batch_size):
            with torch.inference_mode():
                memory, state = self.model.encode(make_source([pairs[i][0] for i in rows]).to(self.device))
                target = make_target([pairs[i][1] for i in rows]).to(self.device)
                forced = decoding.force(self.model.step, memory, state, target)
            for i, hypothesis in zip(rows, forced, strict=True):
                pieces = self.source_vocabulary.pieces(sources[i])
                result[i] = self._translation(hypothesis, pieces, replace_unknown=False)
        return [translation for translation in result if translation is not None]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log p(target | source) of each pair in nats, EOS included."""
        return [translation.log_probability for translation in self.forced(sources, targets)]

    def too_long(self, line: str) -> int | None:
        """How many tokens a sentence has if that is more than are read, otherwise None."""
        if len(line) < self.settings.max_length:  # a token has a character at least
            return None
        count = len(self.source_vocabulary.encode(line))
        return count if count > self.settings.max_length - 1 else None

    def _translation(self, hypothesis: Hypothesis, source_pieces: list[str], *, replace_unknown: bool) -> Translation:
        tokens = hypothesis.tokens
        pieces = [self.target_vocabulary.piece(token) for token in tokens]
        attention = None
        if hypothesis.attention is not None:
            attention = hypothesis.attention[: len(tokens), : len(source_pieces)].float().cpu().numpy()
        text = self.target_vocabulary.decode(tokens)
        if replace_unknown and attention is not None and UNK in tokens:
            for t, token in enumerate(tokens):
                if token == UNK:
                    pieces[t] = source_pieces[int(attention[t].argmax())]
            text = _joined(pieces)
        return Translation(text, hypothesis.score, hypothesis.log_probability, source_pieces, pieces, attention)


def load_translator(config: DictConfig) -> Translator:
    """What `checkpoint=` names, with the decoding settings of the command line."""
    return Translator.load(names(config.checkpoint), **{name: config[name] for name in DECODING})


def decode(
    model: Any,
    sources: Sequence[Sequence[int]],
    settings: DecodeSettings,
    *,
    device: torch.device,
    draws: Sequence[NDArray[np.float64]] | None,
    keep_attention: bool,
) -> list[list[Hypothesis]]:
    """The n best hypotheses for encoded sources, decoded in batches of about equal length, in the order given.

    An output may be three times as long as its source and ten tokens more, and at most `max_length`. `draws` is what
    sampling takes its chance from: for each source an array samples × length (see `Translator.hypotheses`).
    """
    penalty = decoding.length_penalty(settings.length_penalty, settings.length_alpha)
    result: list[list[Hypothesis]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
    for rows in _chunks(order, settings.batch_size):
        maximum = [min(settings.max_length, 3 * len(sources[i]) + 10) for i in rows]
        with torch.inference_mode():
            memory, state = model.encode(make_source([sources[i] for i in rows]).to(device))
            if draws is not None:
                hypotheses = decoding.sample(
                    model.step,
                    memory,
                    state,
                    uniforms=torch.from_numpy(np.stack([draws[i] for i in rows])).float(),
                    maximum=maximum,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    top_p=settings.top_p,
                    keep_attention=keep_attention,
                )
            else:
                hypotheses = decoding.beam_search(
                    model.step,
                    memory,
                    state,
                    beam=settings.beam,
                    maximum=maximum,
                    n_best=settings.n_best,
                    penalty=penalty,
                    coverage=settings.coverage_penalty,
                    keep_attention=keep_attention,
                )
        for i, n_best in zip(rows, hypotheses, strict=True):
            result[i] = n_best
    return result


def load_model(found: checkpoint.Checkpoint, source: Vocabulary, target: Vocabulary) -> EncoderDecoder[Any]:
    """The model of a checkpoint with its weights; only classes of this package are built."""
    model: EncoderDecoder[Any] = build(
        found.config["model"], trusted=False, source_vocabulary=len(source), target_vocabulary=len(target)
    )
    found.load_weights(model)
    return model


def _chunks(order: list[int], size: int) -> Iterator[list[int]]:
    return (order[i : i + size] for i in range(0, len(order), size))


def _joined(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace("▁", " ").strip()
