"""Splits pieces of training sentences at random, so that a model meets the same words in several segmentations.

Like subword regularisation (Kudo 2018) and BPE-dropout (Provilkov et al. 2020), but pieces of the usual segmentation
are split, as in StochasTok (Sims et al. 2025), so that texts need not be encoded again.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from seqtool.data.batches import Batch, Ids, make_batch, make_source
from seqtool.data.text.vocabulary import SPECIALS, Vocabulary
from seqtool.errors import InputError
from seqtool.models.inputs import Source
from seqtool.models.tokens import PAD
from seqtool.training.scheduled_sampling import random_numbers


class PieceSplitter:
    """Replaces each piece, with the probability `share`, by two pieces of the vocabulary that spell it, if there are
    any. The draws depend on nothing but the seed, the epoch and the example.
    """

    def __init__(self, vocabularies: Mapping[str, Vocabulary], share: float, seed: int) -> None:
        """Raises InputError if a vocabulary is one of words or characters."""
        self.share, self.seed = share, seed
        for vocabulary in vocabularies.values():
            if vocabulary.form.kind not in ("bpe", "unigram"):
                raise InputError(
                    f"train.split_pieces={share:g} splits pieces of words, and this vocabulary is one of "
                    f"{vocabulary.form.kind}s: set data.vocabulary.kind=bpe or unigram, or train.split_pieces=0."
                )
        self.halves = {side: _halves(vocabulary) for side, vocabulary in vocabularies.items()}

    def __call__(self, batch: Batch, epoch: int) -> Batch:
        """The batch with split pieces on both sides; an image as source stays as it is."""
        source, lengths = batch.source, (batch.labels != PAD).sum(1)  # EOS included
        if isinstance(source, Source):
            source = make_source(self._split("source", source.tokens, source.lengths, batch, epoch))
        return make_batch(source, self._split("target", batch.labels, lengths, batch, epoch), batch.indices)

    def _split(self, side: str, rows: Tensor, lengths: Tensor, batch: Batch, epoch: int) -> Sequence[Ids]:
        """The ids of the sentences in these rows, which end in EOS and padding, without special tokens."""
        halves, number = self.halves[side], {"source": -3, "target": -4}[side]
        draws = random_numbers(self.seed, epoch, batch.indices.tolist(), number, rows.shape[1]) / self.share
        sentences = []
        for ids, numbers, length in zip(rows.tolist(), draws.tolist(), lengths.tolist(), strict=True):
            pieces: list[int] = []
            for piece, draw in zip(ids[: length - 1], numbers, strict=False):
                pairs = halves[piece] if draw < 1 else ()
                pieces += pairs[int(draw * len(pairs))] if pairs else (piece,)
            sentences.append(pieces)
        return sentences


def _halves(vocabulary: Vocabulary) -> list[list[tuple[int, int]]]:
    """For each id, all pairs of ids whose pieces spell its piece."""
    pieces = [vocabulary.piece(index) for index in range(len(SPECIALS), len(vocabulary))]
    ids = {piece: index for index, piece in enumerate(pieces, start=len(SPECIALS))}
    return [[] for _ in SPECIALS] + [
        [
            (ids[piece[:cut]], ids[piece[cut:]])
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ]
        for piece in pieces
    ]
