"""The interface of the tasks' evaluators, which do the work of `eval`, and what several of them need."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from omegaconf import DictConfig

from seqtool.data.configuration import make_corpus
from seqtool.data.corpora.corpus import Corpus
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import Evaluation
from seqtool.evaluation.settings import EvaluationSettings
from seqtool.metrics.scores import metric, score
from seqtool.runtime.files import check_file
from seqtool.runtime.outputs import check_outputs
from seqtool.view import html

if TYPE_CHECKING:
    from seqtool.predict.predictor import Predictor
    from seqtool.training.checkpoint import Checkpoint

C = TypeVar("C", bound=Corpus)

log = logging.getLogger(__name__)


@dataclass
class Evaluator(ABC):
    """Evaluates one task's models, or files.

    labels: the names in its records, which scores of the user's own cannot have
    """

    settings: EvaluationSettings

    labels: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def problems(self, *, checkpoint: bool) -> Iterator[str]:
        """What is wrong with the task's settings. checkpoint: whether one is evaluated, and not files."""

    def of_files(self) -> Evaluation:
        """The evaluation of files, if `problems` allows for it."""
        raise NotImplementedError

    @abstractmethod
    def of_checkpoint(
        self, predictor: Any, data: DictConfig | None, checkpoint: "Checkpoint | None" = None
    ) -> Evaluation:
        """The evaluation of a model on a test set.

        predictor: the task's, with the model
        data: settings of the user's own data; None is the data that the predictor's `config` describes
        checkpoint: identifies the cache of these data, where the test set may be if its files are gone
        """

    def tokeniser(self, choose: Callable[[], tuple[str, str]]) -> str:
        """The tokeniser of the settings, or else the one that `choose` returns with a sentence to say, maybe empty."""
        if self.settings.tokenize is not None:
            return self.settings.tokenize
        tokenize, reason = choose()
        if reason:
            log.info(reason)
        return tokenize

    def check(self, *, checkpoint: bool) -> None:
        """Raise InputError for impossible settings, all in one where that can be, before any work is done."""
        settings, labels = self.settings, {*self.labels}
        for name in dict.fromkeys(settings.scores):
            metric(name)
            label = score(name).label
            if label in labels:
                raise InputError(f"scores={name} would be '{label}' in the report, which has one: rename the class.")
            labels.add(label)
        if problems := [*settings.problems(), *self.problems(checkpoint=checkpoint)]:
            raise InputError(" ".join(problems))
        inputs = [(f"{setting}={file}", file) for setting, files in settings.inputs().items() for file in files]
        for _, file in inputs:
            check_file(Path(file))
        check_outputs(settings.outputs(), inputs)
        if settings.report is not None:
            html.check_name(settings.report)


def corpus_of(kind: type[C], predictor: "Predictor", data: DictConfig | None) -> C:
    """The corpus that the user's own `data` describe, or else that of the predictor's checkpoint."""
    if data is None:
        return make_corpus(predictor.config.get("data", {}), kind, trusted=predictor.trust)
    return make_corpus(data, kind, trusted=True)


def have_files(corpus: Corpus, data: DictConfig | None) -> None:
    """Check that the corpus's files exist; fetch them only for the user's own `data`, never as a checkpoint says."""
    from seqtool.runtime.distributed import first_here  # imports torch, which scoring files does without

    if data is None:
        corpus.check()
    else:
        first_here(corpus.fetch)


def word_counts(predictor: "Predictor", checkpoint: "Checkpoint | None") -> Mapping[str, int] | None:
    """How often each word occurs in the data that the checkpoint was trained with, if their cache is still there."""
    from seqtool.training import moved_data  # imports torch, which scoring files does without

    cache = None if checkpoint is None else moved_data.trained_on(checkpoint, predictor.config["data"])
    return None if cache is None else cache.word_counts()
