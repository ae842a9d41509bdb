"""A trained model with its vocabularies: text in, text out. What `translate`, `eval` and notebooks use."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from seqtool import checkpoint, decoding, distributed
from seqtool.cli import config_directory
from seqtool.config import build, names, typed
from seqtool.data import vocabulary
from seqtool.data.alignment import Link, Matrix, hard_alignment, word_attention, words
from seqtool.data.batches import make_source, make_target
from seqtool.data.vocabulary import UNK, Vocabulary
from seqtool.decoding import Ensemble, Hypothesis
from seqtool.devices import MachineSettings, autocast, check_precision, choose_device, keep_memory, onednn, set_threads
from seqtool.errors import InputError
from seqtool.generation import DECODING, DecodeSettings, Sentences, chunks, decode, laid_out
from seqtool.models.encoder_decoder import EncoderDecoder


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
        keep_memory()
        where = choose_device(machine.device)
        check_precision(where, decode.precision)
        paths = [checkpoints] if isinstance(checkpoints, str) else list(checkpoints)
        if not paths:
            raise InputError("checkpoint=… names no run or checkpoint.")
        found = [checkpoint.find(path) for path in paths]
        for one in found:
            if one.describes_images:
                raise InputError(f"{one.path} holds a captioner: use seqtool caption.")
        sides = [vocabulary.load_pair(one.path) for one in found]
        for one, (source, target) in zip(found, sides, strict=True):
            if (source.fingerprint, target.fingerprint) != (sides[0][0].fingerprint, sides[0][1].fingerprint):
                raise InputError(
                    f"{one.path} and {found[0].path} have different vocabularies: an ensemble needs one vocabulary."
                )
        models = [
            laid_out(load_model(one, *side), decode.precision, where).to(where).eval()
            for one, side in zip(found, sides, strict=True)
        ]
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
        draws = [settings.draws(self._sentences + i) for i in full] if settings.sample else None
        self._sentences += len(sentences)
        decoded = decode(
            self.model,
            Sentences([ids[i] for i in full]),
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

        def forced(rows: Sequence[int]) -> list[Hypothesis]:
            with torch.inference_mode(), autocast(self.device, self.settings.precision), onednn():
                memory, state = self.model.encode(make_source([pairs[i][0] for i in rows]).to(self.device))
                target = make_target([pairs[i][1] for i in rows]).to(self.device)
                return decoding.force(self.model.step, memory, state, target)

        order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
        batches = list(chunks(order, self.settings.at_once))
        result: list[Translation | None] = [None] * len(pairs)
        for rows, hypotheses in zip(batches, distributed.together(forced, batches), strict=True):
            for i, hypothesis in zip(rows, hypotheses, strict=True):
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


def load_model(found: checkpoint.Checkpoint, source: Vocabulary, target: Vocabulary) -> EncoderDecoder[Any]:
    """The model of a checkpoint with its weights; only classes of this package are built."""
    sizes = {"source_vocabulary": len(source), "target_vocabulary": len(target)}
    made = partial(build, found.config["model"], trusted=False, base=EncoderDecoder, **sizes)
    model: EncoderDecoder[Any] = found.load_model(made)
    return model


def _joined(pieces: Sequence[str]) -> str:
    return "".join(pieces).replace("▁", " ").strip()
