"""A trained translation model with its vocabularies: text in, text out. For `translate`, `eval` and notebooks."""

import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from tqdm import tqdm

from seqtool.data.text.alignment import (
    Link,
    Matrix,
    format_pharaoh,
    hard_alignment,
    joined,
    piece_words,
    word_attention,
)
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import decode, encoded_sentences, explained, force_all, with_prefixes
from seqtool.decoding.pointers import Lattice
from seqtool.decoding.ranking import Hypothesis
from seqtool.errors import InputError
from seqtool.models.tokens import UNK
from seqtool.predict.given_texts import Given
from seqtool.predict.lists import check_texts
from seqtool.predict.predictor import END, Prediction, Predictor, with_own_threads


@dataclass(frozen=True)
class Translation(Prediction):
    """One hypothesis for one sentence. attention: target pieces × source pieces (EOS left out on both sides).

    words, source_words: of the text as it is written, and of the source as it was given, with what was cut off;
    places: the word of each piece; target: None unless the text was given.
    """

    source: Given = field(kw_only=True, repr=False, compare=False)
    target: Given | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def source_pieces(self) -> list[str]:
        return self.source.pieces

    @property
    def source_words(self) -> list[str]:
        return self.source.words

    @cached_property
    def words(self) -> list[str]:
        return self.source.split(self.text) if self.target is None else self.target.words

    @cached_property
    def places(self) -> list[int]:
        return piece_words(self.pieces, self.words) if self.target is None else self.target.places

    @property
    def word_attention(self) -> Matrix | None:
        """Target words × source words."""
        if self.attention is None:
            return None
        shape = len(self.words), len(self.source_words)
        return word_attention(self.attention, self.source.places, self.places, shape)

    def shown(self, *, end: bool) -> tuple[Matrix, list[str], list[str]] | None:
        """The attention of words, the source's and the target's words, with <end> beside them if asked for; None if
        there is nothing to show.
        """
        matrix, source, target = self.word_attention, self.source_words, self.words
        if matrix is None or self.whole_attention is None or not matrix.size:
            return None
        if not end:
            return matrix, source, target
        source_places, source = [*self.source.places, len(source)], [*source, END]
        places = self.places
        if self.ended:
            places, target = [*places, len(target)], [*target, END]
        return word_attention(self.whole_attention, source_places, places, (len(target), len(source))), source, target

    @property
    def alignment(self) -> set[Link] | None:
        """Each target word's most attended source word, as (source, target)."""
        matrix = self.word_attention
        return None if matrix is None else hard_alignment(matrix)

    def record(self) -> dict[str, Any]:
        alignment = self.alignment
        links = None if alignment is None else format_pharaoh(alignment)
        own = {"ended": self.ended, "tokens": self.pieces, "source_words": self.source_words, "words": self.words}
        return {**super().record(), **own, "alignment": links}

    def weights(self) -> dict[str, Any]:
        found = super().weights()
        return {"source_tokens": [*self.source_pieces, END], **found} if found else {}

    def reading(self) -> dict[str, Any]:
        """How the source was read, for JSON: how many tokens at its end were cut off, and which pieces of it the model
        does not know.
        """
        return {"source_cut": len(self.source.ids) - self.source.read, "source_unknown": self.source.unknown}

    def pair(self) -> dict[str, Any]:
        """Of a given text, for JSON: its source, and the pieces of both that the model does not know."""
        return {"source": self.source.text, "source_unknown": self.source.unknown, "unknown": self.unknown}

    @property
    def unknown(self) -> list[str]:
        """The pieces of a given text that the model does not know."""
        return [] if self.target is None else self.target.unknown


@dataclass(eq=False, repr=False)
class Translator(Predictor):
    """One model or an ensemble, ready to translate. split: a text into the words that links number."""

    source_vocabulary: Vocabulary = field(kw_only=True)
    split: Callable[[str], list[str]] = field(default=str.split, kw_only=True)

    task = "translation"
    command = "translate"
    sides = ("source", "target")

    @property
    def source_length(self) -> int:
        """The most tokens of a source that are read, EOS included."""
        most: int = self.settings.max_source_length or self.settings.max_length
        return most if self.longest is None else min(most, self.longest)

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """The best translation of each sentence; an empty sentence stays empty."""
        return [hypotheses[0].text for hypotheses in self.hypotheses(sentences)]

    @with_own_threads
    def hypotheses(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str | Sequence[str]] | None = None,
        attention: bool = False,
        replace_unknown: bool = False,
        likeliest: int = 0,
        progress: Callable[[int], None] | None = None,
        trace: Lattice | None = None,
        whole: bool = False,
    ) -> list[list[Translation]]:
        """The n best of each sentence, best first; one empty translation for an empty sentence. `prefixes`: how each
        translation begins, as text or as pieces; its log-probability is that of what follows. `likeliest`: also so many
        tokens that were expected at each place. After each batch `progress` is called with the number of sentences that
        this process has just finished. `trace` records the search for a single sentence. `whole`: also the probability
        of each translation with its prefix.

        Samples depend on the seed and on how many sentences this translator has had before, not on batches.
        """
        sentences = check_texts(sentences, what="translate takes", kind="sentence")
        given = self._given(sentences, self.source_vocabulary, self.source_length - 1)
        full = [i for i, one in enumerate(given) if one.read]
        before, self._done = self._done, self._done + len(sentences)
        known = self._known(prefixes, len(sentences))
        result = [[] if one.read else [Translation("", 0.0, 0.0, [], None, True, source=one)] for one in given]
        for length in sorted({len(known[i]) for i in full}):
            rows = [i for i in full if len(known[i]) == length]
            sources = encoded_sentences([given[i].ids[: given[i].read] for i in rows])
            decoded = decode(
                self.model,
                sources,
                self.settings,
                device=self.device,
                numbers=[before + i for i in rows],
                prefixes=[known[i] for i in rows] if length else None,
                keep_attention=attention or replace_unknown,
                progress=progress,
                trace=trace,
            )
            if likeliest:
                asked: dict[str, Any] = {"device": self.device, "likeliest": likeliest}
                decoded = explained(self.model, sources, decoded, self.settings, **asked)
            if whole and length:
                begun_with = [known[i] for i in rows]
                decoded = with_prefixes(self.model, sources, begun_with, decoded, self.settings, device=self.device)
            for i, n_best in zip(rows, decoded, strict=True):
                begun = self._begun(prefixes[i]) if prefixes is not None and UNK in known[i] else []
                result[i] = [self._translation(one, given[i], replace_unknown, begun) for one in n_best]
        return result

    def _begun(self, prefix: str | Sequence[str]) -> Sequence[str]:
        return self.target_vocabulary.pieces(prefix) if isinstance(prefix, str) else prefix

    def _known(self, prefixes: Sequence[str | Sequence[str]] | None, count: int) -> list[list[int]]:
        """The ids of prefixes, all empty if None. InputError unless there is one a sentence, each short enough."""
        if prefixes is None:
            return [[]] * count
        if isinstance(prefixes, str) or not isinstance(prefixes, Sized) or len(prefixes) != count:
            raise InputError(f"There must be a prefix for each of the {count:,} sentences; it may be empty.")
        for number, prefix in enumerate(prefixes, 1):
            pieces = prefix if isinstance(prefix, Iterable) else [prefix]
            if not all(isinstance(piece, str) for piece in pieces):
                raise InputError(f"Prefix {number:,} is {prefix!r:.40}, not a text or a list of pieces.")
        limit = self.settings.max_length
        known = [self.target_vocabulary.encode_beginning(prefix) for prefix in prefixes]
        for prefix, ids in zip(prefixes, known, strict=True):
            if len(ids) >= limit:
                advice = "shorten it" if self.shortened else "shorten it, or allow more"
                raise InputError(
                    f"The prefix '{joined(prefix)[:40]}' has {len(ids):,} tokens, but a translation has at most "
                    f"{self.limit}: {advice}."
                )
        return known

    def warn_of_long(self, lines: Sequence[str], *, first: int = 1) -> None:
        """Say on standard error of which lines only the beginning is read; `first` is the number of the first."""
        limit, vocabulary, advice = self.source_length, self.source_vocabulary, ""
        if limit == self.longest:
            bound = f"the model's {limit:,} learnt positions"
        elif self.settings.max_source_length is not None:
            bound = f"max_source_length={limit}"
        else:
            bound, advice = f"max_length={limit}", " Set max_source_length to read more."
        for number, line in enumerate(lines, first):
            if len(vocabulary.normalize(line)) + 1 < limit:  # a token has at least one character, but for the first ▁
                continue
            tokens = len(vocabulary.encode(line))
            if tokens >= limit:
                cut = f"only the first {limit - 1:,} are translated ({bound}).{advice}"
                tqdm.write(f"Line {number} has {tokens:,} tokens: {cut}", file=sys.stderr)

    @with_own_threads
    def forced(self, sources: Sequence[str], targets: Sequence[str], *, likeliest: int = 0) -> list[Translation]:
        """The given targets as if they had been decoded: their probabilities, attention if there is any and, if asked
        for, so many tokens that were expected at each place.
        """
        if isinstance(sources, str) or isinstance(targets, str):
            raise InputError("Sources and targets are lists of sentences: write [sentence] for a single one.")
        sources = check_texts(sources, what="score takes", kind="source sentence")
        targets = check_texts(targets, what="score takes", kind="target sentence")
        if len(sources) != len(targets):
            raise InputError(f"There are {len(sources):,} sources but {len(targets):,} targets: give one for each.")
        read = self._given(sources, self.source_vocabulary)
        wanted = self._given(targets, self.target_vocabulary)
        for one in chain.from_iterable(zip(read, wanted, strict=True)):
            self._check_length(one.text, one.read + 1)
        encoded, ids = encoded_sentences([one.ids for one in read]), [one.ids for one in wanted]
        found = force_all(self.model, encoded, ids, self.settings, device=self.device, likeliest=likeliest)
        return [
            self._translation(one, source, target=target)
            for one, source, target in zip(found, read, wanted, strict=True)
        ]

    def _given(self, texts: Sequence[str], vocabulary: Vocabulary, longest: int | None = None) -> list[Given]:
        """Texts, of which the model reads at most `longest` tokens (None: all)."""
        encoded = zip(texts, vocabulary.encode_batch(texts), strict=True)
        return [Given(text, ids, vocabulary, self.split, len(ids[:longest])) for text, ids in encoded]

    def can_force(self, source: str, target: str) -> bool:
        """Whether the model can read the pair: one with learnt positions has only so many."""
        sides = (self.source_vocabulary, source), (self.target_vocabulary, target)
        return self.longest is None or all(len(known.encode(text)) < self.longest for known, text in sides)

    def _check_length(self, text: str, length: int) -> None:
        if self.longest is not None and length > self.longest:
            raise InputError(
                f"'{text[:40]}…' has {length:,} tokens with its end, but the model reads at most {self.longest:,}, the "
                "number of its learnt positions: shorten it."
            )

    def given(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Translation]:
        self.check_given(sources is not None)
        found = self.forced(sources or [], texts, likeliest=likeliest)
        return [replace(one, text=text) for one, text in zip(found, texts, strict=True)]

    def check_given(self, sources: bool) -> None:
        if not sources:
            raise InputError("A translation model scores pairs: name the file of their sources, sources=FILE.")

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log p(target | source) of each pair in nats, EOS included."""
        return [translation.log_probability for translation in self.forced(sources, targets)]

    def _translation(
        self,
        hypothesis: Hypothesis,
        source: Given,
        replace_unknown: bool = False,
        begun: Sequence[str] = (),
        target: Given | None = None,
    ) -> Translation:
        """`begun`: the pieces of its prefix as they are written, of which the model may not know all."""
        found = Translation.of(hypothesis, self.target_vocabulary, positions=source.read, source=source, target=target)
        pieces = list(found.pieces)
        for i in (i for i, token in enumerate(hypothesis.tokens) if token == UNK):
            if i < len(begun):
                pieces[i] = begun[i]
            elif replace_unknown and found.attention is not None:
                pieces[i] = source.pieces[int(found.attention[i].argmax())]
        return found if pieces == found.pieces else replace(found, text=joined(pieces), pieces=pieces)
