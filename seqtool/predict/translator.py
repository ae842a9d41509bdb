"""A trained translation model with its vocabularies: text in, text out. For `translate`, `eval` and notebooks."""

import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from seqtool.decoding.batching import encoded_sentences, force_all
from seqtool.decoding.pointers import Lattice
from seqtool.decoding.ranking import Hypothesis
from seqtool.errors import InputError
from seqtool.models.tokens import END, UNK
from seqtool.predict.encoded_text import EncodedText
from seqtool.predict.lists import check_texts
from seqtool.predict.predictor import Prediction, Predictor


@dataclass(frozen=True)
class Translation(Prediction):
    """One hypothesis for one sentence, or a sentence that was scored.

    attention: target pieces × source pieces (EOS left out on both sides)
    words, source_words: of the text as it is written, and of the whole source as it was given
    places: the word of each piece
    """

    source: EncodedText = field(kw_only=True, repr=False, compare=False)

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
        """The attention of words, the source's and the target's words, with <end> beside them if `end`; None if there
        is nothing to show.
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

    def summary(self) -> dict[str, Any]:
        alignment = self.alignment
        links = None if alignment is None else format_pharaoh(alignment)
        own = {"ended": self.ended, "tokens": self.pieces, "source_words": self.source_words, "words": self.words}
        return {**super().summary(), **own, "alignment": links}

    def columns(self) -> dict[str, Any]:
        return {"source_tokens": [*self.source_pieces, END]}

    def source_record(self) -> dict[str, Any]:
        """How the source was read, for JSON: how many tokens at its end were cut off, and which pieces of it the model
        does not know.
        """
        return {"source_cut": len(self.source.ids) - len(self.source.read), "source_unknown": self.source.unknown}

    def inputs(self) -> dict[str, Any]:
        return {"source": self.source.text, "source_unknown": self.source.unknown, **super().inputs()}


@dataclass(eq=False, repr=False)
class Translator(Predictor):
    """One model or an ensemble, ready to translate.

    split: a text into the words that links number
    """

    source_vocabulary: Vocabulary = field(kw_only=True)
    split: Callable[[str], list[str]] = field(default=str.split, kw_only=True)

    task = "translation"
    writes = "a translation"
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

    def hypotheses(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str | Sequence[str]] | None = None,
        attention: bool = False,
        replace_unknown: bool = False,
        likeliest: int = 0,
        first_line: int | None = None,
        progress: Callable[[int], None] | None = None,
        trace: Lattice | None = None,
    ) -> list[list[Translation]]:
        """The n best translations of each sentence, best first; one empty translation of an empty sentence.

        prefixes: how each translation begins, as text or as pieces; its log-probability is that of what follows
        attention: whether to keep it
        replace_unknown: unknown words by the source words that they attend to most
        likeliest: the number of tokens that were expected at each place, to be kept too
        first_line: the number of the first sentence, to warn of those of which only the beginning is read
        progress: called after each batch with the number of sentences that this process has just finished
        trace: records the search for a single sentence

        Samples depend on the seed and on how many sentences this translator has had before, not on batches.
        """
        sentences = check_texts(sentences, what="translate takes", kind="sentence")
        sources = self._encoded(sentences, self.source_vocabulary, limit=self.source_length - 1)
        if first_line is not None:
            self.warn_of_cut(sources, first_line)
        before, self._done = self._done, self._done + len(sources)
        begun = self._prefixes(prefixes, len(sources))
        full = [i for i, source in enumerate(sources) if source.read]
        bests = iter(
            self.search(
                lambda rows: encoded_sentences([sources[full[row]].read for row in rows]),
                [before + i for i in full],
                [begun[i] for i in full],
                likeliest=likeliest,
                keep_attention=attention or replace_unknown,
                progress=progress,
                trace=trace,
            )
        )
        return [
            [
                self._translation(hypothesis, source, prefix, replace_unknown=replace_unknown)
                for hypothesis in next(bests)
            ]
            if source.read
            else [Translation("", 0.0, 0.0, [], None, True, source=source, prefix=prefix)]
            for source, prefix in zip(sources, begun, strict=True)
        ]

    def warn_of_cut(self, sources: Sequence[EncodedText], first_line: int) -> None:
        """Say on standard error of which lines only the beginning is read."""
        limit, advice = self.source_length, ""
        if limit == self.longest:
            bound = f"the model's {limit:,} learnt positions"
        elif self.settings.max_source_length is not None:
            bound = f"max_source_length={limit}"
        else:
            bound, advice = f"max_length={limit}", " Set max_source_length to read more."
        for number, source in enumerate(sources, first_line):
            if len(source.ids) >= limit:
                cut = f"only the first {limit - 1:,} are translated ({bound}).{advice}"
                tqdm.write(f"Line {number} has {len(source.ids):,} tokens: {cut}", file=sys.stderr)

    def _encoded(self, texts: Sequence[str], vocabulary: Vocabulary, limit: int | None = None) -> list[EncodedText]:
        ids = vocabulary.encode_batch(texts)
        return [EncodedText(*pair, vocabulary, limit, self.split) for pair in zip(texts, ids, strict=True)]

    def _prefixes(self, prefixes: Sequence[str | Sequence[str]] | None, count: int) -> list[EncodedText]:
        """Prefixes encoded, all empty if None. InputError unless there is one a sentence, each short enough."""
        if prefixes is None:
            return [self.encode_prefix("")] * count
        if isinstance(prefixes, str) or not isinstance(prefixes, Sized) or len(prefixes) != count:
            raise InputError(f"There must be a prefix for each of the {count:,} sentences; it may be empty.")
        for number, prefix in enumerate(prefixes, 1):
            pieces = prefix if isinstance(prefix, Iterable) else [prefix]
            if not all(isinstance(piece, str) for piece in pieces):
                raise InputError(f"Prefix {number:,} is {prefix!r:.40}, not a text or a list of pieces.")
        return list(map(self.encode_prefix, prefixes))

    def _translation(
        self,
        hypothesis: Hypothesis,
        source: EncodedText,
        prefix: EncodedText | None = None,
        *,
        target: EncodedText | None = None,
        replace_unknown: bool = False,
    ) -> Translation:
        """Pieces of the prefix that the model does not know stay as they are written."""
        parts = {"source": source, "prefix": prefix, "target": target}
        translation = Translation.of(hypothesis, self.target_vocabulary, positions=len(source.read), **parts)
        pieces = list(translation.pieces)
        for i in (i for i, token in enumerate(hypothesis.tokens) if token == UNK):
            if prefix is not None and i < len(prefix.ids):
                pieces[i] = prefix.all_pieces[i]
            elif replace_unknown and translation.attention is not None:
                pieces[i] = source.pieces[int(translation.attention[i].argmax())]
        return translation if pieces == translation.pieces else replace(translation, text=joined(pieces), pieces=pieces)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log p(target | source) of each pair in nats, EOS included."""
        return [translation.log_probability for translation in self.forced(sources, targets)]

    def forced(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Translation]:
        if isinstance(sources, str) or isinstance(texts, str):
            raise InputError("Sources and targets are lists of sentences: write [sentence] for a single one.")
        sources = check_texts(sources, what="score takes", kind="source sentence")
        texts = check_texts(texts, what="score takes", kind="target sentence")
        if len(sources) != len(texts):
            raise InputError(f"There are {len(sources):,} sources but {len(texts):,} targets: give one for each.")
        encoded, targets = self._encoded(sources, self.source_vocabulary), self._encoded(texts, self.target_vocabulary)
        pairs = list(zip(encoded, targets, strict=True))
        for text in (text for pair in pairs for text in pair if not self._can_read(text.ids)):
            raise InputError(
                f"'{text.text[:40]}…' has {len(text.ids) + 1:,} tokens with its end, but the model reads at most "
                f"{self.longest:,}, the number of its learnt positions: shorten it."
            )
        ids = [target.ids for target in targets]
        rows = encoded_sentences([source.ids for source in encoded])
        with self.own_machine():
            forced = force_all(self.model, rows, ids, self.settings, device=self.device, likeliest=likeliest)
        return [
            replace(self._translation(hypothesis, source, target=target), text=target.text)
            for hypothesis, (source, target) in zip(forced, pairs, strict=True)
        ]

    def check_scoring(self, *, with_sources: bool) -> None:
        if not with_sources:
            raise InputError("A translation model scores pairs: name the file of their sources, sources=FILE.")

    def can_force(self, source: str, target: str) -> bool:
        """Whether the model can read the pair: one with learnt positions has only so many."""
        sides = (self.source_vocabulary, source), (self.target_vocabulary, target)
        return all(self._can_read(vocabulary.encode(text)) for vocabulary, text in sides)

    def _can_read(self, ids: Sequence[int]) -> bool:
        """Whether the model has as many positions as a sentence has tokens, its end included."""
        return self.longest is None or len(ids) < self.longest
