"""`seqtool eval`: score a checkpoint on a test set, or hypotheses against references."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool import tasks
from seqtool.data.corpora.caption_files import holds_captions
from seqtool.errors import InputError
from seqtool.evaluation import Evaluation, EvaluationData, EvaluationSettings, Evaluator, SeedsEvaluation
from seqtool.metrics.scores import TRANSLATION
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import check_outputs, finite_json
from seqtool.runtime.task_table import TASKS
from seqtool.settings import declarations, escape, names, plain, typed
from seqtool.settings.classes import modules
from seqtool.view import report

if TYPE_CHECKING:
    from seqtool.training.checkpoint import Checkpoint

# settings that concern a single system, or whose results have no mean over seeds
ONE_SYSTEM = "checkpoint", "hypotheses", "output", "report", "plot", "alignments", "gold", "bound", "java", "likeliest"
DECLARED = declarations.command_settings("eval")


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses. Prints a table, JSON or JSON lines."""
    group: AbstractContextManager[None] = nullcontext()  # scoring files is not divided between processes
    runs = list(_runs_of_seeds(config)) if config.seeds else [("", "", config)]
    if any(run.checkpoint is not None for *_, run in runs):
        from seqtool.runtime import distributed  # imports torch, which is not needed to score files

        group = distributed.group()
    with group:
        systems: dict[str, dict[str, Evaluation]] = {}
        paths, settings_of_runs = list[str](), list[dict[str, Any]]()
        evaluators = [_evaluator(run) for *_, run in runs]  # which checks all before the first is evaluated
        if config.seeds:
            _check_different(runs, [checkpoints for _, checkpoints in evaluators])
        for (system, path, run), (evaluator, checkpoints) in zip(runs, evaluators, strict=True):
            if checkpoints:
                decoding, evaluation = _evaluate_checkpoints(run, evaluator, checkpoints)
                settings_of_runs.append(decoding)
            else:
                evaluation = evaluator.evaluate_files()
            settings = evaluator.settings
            systems.setdefault(system, {})[path] = evaluation
            paths += [str(checkpoint.path) for checkpoint in checkpoints]
        if config.seeds:
            evaluation = SeedsEvaluation(systems)
        decoding = _joined(settings_of_runs)
        unused = declarations.SEARCH if decoding.get("sample") else declarations.SAMPLING
        used = {name: value for name, value in decoding.items() if DECLARED[name].method != unused.method}
        if decoding.get("mbr") or decoding.get("hard_attention") == "sample":  # which draw, too
            used["seed"] = decoding["seed"]
        if settings.report is not None and os.environ.get("RANK", "0") == "0":
            origin = {"checkpoints": ", ".join(paths), "decoding": _as_arguments(used)} if paths else {}
            title, subtitle, sections = evaluation.page()
            facts = report.facts("Origin", {**origin, **settings.origin()})
            page = report.page(title, subtitle, [facts, *sections])
            report.write(Path(settings.report), page, evaluation.details())
            print(f"Report: {settings.report}", file=sys.stderr)
        if settings.format == "jsonl":
            lines = (finite_json(record) for record in evaluation.by_segment())
            # backslashreplace, since texts may contain unpaired surrogates
            print(*(line.encode("utf-8", "backslashreplace").decode() for line in lines), sep="\n")
        elif settings.format == "json":
            record = {"checkpoints": paths, "decoding": decoding} if paths else {}
            print(finite_json({**record, **evaluation.record()}, indent=1))
        else:
            heading = f"Checkpoint: {', '.join(paths)}\nDecoding: {_as_arguments(used)}\n\n" if paths else ""
            print(heading + evaluation.text())


def _runs_of_seeds(config: DictConfig) -> Iterator[tuple[str, str, Any]]:
    """Yield the system, the path and the configuration of each run or file of hypotheses of baseline= and seeds=."""
    if unused := [f"{name}=" for name in ONE_SYSTEM if _is_changed(config, name)]:
        raise InputError(f"{', '.join(unused)} cannot be given with seeds=: evaluate the run or file by itself.")
    if config.format == "jsonl":
        raise InputError("format=jsonl is for the lines or images of one system, not for seeds=: give format=json.")
    for system, setting in (("baseline", "baseline"), ("system", "seeds")):
        for path in names(config[setting]):
            kind = "hypotheses" if Path(path).is_file() else "checkpoint"
            yield system, path, OmegaConf.merge(config, {"seeds": None, "baseline": None, kind: escape(path)})


def _check_different(runs: Sequence[tuple[str, str, Any]], found: "Sequence[Sequence[Checkpoint]]") -> None:
    """Raise InputError if a system has a run or a file of hypotheses twice, perhaps by two of its names, or two
    checkpoints of one run.
    """
    from seqtool.training.checkpoint import run_directory  # imports torch

    seen: dict[tuple[str, Path], str] = {}
    for (system, path, _), checkpoints in zip(runs, found, strict=True):
        source = run_directory(checkpoints[0].path.resolve()) if checkpoints else Path(path).resolve()
        if first := seen.get((system, source)):
            setting = "seeds" if system == "system" else "baseline"
            again = f", again as {path}" if path != first else " twice"
            raise InputError(f"{setting}= names {first}{again}: name each run once.")
        seen[system, source] = path


def _joined(decodings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The decoding settings of several runs: for each, its value or, if they differ, a list of the runs' values."""
    values = {name: [decoding.get(name) for decoding in decodings] for name in (decodings[0] if decodings else ())}
    return {name: value[0] if all(each == value[0] for each in value) else value for name, value in values.items()}


def _as_arguments(decoding: Mapping[str, Any]) -> str:
    """Write decoding settings as on a command line."""
    texts = {name: value if isinstance(value, str) else str(value).lower() for name, value in decoding.items()}
    return " ".join(f"{name}={text}" for name, text in texts.items())


def _task_and_checkpoints(config: DictConfig) -> "tuple[str, list[Checkpoint]]":
    """The name of the task, and the checkpoints: several for an ensemble, none if files are evaluated.

    A checkpoint determines the task. For files, the setting `task` does; by default it is translation.
    """
    if config.task not in (None, *TASKS):
        raise InputError(f"Unknown task '{config.task}'; choose from {', '.join(TASKS)}.")
    if config.checkpoint is None:
        return str(config.task or TRANSLATION), []
    if not (paths := names(config.checkpoint)):
        raise InputError("checkpoint= is empty: write checkpoint=PATH, where PATH is a run or a checkpoint.")
    from seqtool.training.checkpoint import find  # imports torch, which is not needed to score files

    checkpoints = [find(path, trust=modules(config.trust)) for path in paths]
    task = tasks.task_of_checkpoint(checkpoints[0]).name
    if config.task not in (None, task):
        raise InputError(f"{paths[0]} is for {task}: leave task={config.task} out.")
    return task, checkpoints


def _check_all_used(config: DictConfig, task: str) -> None:
    """Raise InputError for settings that are only used for another task, or only with a checkpoint."""
    has_data = OmegaConf.select(config, "data") is not None
    if config.checkpoint is None:
        checkpoint_settings = [name for name, setting in DECLARED.items() if setting.checkpoint]
        changed_names = [name for name in (*checkpoint_settings, *_decoding_settings()) if _is_changed(config, name)]
        if unused := (["data"] if has_data else []) + changed_names:
            raise InputError(f"{', '.join(f'{name}=' for name in unused)} can only be given with checkpoint=PATH.")
    used_names = _used_settings(tasks.evaluator(task))
    for name in (*(setting.name for setting in fields(EvaluationSettings)), *_decoding_settings()):
        if name not in used_names and _is_changed(config, name):
            if task != TRANSLATION:
                raise InputError(f"{name}= means nothing for {tasks.task_by_name(task).outputs}.")
            other_task = next(other for other in TASKS if name in _used_settings(tasks.evaluator(other)))
            advice = f": add task={other_task}." if config.checkpoint is None else "."
            raise InputError(f"{name}= is for {tasks.task_by_name(other_task).outputs}{advice}")
    scored_files = [name for name in ("testset", "sources", "text") if _is_changed(config, name)]
    unused = [*(["data="] if has_data else []), *(["split="] if _is_changed(config, "split") else [])]
    if scored_files and unused:
        raise InputError(f"{scored_files[0]}= is scored instead of a split: leave {' and '.join(unused)} out.")


def _used_settings(evaluator: type[Evaluator]) -> set[str]:
    """The settings that an evaluator uses."""
    schemas = evaluator.schema, evaluator.decoding_schema, declarations.Machine
    return {name for schema in schemas for name in declarations.declared(schema)}


def _decoding_settings() -> list[str]:
    """The decoding settings of all tasks."""
    return [*defaults("decoding"), "hard_attention"]


def _is_changed(config: DictConfig, name: str) -> bool:
    """Whether a setting differs from its default in the YAML files."""
    return name in config and config[name] != defaults("eval")[name]


def _evaluator(config: DictConfig) -> "tuple[Evaluator, list[Checkpoint]]":
    """The task's evaluator, with checked settings, and the checkpoints that it evaluates."""
    task, checkpoints = _task_and_checkpoints(config)
    _check_all_used(config, task)
    list_settings = {name for name, setting in DECLARED.items() if setting.several}
    values = {setting.name: config[setting.name] for setting in fields(EvaluationSettings)}
    values |= {name: names(values[name]) for name in list_settings & values.keys()}
    evaluator: Evaluator = tasks.evaluator(task)(typed(EvaluationSettings, values))
    evaluator.check(checkpoint=config.checkpoint is not None)
    if config.checkpoint is None and config.task is None:
        for setting in ("hypotheses", "references"):
            for file in names(config[setting]):
                if holds_captions(Path(file)):
                    advice = "add task=captioning, or task=translation to score them as translations"
                    raise InputError(f"{setting}={file} contains captions: {advice}.")
    return evaluator, checkpoints


def _evaluate_checkpoints(
    config: DictConfig, evaluator: Evaluator, checkpoints: "Sequence[Checkpoint]"
) -> tuple[dict[str, Any], Evaluation]:
    """Evaluate the hypotheses of checkpoints. Returns the decoding settings that affect scores, and the scores."""
    # imported here because they import torch, which is not needed to score files
    from seqtool.runtime.devices import keep_memory, make_default
    from seqtool.runtime.distributed import is_first
    from seqtool.training import moved_data

    keep_memory()
    if not is_first():
        # All processes must compute what a report needs, although only the first one writes it.
        for name in evaluator.settings.outputs().keys() - {"report"}:
            setattr(evaluator.settings, name, None)
    checkpoint = checkpoints[0]
    task = tasks.task_of_checkpoint(checkpoint)
    evaluator_settings = _used_settings(type(evaluator))
    decoding_names = [name for name in _decoding_settings() if name in evaluator_settings]
    # The predictor gets only the settings that the user set: captioners have other defaults than configs/eval.yaml.
    override_keys = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    user_values = {name: config[name] for name in decoding_names if name in override_keys or _is_changed(config, name)}
    if frequencies := user_values.get("mbr_frequencies"):
        check_outputs(evaluator.settings.outputs(), [(f"mbr_frequencies={frequencies}", frequencies)])
    predictor = task.load(checkpoints, **user_values)
    make_default(predictor.device)
    settings = {name: value for name, value in asdict(predictor.settings).items() if name in decoding_names}
    decoding = {name: value for name, value in settings.items() if value is not None and DECLARED[name].scored}
    data = OmegaConf.select(config, "data")
    if data is not None and "_target_" in data:  # a corpus chosen by data=…
        return decoding, evaluator.evaluate_checkpoint(predictor, EvaluationData(data))
    # Without a chosen corpus, data.… settings override those of the predictor's own data. The checkpoint's digests
    # identify the cache of these data unless the overrides name other files or directories.
    overrides = {} if data is None else plain(data)
    predictor.config = {**predictor.config, "data": moved_data.data_settings(checkpoint, overrides, config.split)}
    cache_checkpoint = None if overrides.keys() & set(moved_data.SOURCES) else checkpoint
    return decoding, evaluator.evaluate_checkpoint(predictor, EvaluationData(checkpoint=cache_checkpoint))
