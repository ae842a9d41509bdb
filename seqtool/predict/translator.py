"""`Translator`: a trained translation model, or an ensemble. Used by `translate`, `score`, `eval` and notebooks."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from seqtool.data.corpora.corpus import TextCorpus
from seqtool.data.corpora.parallel import languages
from seqtool.data.text.alignment import (
    Link,
    Matrix,
    format_grid,
    format_pharaoh,
    hard_alignment,
    join_pieces,
    piece_words,
    word_attention,
)
from seqtool.data.text.languages import SCRIPTS, code_of
from seqtool.data.text.properties import Rule
from seqtool.data.text.vocabulary import Vocabulary
from seqtool.decoding.batching import computing, encoded_sentences, force_all, map_in_batches, source_length
from seqtool.decoding.beam_search import Lattice
from seqtool.decoding.common import Hypothesis
from seqtool.errors import InputError
from seqtool.models.tokens import END, EOS, UNK
from seqtool.models.tracing import embed
from seqtool.predict.predictor import EncodedText, Prediction, Predictor, Text, check_texts, encode
from seqtool.predict.trace import Example
from seqtool.predict.units import Reading, Unit, find_unit
from seqtool.settings.classes import locate_target
from seqtool.training.checkpoint import Checkpoint
from seqtool.view import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMPTY = Hypothesis([], 0.0, 0.0, attention=None, ended=True)  # of an empty sentence


@dataclass(frozen=True)
class Translation(Prediction):
    """One hypothesis for one sentence, or a translation that was scored.

    attention: target pieces × source pieces, EOS left out on both sides
    words: the words of the text
    source_words: the words of the whole source, spelt as in the source
    word_indices: the index of the word to which each piece belongs
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
    def word_indices(self) -> list[int]:
        return piece_words(self.pieces, self.words) if self.target is None else self.target.word_indices

    @property
    def word_attention(self) -> Matrix | None:
        """The attention of words, target words × source words; None without attention."""
        if self.attention is None:
            return None
        shape = len(self.words), len(self.source_words)
        return word_attention(self.attention, self.source.word_indices, self.word_indices, shape)

    def plot_data(self, *, end: bool) -> tuple[Matrix, list[str], list[str]] | None:
        """The attention of words, the source words and the target words, for plots; None if there is no attention.

        end: whether to show the end of both sentences, as <end>
        """
        matrix, source, target = self.word_attention, self.source_words, self.words
        if matrix is None or self.whole_attention is None or not matrix.size:
            return None
        if not end:
            return matrix, source, target
        source_indices, source = [*self.source.word_indices, len(source)], [*source, END]
        indices = self.word_indices
        if self.ended:
            indices, target = [*indices, len(target)], [*target, END]
        matrix = word_attention(self.whole_attention, source_indices, indices, (len(target), len(source)))
        return matrix, source, target

    def plot(
        self, path: str | Path | None = None, *, axes: Any = None, end: bool = False, greyscale: bool = False
    ) -> "Figure":
        """Draw the attention of words as a heat map, with the source at the top and the translation at the left.

        path: the PNG, SVG or PDF file to write, if any
        axes: matplotlib's axes to draw into; without them a figure is made
        end: whether to show the end of both sentences, as <end>
        greyscale: whether to draw in the colours of Bahdanau et al. 2015, Figure 3

        Returns the figure. Raises NothingToDrawError if there is no attention.
        """
        if (data := self.plot_data(end=end)) is None:
            reason = "it has no words, its model has no attention, or attention=True was not given"
            raise plots.NothingToDrawError(f"The translation cannot be plotted: {reason}.")
        return plots.alignment(*data, path, greyscale=greyscale, axes=axes)

    @property
    def alignment(self) -> set[Link] | None:
        """The links (source, target) from each target word to the source word with its highest attention weight."""
        matrix = self.word_attention
        return None if matrix is None else hard_alignment(matrix)

    @property
    def grid(self) -> str:
        """The attention of words as a picture for terminals, in lines; empty without attention or words."""
        matrix = self.word_attention
        return "" if matrix is None or not matrix.size else format_grid(matrix, self.source_words, self.words)

    def summary(self) -> dict[str, Any]:
        alignment = self.alignment
        links = None if alignment is None else format_pharaoh(alignment)
        words = {"source_words": self.source_words, "words": self.words, "alignment": links}
        return {**super().summary(), "ended": self.ended, "tokens": self.pieces, **words}

    def columns(self) -> dict[str, Any]:
        return {"source_tokens": [*self.source_pieces, END]}

    def source_record(self) -> dict[str, Any]:
        """The number of tokens that were cut off at the source's end, and its unknown pieces, for JSON."""
        return {"source_cut": len(self.source.ids) - len(self.source.read), "source_unknown": self.source.unknown}

    def inputs(self) -> dict[str, Any]:
        return {"source": self.source.text, "source_unknown": self.source.unknown, **super().inputs()}


def direction(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """The codes of the languages that a model translates from and to; None unless its data name two known ones."""
    data, corpus = checkpoint.config.get("data", {}), None
    with suppress(InputError):
        corpus = locate_target(data, trusted=checkpoint.trust, base=TextCorpus)
    source, target = (data.get(name, getattr(corpus, name, "")) for name in ("source_language", "target_language"))
    first, second = (code_of(str(name)) for name in languages(source, target, data.get("train")))
    return (first, second) if first != second and {first, second} <= SCRIPTS.keys() else None


def check_directions(checkpoints: Mapping[str, Checkpoint]) -> None:
    """Raise InputError if two models translate in opposite directions, as far as their data name languages.

    checkpoints: by their names in messages; those that begin with reverse= should translate in the other direction
    """
    seen: dict[tuple[str, str], str] = {}
    for name, checkpoint in checkpoints.items():
        if (codes := direction(checkpoint)) is not None:
            source, target = codes
            forward = (target, source) if name.startswith("reverse=") else codes
            if (other := seen.get(forward[::-1])) is not None:
                expected = f"beside {other}, it must translate from {target} to {source}"
                raise InputError(f"{name} translates from {source} to {target}: {expected}.")
            seen.setdefault(forward, name)


@dataclass(eq=False, repr=False)
class Translator(Predictor):
    """A trained translation model or an ensemble, with its vocabularies and settings.

    split: splits a text into the words that alignments number
    """

    source_vocabulary: Vocabulary = field(kw_only=True)
    split: Callable[[str], list[str]] = field(default=str.split, kw_only=True)

    task = "translation"
    output_name = "a translation"
    command = "translate"
    sides = ("source", "target")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_directions({str(checkpoint.path): checkpoint for checkpoint in self.checkpoints})

    @property
    def source_length(self) -> int:
        """The maximum number of tokens of a source that are read, EOS included."""
        limit = source_length(self.settings)
        return limit if self.max_positions is None else min(limit, self.max_positions)

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Return the best translation of each sentence. The translation of an empty sentence is empty."""
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
        """Return the n best translations of each sentence, best first; an empty sentence has one, which is empty.

        prefixes: the beginning of each translation, a text or a list of pieces; log-probabilities leave it out
        attention: whether to keep the attention
        replace_unknown: whether to replace unknown words by the source words with the highest attention weights
        likeliest: the number of likeliest tokens to keep at each position; 0 keeps none
        first_line: the line number of the first sentence, for warnings about sentences that are cut; None warns of none
        progress: called after each batch with the number of sentences that this process has just finished
        trace: records the search for a single sentence

        Samples depend on the seed and on the number of earlier sentences, not on how sentences are batched.
        """
        sentences = check_texts(sentences, caller="translate takes", item="sentence")
        sources = encode(sentences, self.source_vocabulary, self.source_length - 1, self.split)
        if first_line is not None:
            self.warn_of_cut(sources, first_line)
        first_number = self._next_seed_number
        self._next_seed_number += len(sources)
        encoded_prefixes = self._prefixes(prefixes, len(sources))
        nonempty = [i for i, source in enumerate(sources) if source.read]
        n_bests = iter(
            self.search(
                lambda rows: encoded_sentences([sources[nonempty[row]].read for row in rows]),
                [first_number + i for i in nonempty],
                [encoded_prefixes[i] for i in nonempty],
                likeliest=likeliest,
                keep_attention=attention or replace_unknown,
                progress=progress,
                trace=trace,
            )
        )
        n_best_lists = [next(n_bests) if source.read else [EMPTY] for source in sources]
        return [
            [self._translation(h, source, prefix, replace_unknown=replace_unknown) for h in n_best]
            for source, prefix, n_best in zip(sources, encoded_prefixes, n_best_lists, strict=True)
        ]

    def warn_of_cut(self, sources: Sequence[EncodedText], first_line: int) -> None:
        """Warn on standard error of sources that are too long: only their beginnings are translated."""
        limit = self.source_length
        is_learnt = limit == self.max_positions
        bound = f"the model's {limit:,} learnt positions" if is_learnt else f"max_source_length={limit}"
        for number, source in enumerate(sources, first_line):
            if len(source.ids) >= limit:
                consequence = f"only the first {limit - 1:,} are translated ({bound})."
                tqdm.write(f"Line {number} has {len(source.ids):,} tokens: {consequence}", file=sys.stderr)

    def _prefixes(self, prefixes: Sequence[str | Sequence[str]] | None, count: int) -> list[EncodedText]:
        """Encode the prefixes of `count` sentences, all empty if None. Raises InputError unless they are valid."""
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
        """Make a translation of a hypothesis. Unknown pieces of its prefix are spelt as in the prefix."""
        encoded_texts = {"source": source, "prefix": prefix, "target": target}
        translation = Translation.of(hypothesis, self.target_vocabulary, positions=len(source.read), **encoded_texts)
        pieces = list(translation.pieces)
        for i, token in enumerate(hypothesis.tokens):
            if token != UNK:
                continue
            if prefix is not None and i < len(prefix.ids):
                pieces[i] = prefix.all_pieces[i]
            elif replace_unknown and translation.attention is not None:
                pieces[i] = source.pieces[int(translation.attention[i].argmax())]
        if pieces == translation.pieces:
            return translation
        return replace(translation, text=join_pieces(pieces), pieces=pieces)

    def example(self, source: str | Translation, target: Text = None) -> Example:
        """Encode a pair that the model is to read; without a target, the source with its best translation."""
        if isinstance(source, Translation):
            encoded = source.source
            text = (source.target or self.encode_text(source)) if target is None else self.encode_text(target)
        else:
            sources = check_texts([source], caller="trace and attribute take", item="sentence")
            (encoded,) = encode(sources, self.source_vocabulary, split=self.split)
            self.check_length(encoded)
            text = self.encode_text(self.hypotheses([source])[0][0] if target is None else target)
        text.split = self.split
        return Example(text, torch.tensor([*encoded.read, EOS], device=self.device), encoded)

    def embed(self, sentences: Sequence[str], vector: str = "last") -> NDArray[np.float32]:
        """Return a vector of each sentence, N×D.

        vector: `last` is h of the encoder's highest layer after its last step, of both directions one after the other,
            or a Transformer's output at <eos>; `mean` is the mean of the encoder's outputs, <eos> included; `c` is the
            first state of a recurrent decoder, all layers and tensors one after the other, or the fixed context if the
            decoder only receives that at every step

        Raises InputError if the model has no such vector, for an ensemble, and in int8.
        """
        if self.settings.precision == "int8":
            raise InputError("embed takes no precision=int8, which is for decoding: leave it out, or take bf16.")
        encoded = encode(check_texts(sentences, caller="embed takes", item="sentence"), self.source_vocabulary)
        self.check_length(*encoded)
        sources = encoded_sentences([sentence.ids for sentence in encoded])

        def embed_batch(rows: Sequence[int]) -> list[NDArray[np.float32]]:
            with computing(self.device, self.settings.precision, lower="the length of the sentences"):
                return [*embed(self.plain_model, sources.batch(rows).to(self.device), vector).float().cpu().numpy()]

        with self.on_device():
            return np.array(map_in_batches(embed_batch, sources.order, self.settings.sources_per_batch), np.float32)

    def find_unit(self, sources: Sequence[str], targets: Sequence[str], rule: str | Rule, **options: Any) -> Unit:
        """Find the unit of the recurrent decoder that tells a property of the targets best, while it reads them as
        translations of the sources. The options are `decides` and `random_units` of `units.find_unit`.
        """
        encoded_sources, encoded_targets = self._encode_pairs(sources, targets, caller="find_unit takes")
        source = encoded_sentences([encoded.ids for encoded in encoded_sources]).batch(range(len(encoded_sources)))
        with self.on_device(), torch.inference_mode():
            return find_unit(Reading.of(self.plain_model, source, encoded_targets), rule, **options)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return log p(target | source) of each pair in nats, EOS included."""
        return [translation.log_probability for translation in self.forced(sources, targets)]

    def forced(self, sources: Sequence[str] | None, texts: Sequence[str], *, likeliest: int = 0) -> list[Translation]:
        encoded_sources, targets = self._encode_pairs(sources, texts, caller="score takes")
        ids = [target.ids for target in targets]
        source_batches = encoded_sentences([source.ids for source in encoded_sources])
        with self.on_device():
            forced = force_all(self.model, source_batches, ids, self.settings, device=self.device, likeliest=likeliest)
        return [
            replace(self._translation(hypothesis, source, target=target), text=target.text)
            for hypothesis, source, target in zip(forced, encoded_sources, targets, strict=True)
        ]

    def _encode_pairs(self, sources: Any, targets: Any, *, caller: str) -> tuple[list[EncodedText], list[EncodedText]]:
        """Encode sentences and their translations. Raises InputError unless the model can read all of them."""
        if isinstance(sources, str) or isinstance(targets, str):
            raise InputError("Sources and targets are lists of sentences: write [sentence] for a single one.")
        sources = check_texts(sources, caller=caller, item="source sentence")
        targets = check_texts(targets, caller=caller, item="target sentence")
        if len(sources) != len(targets):
            problem = f"must have the same length, not {len(sources):,} and {len(targets):,}"
            raise InputError(f"Sources and targets {problem}: give one target per source.")
        encoded_sources = encode(sources, self.source_vocabulary, split=self.split)
        encoded_targets = encode(targets, self.target_vocabulary, split=self.split)
        self.check_length(*encoded_sources, *encoded_targets)
        return encoded_sources, encoded_targets

    def check_scoring(self, *, with_sources: bool) -> None:
        if not with_sources:
            raise InputError("A translation model scores pairs: name the file of their sources, sources=FILE.")

    def can_force(self, source: str, target: str) -> bool:
        """Whether the model can read the pair. Models with learnt positions have a maximum length."""
        lengths = len(self.source_vocabulary.encode(source)), len(self.target_vocabulary.encode(target))
        return self.max_positions is None or max(lengths) < self.max_positions  # which EOS needs too
