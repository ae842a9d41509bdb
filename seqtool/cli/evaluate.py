"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import json
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
from seqtool.predict.caption_evaluation import CaptionEvaluation
from seqtool.predict.evaluation import Evaluation, Report
from seqtool.predict.text_evaluation import TextEvaluation
from seqtool.predict.translation_evaluation import TranslationEvaluation
from seqtool.runtime.classes import modules
from seqtool.runtime.defaults import defaults
from seqtool.settings import declarations, names, plain, typed
from seqtool.view import html

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

TASKS: dict[str, type[Evaluation]] = {
    "translation": TranslationEvaluation,
    "captioning": CaptionEvaluation,
    "language_modelling": TextEvaluation,
}
TITLES = {"translation": "translations", "captioning": "captions", "language_modelling": "language models"}
DECODING = {  # the settings of configs/decoding.yaml that matter for a task
    "translation": (declarations.Decode, declarations.Machine),
    "captioning": (declarations.DecodeCaptions, declarations.Machine),
    "language_modelling": (declarations.Read, declarations.Machine),
}


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table, JSON or JSON lines."""
    with _group(config):
        task, found = _task(config)
        _check_given(config, task)
        evaluation = _evaluation(config, task)
        made, report = ({}, evaluation.of_files()) if found is None else _of_checkpoint(config, task, evaluation, found)
        if evaluation.report is not None:
            _write_page(Path(evaluation.report), report, {**made, "files": _files(evaluation)})
        if evaluation.format == "jsonl":
            lines = (_json(one) for one in report.segments())
            print(*(line.encode("utf-8", "backslashreplace").decode() for line in lines), sep="\n")  # surrogates too
        elif evaluation.format == "json":
            print(_json({**made, **report.record()}, indent=1))
        else:
            print("\n\n".join([*([_made_text(**made)] if made else []), report.text()]))


def _files(evaluation: Evaluation) -> dict[str, str]:
    """The files and the test set that the settings name, by setting."""
    read = [name for name, setting in declarations.declared(type(evaluation)).items() if setting.reads]
    return {name: ", ".join(files) for name in read if (files := names(getattr(evaluation, name)))}


def _write_page(file: Path, report: Report, made: Mapping[str, Any]) -> None:
    if os.environ.get("RANK", "0") == "0":
        html.write(file, report.page(made), report.details())
        print(f"Report: {file}", file=sys.stderr)


def _json(record: Mapping[str, Any], indent: int | None = None) -> str:
    """As JSON, which has no NaN or infinity, such as a score of the user's own may be: null stands for them."""
    finite = json.loads(json.dumps(record), parse_constant=lambda _: None)
    return json.dumps(finite, indent=indent, ensure_ascii=False)


def _group(config: DictConfig) -> AbstractContextManager[None]:
    """The group of processes, if a checkpoint is evaluated: only then is there work to share."""
    if config.checkpoint is None:
        return nullcontext()
    from seqtool.runtime.distributed import group  # imports torch, which scoring files does not need

    return group()


def _task(config: DictConfig) -> tuple[str, "Checkpoint | None"]:
    """The task of `task=`, or of the checkpoint, or translation; and the first checkpoint, if one is named."""
    if config.task is not None and config.task not in TASKS:
        raise InputError(f"Unknown task '{config.task}'; choose from {', '.join(TASKS)}.")
    if config.checkpoint is None:
        return str(config.task or "translation"), None
    paths = names(config.checkpoint)
    if not paths:
        raise InputError("checkpoint= names nothing: write checkpoint=PATH, a run or checkpoint.")
    from seqtool.training.checkpoint import find  # imports torch, which scoring files does not need

    found = find(paths[0], trust=modules(config.trust))
    task = tasks.of_checkpoint(found).name
    if config.task not in (None, task):
        raise InputError(f"{paths[0]} is for {task}: leave task={config.task} out.")
    return task, found


def _evaluation(config: DictConfig, task: str) -> Evaluation:
    """The evaluation that the settings ask for, checked."""
    kind = TASKS[task]
    own = {field.name for field in fields(kind)}
    values = {name: config[name] for name in own}
    lists = [name for name, setting in declarations.declared(kind).items() if setting.several]
    values |= {name: names(config[name]) for name in lists}
    evaluation = typed(kind, values)
    evaluation.check(checkpoint=config.checkpoint is not None)
    if config.checkpoint is None and config.task is None:
        for setting in ("hypotheses", "references"):
            for file in names(config[setting]):
                if holds_captions(Path(file)):
                    raise InputError(
                        f"{setting}={file} is a file of captions: say task=captioning, or task=translation "
                        "if these are sentences to score."
                    )
    return evaluation


def _check_given(config: DictConfig, task: str) -> None:
    """Refuse settings that only another task, or only a checkpoint, would use."""
    if config.checkpoint is None:
        useless = [name for name in ("split", "trust", *_decoding(*TASKS)) if _changed(config, name)]
        if OmegaConf.select(config, "data") is not None:
            useless.insert(0, "data")
        if useless:
            raise InputError(f"{', '.join(f'{name}=' for name in useless)} can only be given with checkpoint=PATH.")
    own = {field.name for field in fields(TASKS[task])} | set(_decoding(task))
    for kind in TASKS:
        for name in (*(field.name for field in fields(TASKS[kind])), *_decoding(kind)):
            if name not in own and _changed(config, name):
                advice = f": say task={kind}." if config.checkpoint is None else "."
                is_for = f"is for {TITLES[kind]}{advice}"
                raise InputError(f"{name}= {is_for if task == 'translation' else f'means nothing for {TITLES[task]}.'}")
    given = [name for name in ("testset", "sources", "text") if _changed(config, name)]
    useless = ["data="] if OmegaConf.select(config, "data") is not None else []
    useless += ["split="] if _changed(config, "split") else []
    if given and useless:
        raise InputError(f"{given[0]}= is scored instead of a split: leave {' and '.join(useless)} out.")


def _of_checkpoint(
    config: DictConfig, task: str, evaluation: Evaluation, found: "Checkpoint"
) -> tuple[dict[str, Any], Report]:
    """The origin of the hypotheses (checkpoints and decoding settings), and the report on them."""
    from seqtool.runtime.devices import keep_memory, make_default  # imports torch, which scoring files does not need
    from seqtool.runtime.distributed import is_first

    keep_memory()
    if not is_first():
        evaluation.write_nothing()
    # only settings that were given: a captioner has its own defaults for the others
    written = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    given = {name: config[name] for name in _decoding(task) if name in written or _changed(config, name)}
    if found.trust:
        given["trust"] = found.trust
    predictor = tasks.of_checkpoint(found).load(names(config.checkpoint), **given)
    make_default(predictor.device)
    used = set(_decoding(task)) - {"n_best", "batch_size"}
    settings = asdict(predictor.settings)
    decoding = {name: value for name, value in settings.items() if name in used and value is not None}
    made = {"checkpoints": [str(path) for path in predictor.checkpoints], "decoding": decoding}
    return made, evaluation.of_checkpoint(predictor, *_data(config, predictor, found))


def _made_text(checkpoints: Sequence[str], decoding: Mapping[str, Any]) -> str:
    """The origin of the hypotheses as text: the settings that matter, as written on a command line."""
    declared, unused = declarations.of_command("eval"), "search" if decoding.get("sample") else "sampling"
    used = {name: value for name, value in decoding.items() if declared[name].method != unused}
    settings = [f"{name}={str(value).lower()}" for name, value in used.items()]
    return f"Checkpoint: {', '.join(checkpoints)}\nDecoding: {' '.join(settings)}"


def _data(config: DictConfig, system: Any, found: "Checkpoint") -> tuple[DictConfig | None, "Checkpoint | None"]:
    """The chosen corpus, if any; otherwise `system`'s own data are overridden by the settings given, and the
    checkpoint, whose digests identify their cache, is returned too, unless the places of the files were given.
    """
    from seqtool.training import moved_data  # imports torch

    data = OmegaConf.select(config, "data")
    if data is not None and "_target_" in data:
        return data, None
    given = {} if data is None else plain(data)
    system.config = {**system.config, "data": moved_data.data_settings(found, given, config.split)}
    return None, None if given.keys() & set(moved_data.SOURCES) else found


def _decoding(*tasks: str) -> list[str]:
    """The names of the decoding settings that these tasks have."""
    return list(
        dict.fromkeys(name for task in tasks for schema in DECODING[task] for name in declarations.declared(schema))
    )


def _changed(config: DictConfig, name: str) -> bool:
    """Whether a setting differs from its default in the YAML files."""
    return name in config and config[name] != defaults("eval")[name]
