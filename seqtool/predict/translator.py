"""A trained translation model with its vocabularies: text in, text out. For `translate`, `eval` and notebooks."""

import sys
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from seqtool.predict.lists import check_texts
from seqtool.predict.predictor import END, Prediction, Predictor, with_own_threads


class Spelt(NamedTuple):
    """A text that was given: the pieces that the model reads, all its words, and the word of each piece."""

    pieces: list[str]
    words: list[str]
    places: list[int]


@dataclass(frozen=True)
class Translation(Prediction):
    """One hypothesis for one sentence. attention: target pieces × source pieces (EOS left out on both sides).

    words, source_words: of the text as it is written, and of the source as it was given, with what was cut off;
    places, source_places: the word of each piece.
    """

    source_pieces: list[str] = field(default_factory=list)
    source_words: list[str] = field(default_factory=list)
    source_places: list[int] = field(default_factory=list, repr=False)
    words: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list, repr=False)

    @property
    def word_attention(self) -> Matrix | None:
        """Target words × source words."""
        if self.attention is None:
            return None
        shape = len(self.words), len(self.source_words)
        return word_attention(self.attention, self.source_places, self.places, shape)

    def shown(self, *, end: bool) -> tuple[Matrix, list[str], list[str]] | None:
        """The attention of words, the source's and the target's words, with <end> beside them if asked for; None if
        there is nothing to show.
        """
        matrix, source, target = self.word_attention, self.source_words, self.words
        if matrix is None or self.whole_attention is None or not matrix.size:
            return None
        if not end:
            return matrix, source, target
        source_places, source = [*self.source_places, len(source)], [*source, END]
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
        links = None if self.alignment is None else format_pharaoh(self.alignment)
        own = {"ended": self.ended, "tokens": self.pieces, "source_words": self.source_words, "words": self.words}
        return {**super().record(), **own, "alignment": links}

    def weights(self) -> dict[str, Any]:
        found = super().weights()
        return {"source_tokens": [*self.source_pieces, END], **found} if found else {}


EMPTY = Translation("", 0.0, 0.0, [], None, True)  # the translation of an empty sentence


@dataclass(eq=False, repr=False)
class Translator(Predictor):
    """One model or an ensemble, ready to translate. split: a text into the words that links number."""

    source_vocabulary: Vocabulary = field(kw_only=True)
    split: Callable[[str], list[str]] = field(default=str.split, kw_only=True)

    reads = "text"
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
        ids = [tokens[: self.source_length - 1] for tokens in self.source_vocabulary.encode_batch(sentences)]
        full = [i for i, tokens in enumerate(ids) if tokens]
        before, self._done = self._done, self._done + len(sentences)
        known = self._known(prefixes, len(sentences))
        result = [[replace(EMPTY, source_words=self.split(sentence))] for sentence in sentences]
        for length in sorted({len(known[i]) for i in full}):
            rows = [i for i in full if len(known[i]) == length]
            sources = encoded_sentences([ids[i] for i in rows])
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
                source = self._spelt(sentences[i], self.source_vocabulary, len(ids[i]))
                begun = self._begun(prefixes[i]) if prefixes is not None and UNK in known[i] else []
                result[i] = [self._translation(one, source, replace_unknown, begun) for one in n_best]
        return result

    def _begun(self, prefix: str | Sequence[str]) -> Sequence[str]:
        return self.target_vocabulary.pieces(prefix) if isinstance(prefix, str) else prefix

    def _known(self, prefixes: Sequence[str | Sequence[str]] | None, count: int) -> list[list[int]]:
        """The ids of prefixes, all empty if None. InputError unless there is one a sentence, each short enough."""
        if prefixes is None:
            return [[]] * count
        if isinstance(prefixes, str) or not isinstance(prefixes, Sized) or len(prefixes) != count:
            raise InputError(f"There must be a prefix for each of the {count:,} sentences; it may be empty.")
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

    def reading(self, source: str, translation: Translation) -> dict[str, Any]:
        """How a source was read, for JSON: how many tokens at its end were cut off, and which pieces of it the model
        does not know.
        """
        cut = len(self.source_vocabulary.encode(source)) - len(translation.source_pieces)
        return {"source_cut": cut, "source_unknown": self.source_vocabulary.unknown(source)}

    def pair(self, source: str, text: str) -> dict[str, Any]:
        read = {"source": source, "source_unknown": self.source_vocabulary.unknown(source)}
        return {**read, **super().pair(source, text)}

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
        pairs = [
            (self.source_vocabulary.encode(source), self.target_vocabulary.encode(target))
            for source, target in zip(sources, targets, strict=True)
        ]

        for texts, ids in zip(zip(sources, targets, strict=True), pairs, strict=True):
            for text, tokens in zip(texts, ids, strict=True):
                self._check_length(text, len(tokens) + 1)
        encoded, given = encoded_sentences([source for source, _ in pairs]), [target for _, target in pairs]
        found = force_all(self.model, encoded, given, self.settings, device=self.device, likeliest=likeliest)
        translations = []
        for one, source, target in zip(found, sources, targets, strict=True):
            written = self._spelt(target, self.target_vocabulary)
            translation = self._translation(one, self._spelt(source, self.source_vocabulary))
            translations.append(replace(translation, words=written.words, places=written.places))
        return translations

    def _spelt(self, text: str, vocabulary: Vocabulary, length: int | None = None) -> Spelt:
        """A text that was given, of which the model reads `length` pieces (None: all)."""
        pieces, words = vocabulary.pieces(text)[:length], self.split(text)
        return Spelt(pieces, words, piece_words(pieces, list(map(vocabulary.normalize, words))))

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
        self, hypothesis: Hypothesis, source: Spelt, replace_unknown: bool = False, begun: Sequence[str] = ()
    ) -> Translation:
        """`begun`: the pieces of its prefix as they are written, of which the model may not know all."""
        read = {"source_pieces": source.pieces, "source_words": source.words, "source_places": source.places}
        found = Translation.of(hypothesis, self.target_vocabulary, positions=len(source.pieces), **read)
        pieces = list(found.pieces)
        for i in (i for i, token in enumerate(hypothesis.tokens) if token == UNK):
            if i < len(begun):
                pieces[i] = begun[i]
            elif replace_unknown and found.attention is not None:
                pieces[i] = source.pieces[int(found.attention[i].argmax())]
        text = found.text if pieces == found.pieces else joined(pieces)
        words = self.split(text)
        return replace(found, text=text, pieces=pieces, words=words, places=piece_words(pieces, words))
