"""`Generator`: a trained language model, or an ensemble. Used by `generate`, `score`, `eval` and notebooks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from seqtool.data.text.alignment import SPACE
from seqtool.data.text.properties import Rule
from seqtool.decoding.batching import computing, map_in_batches, out_of_range
from seqtool.decoding.common import TokenPredictions, read_prefix
from seqtool.decoding.sampling import sample
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.predict.predictor import EncodedText, Prediction, Predictor, check_texts, encode, prediction_records
from seqtool.predict.trace import Example
from seqtool.predict.units import Reading, Unit, find_unit
from seqtool.settings import declarations

MAX_PROMPT_TOKENS = 100_000
SCORED_TOKENS = 1000  # the number of tokens scored at once; this bounds the memory for their logits
TEXTS_PER_BATCH = 32  # the number of texts that one of several processes scores between exchanges of results


@dataclass
class GenerateSettings(declarations.Generate):
    """The settings of generation; configs/generate.yaml describes each and holds the defaults."""

    memory: ClassVar[str] = "n or max_length"

    def __post_init__(self) -> None:
        if problems := out_of_range(type(self), vars(self)):
            raise InputError("; ".join(problems) + ".")
        if self.stop is not None and "" in self.stop:
            raise InputError("stop= has an empty text, which would end every continuation at once: leave it out.")


@dataclass(frozen=True)
class Continuation(Prediction):
    """A sampled continuation of a prompt, which is its `prefix`, or a text that was scored.

    log_probability: the sum over all tokens, in nats
    ended: true if it ended before a text of `stop` or, with `data.lines`, at the end of a line; false if it was cut off
        at its maximum length
    """

    def summary(self) -> dict[str, Any]:
        return {"text": self.text, "log_probability": self.log_probability, "ended": self.ended, "tokens": self.pieces}


@dataclass
class Draft:
    """A text that is being sampled. It ends before the first text of `stops`, or with EOS."""

    stops: Sequence[str]
    on_text: Callable[[str], None] | None  # called with each new part, once it cannot be the beginning of a stop text
    text: str = ""
    ended: bool = False
    pieces: list[str] = field(default_factory=list)
    passed_length: int = 0  # the number of characters already passed to `on_text`

    def add(self, piece: str, *, ends: bool = False) -> bool:
        """Add a piece and return whether the text has ended. Pieces after the end are left out, and so is one that
        `ends` the text.
        """
        self.ended |= ends
        if self.ended:
            return True
        self.pieces.append(piece)
        # a stop text may have begun in earlier pieces: search from the first position where one could
        search_start = max(0, len(self.text) - max(map(len, self.stops), default=1) + 1)
        self.text += piece.replace(SPACE, " ")
        if starts := [start for stop in self.stops if (start := self.text.find(stop, search_start)) >= 0]:
            self.text, self.ended = self.text[: min(starts)], True
        if self.ended:
            self.pass_on()
        elif self.on_text is not None:  # hold back what may be the beginning of a stop text
            held_back = (n for stop in self.stops for n in range(len(stop)) if self.text.endswith(stop[:n]))
            self.pass_on(max(held_back, default=0))
        return self.ended

    def pass_on(self, held_back: int = 0) -> None:
        """Call `on_text` with all characters that were not yet passed to it, except the last few that are held back."""
        end = len(self.text) - held_back
        if self.on_text is not None and end > self.passed_length:
            self.on_text(self.text[self.passed_length : end])
            self.passed_length = end


@dataclass(eq=False, repr=False)
class Generator(Predictor):
    """A trained language model or an ensemble, with its vocabulary and settings."""

    settings: GenerateSettings

    task = "language_modelling"
    output_name = "a text"
    command = "generate"
    schema = GenerateSettings

    @property
    def by_line(self) -> bool:
        """Whether it was trained on lines as sequences of their own (`data.lines`), whose ends it predicts."""
        return bool(self.config["data"].get("lines"))

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """Return one continuation of each prompt, without the prompt. An empty prompt gives a text from its start."""
        return [samples[0].text for samples in self.samples(prompts)]

    def samples(self, prompts: Sequence[str]) -> list[list[Continuation]]:
        """Return `n` continuations of each prompt. They depend on the seed and on the number of earlier prompts."""
        encoded = [*map(self.encode_prompt, check_texts(prompts, caller="generate takes", item="prompt"))]
        return [self.continuations(prompt, self.uniform_noise()) for prompt in encoded]

    def encode_prompt(self, text: str) -> EncodedText:
        """Encode a prompt. Raises InputError if it is too long."""
        (prompt,) = encode([text], self.target_vocabulary)
        if len(prompt.ids) > MAX_PROMPT_TOKENS:
            raise InputError(f"A prompt has {len(prompt.ids):,} tokens, more than {MAX_PROMPT_TOKENS:,}: shorten it.")
        return prompt

    def uniform_noise(self) -> NDArray[np.float64]:
        """Draw the random numbers in [0, 1) for the next prompt, n × max_length."""
        generator = np.random.default_rng([self.settings.seed, self._next_seed_number])
        self._next_seed_number += 1
        return generator.random((self.settings.n, self.settings.max_length))

    def continuations(
        self, prompt: EncodedText, uniform_noise: NDArray[np.float64], on_text: Callable[[str], None] | None = None
    ) -> list[Continuation]:
        """Return a continuation of the prompt for each row of `uniform_noise`; `on_text` as in `Draft`."""
        settings, vocabulary = self.settings, self.target_vocabulary
        drafts = [Draft(settings.stop or [], on_text) for _ in uniform_noise]

        def on_step(tokens: list[int]) -> list[bool]:
            pairs = zip(tokens, drafts, strict=True)
            return [token != PAD and draft.add(vocabulary.piece(token), ends=token == EOS) for token, draft in pairs]

        tokens = torch.tensor([prompt.ids], dtype=torch.int64, device=self.device)
        with self.on_device(), computing(self.device, settings.precision, lower=settings.memory):
            memory, state = self.model.encode(None)
            state, prefix = read_prefix(self.model, memory, state, tokens)
            (samples,) = sample(
                self.model.step,
                memory,
                state,
                uniform_noise=torch.from_numpy(uniform_noise[np.newaxis]).float(),
                maximum=[settings.max_length],
                minimum=1 if self.by_line else settings.max_length + 1,  # streams of text have no EOS
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                keep_attention=False,
                unknown=False,
                prefix=prefix,
                on_step=on_step,
            )
        for draft in drafts:
            draft.pass_on()  # what was held back
        return [
            Continuation(draft.text, drawn.score, drawn.log_probability, draft.pieces, None, draft.ended, prefix=prompt)
            for draft, drawn in zip(drafts, samples, strict=True)
        ]

    def line(self, prompt: str, samples: Sequence[Continuation]) -> dict[str, Any]:
        """The record for JSON: the prompt, its pieces that are not in the vocabulary, and the continuations."""
        texts = [sample.record() for sample in samples]
        return {"prompt": prompt, "unknown": samples[0].prefix_unknown, "texts": texts}

    def predict_tokens(
        self, tokens: Sequence[int], progress: Callable[[int], object], *, likeliest: int, before: int = BOS
    ) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """Return −log p of every token of a text in nats, and its `predictor.prediction_records`.

        tokens: the ids of the text, which is read as one stream; of a line that ends (`by_line`), with EOS
        progress: called after each chunk with the number of its tokens
        likeliest: the number of likeliest tokens to keep at each position; 0 returns no records
        before: the token that is read before the first, in the initial state
        """
        nats, records, states = [np.zeros(0)], [], [None for _ in self.models]
        text = torch.tensor([[before, *tokens]], device=self.device)
        with self.on_device(), computing(self.device, self.settings.precision, lower="the length of the texts"):
            for start in range(0, len(tokens), SCORED_TOKENS):
                chunk, model_log_p = text[:, start : start + SCORED_TOKENS + 1], []
                for i, model in enumerate(self.models):
                    output = model(None, chunk[:, :-1], states[i])
                    states[i] = output.state
                    model_log_p.append(model.project(output.features[0]).float().log_softmax(-1))
                log_p = torch.stack(model_log_p).logsumexp(0) - math.log(len(model_log_p))
                labels = chunk[0, 1:]
                nats.append(-log_p.gather(1, labels[:, None]).squeeze(1).cpu().double().numpy())
                if likeliest:
                    entropy = torch.special.entr(log_p.exp()).sum(-1)
                    impossible = [PAD, BOS] if self.by_line else [PAD, BOS, EOS]
                    log_p[:, impossible] = -torch.inf
                    best = log_p.topk(min(likeliest, log_p.shape[1] - len(impossible)))
                    top = TokenPredictions(entropy, best.indices, best.values)
                    records += prediction_records(labels.tolist(), (-nats[-1]).tolist(), top, self.target_vocabulary)
                progress(len(labels))
        return np.concatenate(nats), records

    def predict_next(self, text: str, likeliest: int) -> dict[str, Any]:
        """Return what the model predicts at each token of a text and after it: the likeliest symbols with their
        probabilities, and the entropy of the distribution in nats.
        """
        tokens = self.target_vocabulary.encode(text)
        if len(tokens) > MAX_PROMPT_TOKENS:
            raise InputError(f"A text has {len(tokens):,} tokens, more than {MAX_PROMPT_TOKENS:,}: shorten it.")
        # the record at UNK, which stands for any next token, is about the next symbol
        _, records = self.predict_tokens([*tokens, UNK], lambda _: None, likeliest=likeliest)
        last = records.pop()
        return {"predicted": records, "entropy": last["entropy"], "likeliest": last["likeliest"]}

    def example(self, text: str | Sequence[str] | Continuation) -> Example:
        """Encode a text, its pieces or a continuation, which stands for its text."""
        return Example(self.encode_text(text.text if isinstance(text, Continuation) else text))

    def find_unit(self, text: str, rule: str | Rule, **options: Any) -> Unit:
        """Find the unit of a recurrent model that tells a property of a long text best. The options are `decides` and
        `random_units` of `units.find_unit`.
        """
        (encoded,) = encode(check_texts([text], caller="find_unit takes", item="text"), self.target_vocabulary)
        with self.on_device(), torch.inference_mode():
            return find_unit(Reading.of(self.plain_model, None, [encoded]), rule, **options)

    def forced(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Continuation]:
        """Score each text from a fresh state, and its end if the model predicts it (`by_line`)."""
        self.check_scoring(with_sources=sources is not None)
        encoded_texts = encode(check_texts(texts, caller="score takes", item="text"), self.target_vocabulary)
        ends = self.by_line

        def score_rows(rows: Sequence[int]) -> list[tuple[NDArray[np.float64], list[dict[str, Any]]]]:
            texts = [[*encoded_texts[row].ids, *[EOS] * ends] for row in rows]
            return [self.predict_tokens(tokens, lambda _: None, likeliest=likeliest) for tokens in texts]

        results = map_in_batches(score_rows, range(len(encoded_texts)), TEXTS_PER_BATCH)
        continuations = []
        for text, (nats, predicted) in zip(encoded_texts, results, strict=True):
            log_p = (-nats).tolist()
            total, pieces = math.fsum(log_p), [self.target_vocabulary.piece(token) for token in text.ids]
            details: dict[str, Any] = {"log_probabilities": log_p, "predicted": predicted if likeliest else None}
            continuations.append(Continuation(text.text, total, total, pieces, None, ends, target=text, **details))
        return continuations

    def check_scoring(self, *, with_sources: bool) -> None:
        if with_sources:
            raise InputError("A language model has no sources: leave sources= out.")
