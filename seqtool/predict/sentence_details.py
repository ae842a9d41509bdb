"""What a report of translations shows of each sentence, besides its text and scores."""

from collections.abc import Sequence

from seqtool.models.tokens import UNK
from seqtool.predict.flags import flags_of
from seqtool.predict.predictor import Predictor
from seqtool.predict.translator import Translation, Translator
from seqtool.training import moved_data
from seqtool.training.checkpoint import Checkpoint
from seqtool.view.packing import Details


class SentenceDetails:
    """Flags of each sentence and, packed, its words, their attention, and what was expected at each token."""

    def __init__(self, translator: Translator) -> None:
        self.packed = Details()
        self.flags: list[list[str]] = []
        self._source = translator.source_vocabulary

    def add(self, sources: Sequence[str], translations: Sequence[Translation]) -> None:
        known = self._source.encode_batch(sources)
        for source, one, ids in zip(sources, translations, known, strict=True):
            attention, unknown = one.shown(end=True), UNK in ids
            looked = None if attention is None else (attention[0], one.source_words)
            self.flags.append(flags_of(one.text, source=source, ended=one.ended, unknown=unknown, attention=looked))
            if attention is None:
                self.packed.add(predicted=one.predicted)
            else:
                weights, words, target = attention
                self.packed.add(source=words, target=target, weights=weights, predicted=one.predicted)


def word_counts(predictor: Predictor, found: Checkpoint | None) -> dict[str, int] | None:
    """How often each word stands in the data that the checkpoint was trained with, if their cache is still there."""
    cache = None if found is None else moved_data.trained_on(found, predictor.config["data"])
    return None if cache is None else cache.word_counts()
