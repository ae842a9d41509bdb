"""A trained language model: a prompt in, its continuations out. For `generate`, `eval` and notebooks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from seqtool.data.text.alignment import SPACE
from seqtool.decoding.batching import computing, in_batches
from seqtool.decoding.forced import read_prefix
from seqtool.decoding.ranking import Expected
from seqtool.decoding.sampling import sample
from seqtool.decoding.settings import out_of_range
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.predict.encoded_text import EncodedText
from seqtool.predict.lists import check_texts
from seqtool.predict.predictor import Prediction, Predictor, expectations
from seqtool.settings import declarations

MOST_TOKENS = 100_000  # of a prompt
STEPS = 1000  # tokens of a text that are scored at once
TEXTS = 32  # that one of several processes scores at a time


@dataclass
class GenerateSettings(declarations.Generate):
    """configs/generate.yaml says what each is and holds the defaults."""

    memory: ClassVar[str] = "n or max_length"

    def __post_init__(self) -> None:
        if problems := out_of_range(type(self), vars(self)):
            raise InputError("; ".join(problems) + ".")
        if self.stop is not None and "" in self.stop:
            raise InputError("stop= names an empty text, which stands everywhere: leave it out.")


@dataclass(frozen=True)
class Continuation(Prediction):
    """A sampled continuation of a prompt, its `prefix`, or a text that was scored.

    ended: at a text of `stop`
    log_probability: of all tokens
    """

    def summary(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "log_probability": self.log_probability,
            "ended": self.ended,
            "tokens": self.pieces,
        }


class Draft:
    """A text being sampled, up to the first of `stops`.

    on_text: called with each part of it that is certain to stay, as soon as it is
    """

    def __init__(self, stops: Sequence[str], on_text: Callable[[str], None] | None) -> None:
        self.text = ""
        self.ended = False
        self.pieces: list[str] = []
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=1)
        self._on_text = on_text
        self._passed_on = 0

    def add(self, piece: str) -> bool:
        """Add a piece; returns whether the text has ended with it. Anything after the end is left out."""
        if self.ended:
            return True
        self.pieces.append(piece)
        since = max(0, len(self.text) - self._longest_stop + 1)
        self.text += piece.replace(SPACE, " ")
        if places := [place for stop in self._stops if (place := self.text.find(stop, since)) >= 0]:
            self.text, self.ended = self.text[: min(places)], True
        if self._on_text is not None:
            begun = (n for stop in self._stops for n in range(len(stop)) if self.text.endswith(stop[:n]))
            self._pass_on(len(self.text) - (0 if self.ended else max(begun, default=0)))  # not what may begin a stop
        return self.ended

    def close(self) -> None:
        """End the text: no more pieces follow."""
        self._pass_on(len(self.text))

    def _pass_on(self, end: int) -> None:
        if self._on_text is not None and end > self._passed_on:
            self._on_text(self.text[self._passed_on : end])
            self._passed_on = end


@dataclass(eq=False, repr=False)
class Generator(Predictor):
    """One language model or an ensemble, ready to write."""

    settings: GenerateSettings

    task = "language_modelling"
    writes = "a text"
    command = "generate"
    schema = GenerateSettings

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """One continuation of each prompt, without the prompt; an empty one begins a text."""
        return [samples[0].text for samples in self.samples(prompts)]

    def samples(self, prompts: Sequence[str]) -> list[list[Continuation]]:
        """The `n` continuations of each prompt. They depend on the seed and on how many prompts came before."""
        prompts = check_texts(prompts, what="generate takes", kind="prompt")
        return [self.continuations(prompt, self.uniforms()) for prompt in self.encode(prompts)]

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        vocabulary = self.target_vocabulary
        return [EncodedText(*pair, vocabulary) for pair in zip(texts, vocabulary.encode_batch(texts), strict=True)]

    def uniforms(self) -> NDArray[np.float64]:
        """The random numbers in [0, 1) of the next prompt, n × max_length."""
        generator = np.random.default_rng([self.settings.seed, self._done])
        self._done += 1
        return generator.random((self.settings.n, self.settings.max_length))

    def continuations(
        self, prompt: EncodedText, uniforms: NDArray[np.float64], on_text: Callable[[str], None] | None = None
    ) -> list[Continuation]:
        """A continuation for each row of `uniforms`; `on_text` is called with each part of a single one as it comes."""
        settings, vocabulary = self.settings, self.target_vocabulary
        if len(prompt.ids) > MOST_TOKENS:
            raise InputError(f"A prompt has {len(prompt.ids):,} tokens, more than {MOST_TOKENS:,}: shorten it.")
        drafts = [Draft(settings.stop or [], on_text) for _ in uniforms]

        def each(tokens: list[int]) -> list[bool]:
            drawn = zip(tokens, drafts, strict=True)
            return [token != PAD and draft.add(vocabulary.piece(token)) for token, draft in drawn]

        tokens = torch.tensor([prompt.ids], dtype=torch.int64, device=self.device)
        with self.own_machine(), computing(self.device, settings.precision, lower=settings.memory):
            memory, state = self.model.encode(None)
            state, prefix = read_prefix(self.model, memory, state, tokens)
            (samples,) = sample(
                self.model.step,
                memory,
                state,
                uniform_noise=torch.from_numpy(uniforms[np.newaxis]).float(),
                maximum=[settings.max_length],
                minimum=settings.max_length + 1,  # a text has no EOS
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                keep_attention=False,
                unknown=False,
                prefix=prefix,
                each=each,
            )
        for draft in drafts:
            draft.close()
        return [
            Continuation(draft.text, drawn.score, drawn.log_probability, draft.pieces, None, draft.ended, prefix=prompt)
            for draft, drawn in zip(drafts, samples, strict=True)
        ]

    def line(self, prompt: str, samples: Sequence[Continuation]) -> dict[str, Any]:
        """A prompt, the pieces of it that the model does not know, and its continuations, for JSON."""
        texts = [sample.record() for sample in samples]
        return {"prompt": prompt, "unknown": samples[0].prefix_unknown, "texts": texts}

    def predicted(
        self, tokens: Sequence[int], progress: Callable[[int], object], *, likeliest: int
    ) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """−log p of every token of a text, read as one stream, and, if `likeliest` is not 0, what was expected there:
        so many tokens (`predictor.expectations`). `progress` is called with the number read since.
        """
        nats, expected, states = [np.zeros(0)], [], [None for _ in self.models]
        text = torch.tensor([[BOS, *tokens]], device=self.device)
        with self.own_machine(), computing(self.device, self.settings.precision, lower="the length of the texts"):
            for start in range(0, len(tokens), STEPS):
                chunk, of_models = text[:, start : start + STEPS + 1], []
                for i, model in enumerate(self.models):
                    output = model(None, chunk[:, :-1], states[i])
                    states[i] = output.state
                    of_models.append(model.project(output.features[0]).float().log_softmax(-1))
                log_p = torch.stack(of_models).logsumexp(0) - math.log(len(of_models))
                following = chunk[0, 1:]
                nats.append(-log_p.gather(1, following[:, None]).squeeze(1).cpu().double().numpy())
                if likeliest:
                    entropy = torch.special.entr(log_p.exp()).sum(-1)
                    log_p[:, [PAD, BOS, EOS]] = -torch.inf  # a text has none
                    best = log_p.topk(min(likeliest, log_p.shape[1] - 3))
                    here = Expected(entropy, best.indices, best.values)
                    expected += expectations(following.tolist(), (-nats[-1]).tolist(), here, self.target_vocabulary)
                progress(len(following))
        return np.concatenate(nats), expected

    def following(self, text: str, likeliest: int) -> dict[str, Any]:
        """What was expected at each token of a text, and of the symbols after it the likeliest with their
        probabilities, and the entropy of all in nats.
        """
        tokens = self.target_vocabulary.encode(text)
        if len(tokens) > MOST_TOKENS:
            raise InputError(f"A text has {len(tokens):,} tokens, more than {MOST_TOKENS:,}: shorten it.")
        _, expected = self.predicted([*tokens, UNK], lambda _: None, likeliest=likeliest)
        after = expected.pop()
        return {"predicted": expected, "entropy": after["entropy"], "likeliest": after["likeliest"]}

    def forced(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Continuation]:
        """Each text begins anew; none has an end of its own."""
        self.check_scoring(with_sources=sources is not None)
        encoded = self.encode(check_texts(texts, what="score takes", kind="text"))

        def scored(rows: Sequence[int]) -> list[tuple[NDArray[np.float64], list[dict[str, Any]]]]:
            return [self.predicted(encoded[row].ids, lambda _: None, likeliest=likeliest) for row in rows]

        continuations = []
        for text, (nats, predicted) in zip(encoded, in_batches(scored, range(len(encoded)), TEXTS), strict=True):
            log_p = (-nats).tolist()
            total, pieces = math.fsum(log_p), [self.target_vocabulary.piece(token) for token in text.ids]
            details: dict[str, Any] = {"log_probabilities": log_p, "predicted": predicted if likeliest else None}
            continuations.append(Continuation(text.text, total, total, pieces, None, False, target=text, **details))
        return continuations

    def check_scoring(self, *, with_sources: bool) -> None:
        if with_sources:
            raise InputError("A language model has no sources: leave sources= out.")
