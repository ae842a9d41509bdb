"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import json

from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.evaluation import evaluate_checkpoint, evaluate_files


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table or JSON."""
    if config.format not in ("table", "json"):
        raise InputError(f"Unknown format '{config.format}'; choose from table, json.")
    if config.task != "translation":
        raise InputError(f"Unknown task '{config.task}'; choose from translation.")
    if (config.checkpoint is None) == (config.hypotheses is None):
        raise InputError("eval needs either checkpoint=PATH or hypotheses=FILE references=FILE[,FILE…].")
    if config.checkpoint is not None:
        from seqtool.translator import load_translator  # imports torch, which scoring files does not need

        report = evaluate_checkpoint(load_translator(config), config)
    else:
        report = evaluate_files(config)
    print(json.dumps(report.record(), indent=1, ensure_ascii=False) if config.format == "json" else report.text())
