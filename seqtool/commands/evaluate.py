"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seqtool.cli import config_directory
from seqtool.config import names, typed
from seqtool.errors import InputError
from seqtool.evaluation import EvalSettings, evaluate_checkpoint, evaluate_files

TASKS = ("translation", "captioning")


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table or JSON."""
    decoding = OmegaConf.load(config_directory() / "decoding.yaml")
    unread = {*decoding, "data", "checkpoint", "task"}
    own: dict[str, Any] = {str(name): value for name, value in config.items() if name not in unread}
    own["references"] = names(config.references)
    data = OmegaConf.select(config, "data")  # absent where no choice of data was made
    if _task(config) == "captioning":
        report = _captions(config, own, data)
    else:
        if own.pop("document_frequencies") is not None:
            raise InputError("document_frequencies= is for captions: say task=captioning.")
        settings = typed(EvalSettings, {**own, "tokenize": own["tokenize"] or "13a"})
        settings.check(checkpoint=config.checkpoint is not None)
        if config.checkpoint is not None:
            from seqtool.translator import load_translator  # imports torch, which scoring files does not need

            report = evaluate_checkpoint(load_translator(config), settings, data)
        else:
            report = evaluate_files(settings)
    as_json = own["format"] == "json"
    print(json.dumps(report.record(), indent=1, ensure_ascii=False) if as_json else report.text())


def _task(config: DictConfig) -> str:
    """What `task=` says, or what the checkpoint is for, or translation."""
    if config.task is not None and config.task not in TASKS:
        raise InputError(f"Unknown task '{config.task}'; choose from {', '.join(TASKS)}.")
    if config.checkpoint is None:
        return str(config.task or TASKS[0])
    from seqtool.checkpoint import find  # imports torch, which scoring files does not need

    task = "captioning" if find(names(config.checkpoint)[0]).describes_images else "translation"
    if config.task not in (None, task):
        raise InputError(f"{names(config.checkpoint)[0]} is for {task}: leave task={config.task} out.")
    return task


def _captions(config: DictConfig, own: dict[str, Any], data: DictConfig | None) -> Any:
    from seqtool.caption_evaluation import CaptionEvalSettings, evaluate_caption_files, evaluate_captioner

    useless = [name for name in own if name not in CaptionEvalSettings.__dataclass_fields__]
    defaults: Any = OmegaConf.load(config_directory() / "eval.yaml")
    for name in useless:
        if own.pop(name) != defaults[name]:
            raise InputError(f"{name}= means nothing for captions.")
    settings = typed(CaptionEvalSettings, {**own, "tokenize": own["tokenize"] or "ptb"})
    settings.check(checkpoint=config.checkpoint is not None)
    options: dict[str, Any] = {
        "tokenize": settings.tokenize,
        "document_frequencies": settings.document_frequencies and Path(settings.document_frequencies),
    }
    if config.checkpoint is None:
        return evaluate_caption_files(Path(str(settings.hypotheses)), Path(settings.references[0]), **options)
    from seqtool.captioner import load_captioner

    output = None if settings.output is None else Path(settings.output)
    return evaluate_captioner(load_captioner(config), settings.split, data, output=output, **options)
