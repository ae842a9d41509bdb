"""`eval` of captions: coco-caption's scores for files, or for a captioner's output on a split."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.data.corpora.caption_files import Captions
from seqtool.data.corpora.coco import image_id
from seqtool.data.corpora.corpus import ImageCorpus
from seqtool.errors import InputError
from seqtool.metrics import tokenisers
from seqtool.metrics.bootstrap import FEW, few
from seqtool.metrics.captions import NAMES, TOKENIZERS, brevity, tokenized
from seqtool.metrics.java import java_scores
from seqtool.metrics.ngrams import DocumentFrequencies
from seqtool.metrics.scores import score, scorers
from seqtool.metrics.systems import System
from seqtool.predict import scored_captions
from seqtool.predict.caption_report import CaptionReport, SavedFrequencies
from seqtool.predict.evaluation import HypothesesEvaluation, have_files, titles
from seqtool.runtime import distributed
from seqtool.runtime.files import replacing, without_suffix
from seqtool.runtime.progress import progress_bar
from seqtool.settings import declarations

if TYPE_CHECKING:
    from seqtool.predict.caption_details import CaptionDetails
    from seqtool.predict.captioner import Captioner
    from seqtool.training.checkpoint import Checkpoint

OTHERS = (  # in the report
    *("brevity_penalty", "length_ratio", "signature", "signatures", "intervals", "comparison", "likelihood"),
)
LIKELIEST = 5  # tokens at each place, in a report
MOST_DRAWS = 10_000  # for each reference

log = logging.getLogger(__name__)


@dataclass
class CaptionEvaluation(declarations.EvalCaptions, HypothesesEvaluation):
    """An evaluation of captions."""

    labels = (*(score(name).label for name in NAMES), "meteor", "spice", *OTHERS)

    def rules(self, *, checkpoint: bool) -> Mapping[str, bool]:
        unknown = f"Unknown tokeniser '{self.tokenize}'; choose from {', '.join(TOKENIZERS)}."
        rules = {
            unknown: self.tokenize in (None, *TOKENIZERS),
            f"bound must be from 1 to {MOST_DRAWS:,}, not {self.bound}.": self.bound is None
            or 1 <= self.bound <= MOST_DRAWS,
            "bound= goes with checkpoint=PATH, a captioner with attention.": self.bound is None or checkpoint,
            "java=true scores all captions together: leave it out with format=jsonl.": not self.java
            or self.format != "jsonl",
        }
        if self.save_document_frequencies is not None:
            others = {self.hypotheses, self.baseline, self.document_frequencies, self.output, self.report} != {None}
            alone = len(self.references) == 1 and not (checkpoint or self.java or others)
            return {**rules, "save_document_frequencies=FILE goes with references=FILE alone.": alone}
        either = checkpoint == (self.hypotheses is None)
        alone = not (checkpoint and self.references)
        one = checkpoint or len(self.references) == 1
        return {
            **rules,
            "eval needs either checkpoint=PATH or hypotheses=FILE references=FILE.": either,
            "references=FILE goes with hypotheses=FILE: with checkpoint=PATH the split is scored.": alone,
            "Captions are scored against one file: references=FILE.": one,
            "output= means nothing with hypotheses=.": checkpoint or self.output is None,
        }

    def of_files(self) -> CaptionReport | SavedFrequencies:
        """Captions, one per image, against references, which may be of further images: these are left out. Or, instead,
        the references' document frequencies.
        """
        name, place = str(self.hypotheses), self.references[0]
        references = scored_captions.read_references(Path(place))
        if self.save_document_frequencies is not None:
            return self._save_frequencies(references, Path(self.save_document_frequencies))
        captions, baseline = scored_captions.by_reference(name, references), self._baseline(references)
        described, warnings = references.only(captions), []
        if 0 < len(described) < len(references):
            images = f"{len(described):,} of the {len(references):,} images of {place}"
            warnings.append(f"{name} has captions for {images}: only these are scored.")
            references = described
        scored_captions.check_images(captions, references, hypotheses_name=name, references_name=place)
        if empty := [image for image in references if not captions[image].strip()]:
            warnings.append(f"Empty captions of {name} are scored as such: {len(empty):,}, first that of {empty[0]}.")
        report = self._report(captions, baseline, references, self._scoring(references), warnings, name=name)
        if self.report is None:
            return report
        from seqtool.predict.caption_details import CaptionDetails

        return replace(report, shown=self._shown(CaptionDetails.of_file(name, references), references))

    def of_checkpoint(
        self, predictor: "Captioner", data: DictConfig | None, found: "Checkpoint | None" = None
    ) -> CaptionReport:
        """Captions of a split's images against all references; reports and leaves out images that cannot be read."""
        if self.bound is not None:
            predictor.check_likelihood()
        corpus = self.corpus(ImageCorpus, predictor, data)
        have_files(corpus, data)
        if self.split not in corpus.splits():
            raise InputError(f"Unknown split '{self.split}'; this corpus has {', '.join(corpus.splits())}.")
        images = {str(image.file): image for image in corpus.images(self.split)}
        references = Captions(
            {image.identifier: image.captions for image in images.values()},
            {name: image.identifier for name, image in images.items()},
        )
        baseline, scoring = self._baseline(references), self._scoring(references)
        captions, shown = {}, None
        if self.report is not None:
            from seqtool.predict.caption_details import CaptionDetails

            shown = CaptionDetails()
        asked: dict[str, Any] = {} if shown is None else {"likeliest": LIKELIEST}
        output = nullcontext() if self.output is None else replacing(Path(self.output))
        with output as out, progress_bar(total=len(images), unit="image", description="caption") as bar:
            for name, pixels, described in predictor.described(list(images), **asked):
                bar.update()
                if isinstance(described, InputError):
                    tqdm.write(f"Left out: {described}", file=sys.stderr)
                    continue
                best, identifier = described[0], images[name].identifier
                captions[identifier] = best.text
                if shown is not None:
                    shown.add(identifier, pixels, {**best.record(), **best.likeliest(), **best.weights()})
            if out is not None:
                out.write(_coco_results(captions))
        references = references.only(captions)
        scored_captions.check_references(references, name="the references")
        report = self._report(captions, baseline, references, scoring, [], name=predictor.name)
        if shown is not None:
            from seqtool.predict.sentence_details import word_counts  # imports torch

            report = replace(report, shown=self._shown(shown, references), counts=word_counts(predictor, found))
        if self.bound is None:
            return report
        files = [name for name, image in images.items() if image.identifier in references]
        with progress_bar(total=len(files), unit="image", description="bound") as bar:

            def progress(done: int) -> None:
                bar.update(min(done * distributed.size(), len(files) - bar.n))

            likelihood = predictor.likelihood(files, list(references.values()), self.bound, progress)
        return replace(report, likelihood=likelihood)

    def _tokenize(self, references: Mapping[str, Sequence[str]]) -> str:
        """The tokeniser of the settings, or else the one for these references."""
        tokenize, said = tokenisers.for_captions(chain.from_iterable(references.values()))
        if self.tokenize is None and said:
            log.info(said)
        return self.tokenize or tokenize

    def _scoring(self, references: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The tokeniser, and the document frequencies of a file, checked before anything is decoded."""
        tokenize, file = self._tokenize(references), self.document_frequencies
        frequencies = None if file is None else DocumentFrequencies.load(Path(file)).check(tokenize=tokenize)
        return {"tokenize": tokenize, "document_frequencies": frequencies}

    def _save_frequencies(self, references: Mapping[str, Sequence[str]], file: Path) -> SavedFrequencies:
        scored_captions.check_references(references, name=self.references[0])
        tokenize = self._tokenize(references)
        captions = [tokenized(image, tokenize) for image in references.values()]
        counted = DocumentFrequencies.count(captions, tokenize=tokenize, name=without_suffix(file.name))
        counted.save(file)
        return SavedFrequencies(counted, str(file))

    def _baseline(self, references: Captions[str]) -> dict[str, str] | None:
        """Another system's captions."""
        return None if self.baseline is None else scored_captions.by_reference(self.baseline, references)

    def _report(
        self,
        captions: Mapping[str, str],
        baseline: Mapping[str, str] | None,
        references: Mapping[str, Sequence[str]],
        scoring: Mapping[str, Any],
        warnings: list[str],
        *,
        name: str,
    ) -> CaptionReport:
        """The report on the images that have references here; a baseline may have described more. scoring: see
        `_scoring`; `name`: the system's, in a report to look at.
        """
        if baseline is not None:
            baseline = {image: baseline[image] for image in references if image in baseline}
            scored_captions.check_images(baseline, references, hypotheses_name=str(self.baseline))
        alternatives = list(references.values())
        names = (*NAMES, *self.scores)
        found = scorers(names, alternatives, **scoring)

        def scored(written: Mapping[str, str]) -> System:
            return System([written[image] for image in references], found, samples=self.bootstrap)

        system = scored(captions)
        java, problems = self._java(captions, references, scoring["tokenize"])
        theirs = {} if baseline is None else self._java(baseline, references, scoring["tokenize"])[0]
        warnings = [*warnings, *(warning for scorer in found for warning in scorer.warnings()), *problems]
        if self.bootstrap and baseline is not None and len(references) < FEW:
            warnings.append(few(len(references), "images"))
        for warning in warnings:
            log.warning(warning)
        return CaptionReport(
            system=system,
            baseline=None if baseline is None else scored(baseline),
            names=list(references),
            references=alternatives,
            lengths=brevity(system.statistics[0]),
            java=java,
            baseline_java=theirs,
            warnings=warnings,
            titles=titles(name, [] if self.baseline is None else [self.baseline], of_run=self.hypotheses is None),
        )

    def _java(
        self, captions: Mapping[str, str], references: Mapping[str, Sequence[str]], tokenize: str
    ) -> tuple[dict[str, float], list[str]]:
        """METEOR and SPICE, if they are asked for, and what is missing."""
        if not self.java:
            return {}, []
        return java_scores({image: captions[image] for image in references}, references, tokenize=tokenize)

    def _shown(self, system: "CaptionDetails", references: Captions[str]) -> "list[CaptionDetails]":
        """What is shown of the system and of its baseline."""
        return [system, *([] if self.baseline is None else [type(system).of_file(self.baseline, references)])]


def _coco_results(captions: Mapping[str, str]) -> str:
    ids = {image: image_id(image) for image in captions}
    if len(set(ids.values())) < len(ids):  # 000000000042.jpg and 000000000042.png
        ids = {image: image for image in captions}
    results = [{"image_id": ids[image], "caption": caption} for image, caption in captions.items()]
    return json.dumps(results, ensure_ascii=False) + "\n"
