"""A trained language model: a prompt in, its continuations out. For `generate`, `eval` and notebooks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from seqtool.data.text.alignment import SPACE
from seqtool.data.text.unknown import unknown_of, unknown_pieces
from seqtool.decoding.batching import computing, in_batches
from seqtool.decoding.forced import read_prefix
from seqtool.decoding.ranking import Hypothesis
from seqtool.decoding.sampling import sample
from seqtool.decoding.settings import out_of_range
from seqtool.errors import InputError
from seqtool.models.tokens import BOS, EOS, PAD, UNK
from seqtool.predict.lists import check_texts
from seqtool.predict.predictor import Prediction, Predictor, expectation, with_own_threads
from seqtool.settings import declarations

MOST = 100_000  # tokens of a prompt
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
    """A sampled continuation of a prompt, or a given text. ended: at a text of `stop`; log_probability: of all tokens;
    unknown: the pieces of a given text that the model does not know.
    """

    unknown: list[str] = field(default_factory=list, kw_only=True, repr=False)

    def record(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "log_probability": self.log_probability,
            "ended": self.ended,
            "tokens": self.pieces,
        }

    def pair(self) -> dict[str, Any]:
        """Of a given text, for JSON, which has no source."""
        return {"unknown": self.unknown}


class Draft:
    """A text being sampled, up to the first of `stops`; `told` is called with each part that surely belongs to it."""

    def __init__(self, stops: Sequence[str], told: Callable[[str], None] | None) -> None:
        self.text = ""
        self.ended = False
        self._stops = stops
        self._longest = max(map(len, stops), default=1)
        self._told = told
        self._given = 0

    def add(self, piece: str) -> bool:
        """Add a piece; returns whether the text has ended with it. Anything after the end is left out."""
        if self.ended:
            return True
        since = max(0, len(self.text) - self._longest + 1)
        self.text += piece.replace(SPACE, " ")
        if self._stops:
            found = [place for stop in self._stops if (place := self.text.find(stop, since)) >= 0]
            if found:
                self.text, self.ended = self.text[: min(found)], True
        if self._told is not None:
            begun = (n for stop in self._stops for n in range(len(stop)) if self.text.endswith(stop[:n]))
            self._give(len(self.text) - (0 if self.ended else max(begun, default=0)))  # hold back what may begin a stop
        return self.ended

    def close(self) -> None:
        """End the text: no more pieces follow."""
        self._give(len(self.text))

    def _give(self, end: int) -> None:
        if self._told is not None and end > self._given:
            self._told(self.text[self._given : end])
            self._given = end


@dataclass(eq=False, repr=False)
class Generator(Predictor):
    """One language model or an ensemble, ready to write."""

    settings: GenerateSettings

    reads = "nothing"
    command = "generate"
    schema = GenerateSettings

    def generate(self, prompts: Sequence[str]) -> list[str]:
        """One continuation of each prompt, without the prompt; an empty one begins a text."""
        return [samples[0].text for samples in self.samples(prompts)]

    def samples(self, prompts: Sequence[str]) -> list[list[Continuation]]:
        """The `n` continuations of each prompt. They depend on the seed and on how many prompts came before."""
        prompts = check_texts(prompts, what="generate takes", kind="prompt")
        return [self._continued(prompt, self.uniforms()) for prompt in prompts]

    def stream(self, prompt: str, uniforms: Sequence[float], told: Callable[[str], None]) -> Continuation:
        """One continuation, sampled with a row of `uniforms`; `told` is called with every piece as it comes."""
        return self._continued(prompt, np.asarray(uniforms)[np.newaxis], told)[0]

    def uniforms(self) -> Any:
        """The random numbers in [0, 1) of the next prompt, n × max_length."""
        generator = np.random.default_rng([self.settings.seed, self._done])
        self._done += 1
        return generator.random((self.settings.n, self.settings.max_length))

    def nats(self, tokens: Sequence[int], progress: Callable[[int], object]) -> NDArray[np.float64]:
        """−log p of every token of a text, read as one stream. `progress` is called with the number read since."""
        return self.predicted(tokens, progress, likeliest=0)[0]

    @with_own_threads
    def predicted(
        self, tokens: Sequence[int], progress: Callable[[int], object], *, likeliest: int
    ) -> tuple[NDArray[np.float64], list[dict[str, Any]]]:
        """The same, and what was expected at every token (`predictor.expectation`), if `likeliest` is not 0."""
        parts, expected, states = [np.zeros(0)], [], [None for _ in self.models]
        given = torch.tensor([[BOS, *tokens]], device=self.device)
        with computing(self.device, self.settings.precision, lower="the length of the texts"):
            for start in range(0, len(tokens), STEPS):
                chunk, log_p = given[:, start : start + STEPS + 1], []
                for i, model in enumerate(self.models):
                    output = model(None, chunk[:, :-1], states[i])
                    states[i] = output.state
                    log_p.append(model.project(output.features[0]).float().log_softmax(-1))
                mean = torch.stack(log_p).logsumexp(0) - math.log(len(log_p))
                parts.append(-mean.gather(1, chunk[0, 1:, None]).squeeze(1).cpu().double().numpy())
                if likeliest:
                    entropy, piece = torch.special.entr(mean.exp()).sum(-1), self.target_vocabulary.piece
                    mean[:, [PAD, BOS, EOS]] = -torch.inf  # a text has none
                    log_each, places = mean.topk(min(likeliest, mean.shape[1] - 3))
                    columns = chunk[0, 1:], -parts[-1], entropy, places, log_each.exp()
                    for token, log_p, nats, ids, p in zip(*(one.tolist() for one in columns), strict=True):
                        expected.append(expectation(piece(token), log_p, nats, [piece(i) for i in ids], p))
                progress(chunk.shape[1] - 1)
        return np.concatenate(parts), expected

    def line(self, prompt: str, samples: Sequence[Continuation]) -> dict[str, Any]:
        """A prompt, the pieces of it that the model does not know, and its continuations, for JSON."""
        (unknown,) = unknown_pieces([prompt], self.target_vocabulary)
        return {"prompt": prompt, "unknown": unknown, "texts": [one.record() for one in samples]}

    def given(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Continuation]:
        """Each text begins anew; none has an end of its own."""
        self.check_given(sources is not None)
        texts = check_texts(texts, what="given takes", kind="text")
        order = range(len(texts))
        return in_batches(lambda rows: [self._given(texts[i], likeliest) for i in rows], order, TEXTS)

    def following(self, text: str, likeliest: int) -> dict[str, Any]:
        """What was expected at each token of a text, and of the symbols after it the likeliest with their
        probabilities, and the entropy of all in nats.
        """
        tokens = self.target_vocabulary.encode(text)
        if len(tokens) > MOST:
            raise InputError(f"A text has {len(tokens):,} tokens, more than {MOST:,}: shorten it.")
        _, expected = self.predicted([*tokens, UNK], lambda _: None, likeliest=likeliest)
        after = expected.pop()
        return {"predicted": expected, "entropy": after["entropy"], "likeliest": after["likeliest"]}

    def check_given(self, sources: bool) -> None:
        if sources:
            raise InputError("A language model has no sources: leave sources= out.")

    def _given(self, text: str, likeliest: int) -> Continuation:
        tokens = self.target_vocabulary.encode(text)
        nats, expected = self.predicted(tokens, lambda _: None, likeliest=likeliest)
        pieces, log_p = [self.target_vocabulary.piece(token) for token in tokens], (-nats).tolist()
        total, known = math.fsum(log_p), {"log_probabilities": log_p, "predicted": expected if likeliest else None}
        unknown = unknown_of(text, tokens, self.target_vocabulary)
        return Continuation(text, total, total, pieces, None, ended=False, unknown=unknown, **known)

    @with_own_threads
    def _continued(self, prompt: str, uniforms: Any, told: Callable[[str], None] | None = None) -> list[Continuation]:
        settings, known = self.settings, self.target_vocabulary
        drafts = [Draft(settings.stop or [], told) for _ in uniforms]

        def each(tokens: list[int]) -> list[bool]:
            return [token != PAD and draft.add(known.piece(token)) for token, draft in zip(tokens, drafts, strict=True)]

        given = known.encode(prompt)
        if len(given) > MOST:
            raise InputError(f"A prompt has {len(given):,} tokens, more than {MOST:,}: shorten it.")
        read = torch.tensor([given], dtype=torch.int64, device=self.device)
        with computing(self.device, settings.precision, lower=settings.memory):
            memory, state = self.model.encode(None)
            state, prefix = read_prefix(self.model, memory, state, read)
            found = sample(
                self.model.step,
                memory,
                state,
                uniforms=torch.from_numpy(uniforms[np.newaxis]).float(),
                maximum=[settings.max_length],
                minimum=settings.max_length + 1,  # a text has no EOS
                temperature=settings.temperature,
                top_k=settings.top_k,
                top_p=settings.top_p,
                keep_attention=False,
                unknown=False,
                prefix=prefix,
                each=each,
            )[0]
        for draft in drafts:
            draft.close()
        return [self._continuation(one, read.shape[1]) for one in found]

    def _continuation(self, hypothesis: Hypothesis, begun: int) -> Continuation:
        draft, pieces = Draft(self.settings.stop or [], None), []
        for token in hypothesis.tokens[begun:]:
            pieces.append(self.target_vocabulary.piece(token))
            draft.add(pieces[-1])
        return Continuation(draft.text, hypothesis.score, hypothesis.log_probability, pieces, None, ended=draft.ended)
