"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool import tasks
from seqtool.data.corpora.caption_files import holds_captions
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import Evaluation, EvaluationData, EvaluationSettings, Evaluator
from seqtool.metrics.scores import TRANSLATION
from seqtool.runtime.defaults import defaults
from seqtool.runtime.files import finite_json
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, names, plain, typed
from seqtool.settings.classes import modules
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

DECLARED = declarations.of_command("eval")


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table, JSON or JSON lines."""
    with _group(config):
        task, checkpoints = _task(config)
        _check_useful(config, task)
        evaluator = _evaluator(config, task)
        decoding: dict[str, Any] = {}
        if checkpoints:
            decoding, evaluation = _of_checkpoints(config, evaluator, checkpoints)
        else:
            evaluation = evaluator.of_files()
        settings = evaluator.settings
        paths = [str(checkpoint.path) for checkpoint in checkpoints]
        if settings.report is not None and os.environ.get("RANK", "0") == "0":
            written = {"checkpoints": ", ".join(paths), "decoding": _as_arguments(decoding)} if paths else {}
            page = evaluation.report({**written, **settings.origin()})
            report.write(Path(settings.report), page, evaluation.details())
            print(f"Report: {settings.report}", file=sys.stderr)
        if settings.format == "jsonl":
            lines = (finite_json(record) for record in evaluation.by_segment())
            print(*(line.encode("utf-8", "backslashreplace").decode() for line in lines), sep="\n")  # surrogates too
        elif settings.format == "json":
            origin = {"checkpoints": paths, "decoding": decoding} if paths else {}
            print(finite_json({**origin, **evaluation.record()}, indent=1))
        else:
            unused = declarations.SEARCH if decoding.get("sample") else declarations.SAMPLING
            used = {name: value for name, value in decoding.items() if DECLARED[name].method != unused.method}
            origin_lines = f"Checkpoint: {', '.join(paths)}\nDecoding: {_as_arguments(used)}\n\n" if paths else ""
            print(origin_lines + evaluation.text())


def _as_arguments(decoding: Mapping[str, Any]) -> str:
    """Decoding settings as they are written on a command line."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in decoding.items())


def _group(config: DictConfig) -> AbstractContextManager[None]:
    """The group of processes, if a checkpoint is evaluated: only then is there work to share."""
    if config.checkpoint is None:
        return nullcontext()
    from seqtool.runtime.distributed import group  # imports torch, which scoring files does not need

    return group()


def _task(config: DictConfig) -> "tuple[str, list[Checkpoint]]":
    """The task of `task=`, or of the checkpoint, or translation; and the checkpoints, one or an ensemble, if files are
    not what is evaluated.
    """
    if config.task not in (None, *TASKS):
        raise InputError(f"Unknown task '{config.task}'; choose from {', '.join(TASKS)}.")
    if config.checkpoint is None:
        return str(config.task or TRANSLATION), []
    if not (paths := names(config.checkpoint)):
        raise InputError("checkpoint= names nothing: write checkpoint=PATH, a run or checkpoint.")
    from seqtool.training.checkpoint import find  # imports torch, which scoring files does not need

    checkpoints = [find(path, trust=modules(config.trust)) for path in paths]
    task = tasks.of_checkpoint(checkpoints[0]).name
    if config.task not in (None, task):
        raise InputError(f"{paths[0]} is for {task}: leave task={config.task} out.")
    return task, checkpoints


def _check_useful(config: DictConfig, task: str) -> None:
    """Refuse settings that only another task, or only a checkpoint, would use."""
    has_data = OmegaConf.select(config, "data") is not None
    if config.checkpoint is None:
        with_checkpoint = [name for name, setting in DECLARED.items() if setting.checkpoint]
        changed = [name for name in (*with_checkpoint, *_decoding()) if _changed(config, name)]
        if useless := ["data"] * has_data + changed:
            raise InputError(f"{', '.join(f'{name}=' for name in useless)} can only be given with checkpoint=PATH.")
    useful = _useful(tasks.evaluator(task))
    for name in (*(setting.name for setting in fields(EvaluationSettings)), *_decoding()):
        if name not in useful and _changed(config, name):
            if task != TRANSLATION:
                raise InputError(f"{name}= means nothing for {tasks.named(task).outputs}.")
            other = next(other for other in TASKS if name in _useful(tasks.evaluator(other)))
            advice = f": say task={other}." if config.checkpoint is None else "."
            raise InputError(f"{name}= is for {tasks.named(other).outputs}{advice}")
    instead = [name for name in ("testset", "sources", "text") if _changed(config, name)]
    useless = [*(["data="] if has_data else []), *(["split="] if _changed(config, "split") else [])]
    if instead and useless:
        raise InputError(f"{instead[0]}= is scored instead of a split: leave {' and '.join(useless)} out.")


def _useful(evaluator: type[Evaluator]) -> set[str]:
    """The settings that an evaluator uses."""
    places = evaluator.schema, evaluator.decoding_schema, declarations.Machine
    return {name for place in places for name in declarations.declared(place)}


def _decoding() -> list[str]:
    """The decoding settings of all tasks."""
    return [*defaults("decoding"), "hard_attention"]


def _changed(config: DictConfig, name: str) -> bool:
    """Whether a setting differs from its default in the YAML files."""
    return name in config and config[name] != defaults("eval")[name]


def _evaluator(config: DictConfig, task: str) -> Evaluator:
    """The task's evaluator with the settings, checked."""
    several = {name for name, setting in DECLARED.items() if setting.several}
    values = {setting.name: config[setting.name] for setting in fields(EvaluationSettings)}
    values |= {name: names(values[name]) for name in several & values.keys()}
    settings = typed(EvaluationSettings, values)
    evaluator: Evaluator = tasks.evaluator(task)(settings)
    evaluator.check(checkpoint=config.checkpoint is not None)
    if config.checkpoint is None and config.task is None:
        for setting in ("hypotheses", "references"):
            for file in names(config[setting]):
                if holds_captions(Path(file)):
                    raise InputError(
                        f"{setting}={file} is a file of captions: say task=captioning, or task=translation "
                        "if these are sentences to score."
                    )
    return evaluator


def _of_checkpoints(
    config: DictConfig, evaluator: Evaluator, checkpoints: "Sequence[Checkpoint]"
) -> tuple[dict[str, Any], Evaluation]:
    """The decoding settings that matter, and the evaluation of the hypotheses."""
    from seqtool.runtime.devices import keep_memory, make_default  # imports torch, which scoring files does not need
    from seqtool.runtime.distributed import is_first

    keep_memory()
    if not is_first():
        evaluator.settings.write_nothing()
    checkpoint = checkpoints[0]
    task = tasks.of_checkpoint(checkpoint)
    useful = _useful(type(evaluator))
    own = [name for name in _decoding() if name in useful]
    # only settings that were given: a captioner has its own defaults for the others
    written = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    chosen = {name: config[name] for name in own if name in written or _changed(config, name)}
    predictor = task.load(checkpoints, **chosen)
    make_default(predictor.device)
    settings = {name: value for name, value in asdict(predictor.settings).items() if name in own and value is not None}
    decoding = {name: value for name, value in settings.items() if DECLARED[name].scored}
    return decoding, evaluator.of_checkpoint(predictor, _data(config, predictor, checkpoint))


def _data(config: DictConfig, predictor: Any, checkpoint: "Checkpoint") -> EvaluationData:
    """The chosen corpus, if any; otherwise the predictor's own data are overridden by the settings given, and the
    checkpoint, whose digests identify their cache, is returned too, unless the places of the files were given.
    """
    from seqtool.training import moved_data  # imports torch

    data = OmegaConf.select(config, "data")
    if data is not None and "_target_" in data:
        return EvaluationData(data)
    overrides = {} if data is None else plain(data)
    predictor.config = {**predictor.config, "data": moved_data.data_settings(checkpoint, overrides, config.split)}
    return EvaluationData(checkpoint=None if overrides.keys() & set(moved_data.SOURCES) else checkpoint)
