"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from seqtool.cli import config_directory
from seqtool.config import names, typed
from seqtool.errors import InputError
from seqtool.evaluation import EvalSettings, evaluate_checkpoint, evaluate_files

TASKS = ("translation", "captioning")
FOR_CAPTIONS = ("hard_attention", "java", "document_frequencies", "save_document_frequencies")


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table or JSON."""
    with _group(config):
        task = _task(config)
        if config.checkpoint is None:
            _check_files_alone(config)
        report = _captions(config) if task == "captioning" else _translations(config)
        as_json = config.format == "json"
        print(json.dumps(report.record(), indent=1, ensure_ascii=False) if as_json else report.text())


def _group(config: DictConfig) -> AbstractContextManager[None]:
    """A checkpoint's test set may be shared out."""
    if config.checkpoint is None:
        return nullcontext()
    from seqtool.distributed import group  # imports torch, which scoring files does not need

    return group()


def _task(config: DictConfig) -> str:
    """What `task=` says, or what the checkpoint is for, or translation."""
    if config.task is not None and config.task not in TASKS:
        raise InputError(f"Unknown task '{config.task}'; choose from {', '.join(TASKS)}.")
    if config.checkpoint is None:
        return str(config.task or TASKS[0])
    paths = names(config.checkpoint)
    if not paths:
        raise InputError("checkpoint= names nothing: write checkpoint=PATH, a run or checkpoint.")
    from seqtool.checkpoint import find  # imports torch, which scoring files does not need

    task = "captioning" if find(paths[0]).describes_images else "translation"
    if config.task not in (None, task):
        raise InputError(f"{paths[0]} is for {task}: leave task={config.task} out.")
    return task


def _check_files_alone(config: DictConfig) -> None:
    """Refuse what only a checkpoint would use."""
    useless = [name for name in ("split", *_decoding_defaults()) if _changed(config, name)]
    if OmegaConf.select(config, "data") is not None:
        useless.insert(0, "data")
    if useless:
        raise InputError(f"{', '.join(f'{name}=' for name in useless)} can only be given with checkpoint=PATH.")


def _translations(config: DictConfig) -> Any:
    for name in FOR_CAPTIONS:
        if _changed(config, name):
            advice = ": say task=captioning." if config.checkpoint is None else "."
            raise InputError(f"{name}= is for captions{advice}")
    own = _own(config, without=FOR_CAPTIONS)
    settings = typed(EvalSettings, {**own, "tokenize": own["tokenize"] or "13a"})
    settings.check(checkpoint=config.checkpoint is not None)
    if config.checkpoint is None:
        return evaluate_files(settings)
    from seqtool.distributed import is_first
    from seqtool.translator import load_translator

    if not is_first():
        settings = replace(settings, output=None, plot=None)
    return evaluate_checkpoint(load_translator(config), settings, OmegaConf.select(config, "data"))


def _captions(config: DictConfig) -> Any:
    from seqtool import caption_evaluation as captions

    schema = captions.CaptionEvalSettings
    useless = [name for name in EvalSettings.__dataclass_fields__ if name not in schema.__dataclass_fields__]
    for name in useless:
        if _changed(config, name):
            raise InputError(f"{name}= means nothing for captions.")
    own = _own(config, without=useless)
    settings = typed(schema, {**own, "tokenize": own["tokenize"] or "ptb"})
    settings.check(checkpoint=config.checkpoint is not None)
    tokenize = settings.tokenize
    if settings.save_document_frequencies is not None:
        file = Path(settings.save_document_frequencies)
        return captions.save_document_frequencies(Path(settings.references[0]), file, tokenize=tokenize)
    scoring: dict[str, Any] = {
        "tokenize": tokenize,
        "document_frequencies": settings.document_frequencies and Path(settings.document_frequencies),
        "java": settings.java,
    }
    if config.checkpoint is None:
        hypotheses, references = str(settings.hypotheses), settings.references[0]
        return captions.evaluate_caption_files(Path(hypotheses), Path(references), **scoring)
    from seqtool.captioner import Captioner
    from seqtool.distributed import is_first

    captioner = Captioner.load(names(config.checkpoint), **_decoding_given(config))
    output = Path(settings.output) if settings.output is not None and is_first() else None
    data = OmegaConf.select(config, "data")
    return captions.evaluate_captioner(captioner, settings.split, data, output=output, **scoring)


def _own(config: DictConfig, *, without: Iterable[str]) -> dict[str, Any]:
    """The settings besides those about the checkpoint."""
    others = {"task", "checkpoint", "data", *_decoding_defaults(), *without}
    own = {str(name): value for name, value in config.items() if name not in others}
    return {**own, "references": names(config.references)}


def _decoding_given(config: DictConfig) -> dict[str, Any]:
    """The decoding settings that were given: a captioner has defaults of its own for the others."""
    written = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    return {
        name: config[name]
        for name in _decoding_defaults()
        if name in config and (name in written or _changed(config, name))
    }


def _changed(config: DictConfig, name: str) -> bool:
    """Whether a setting is another than the YAML files say."""
    return name in config and config[name] != {**_defaults("eval"), **_decoding_defaults()}[name]


def _decoding_defaults() -> dict[str, Any]:
    return {**_defaults("decoding"), "hard_attention": _defaults("eval")["hard_attention"]}


@cache
def _defaults(file: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / f"{file}.yaml"))
    return dict(found)
