"""`seqtool eval`: a checkpoint on a test set, or files against each other."""

import json

from omegaconf import DictConfig, OmegaConf

from seqtool.cli import config_directory
from seqtool.config import names, typed
from seqtool.evaluation import EvalSettings, evaluate_checkpoint, evaluate_files


def evaluate(config: DictConfig) -> None:
    """Score a checkpoint on a data set, or files of hypotheses, and print a table or JSON."""
    decoding = OmegaConf.load(config_directory() / "decoding.yaml")
    own = {str(name): value for name, value in config.items() if name not in {*decoding, "data", "checkpoint"}}
    settings = typed(EvalSettings, {**own, "references": names(config.references)})
    settings.check(checkpoint=config.checkpoint is not None)
    if config.checkpoint is not None:
        from seqtool.translator import load_translator  # imports torch, which scoring files does not need

        data = OmegaConf.select(config, "data")  # absent where no choice of data was made
        report = evaluate_checkpoint(load_translator(config), settings, data)
    else:
        report = evaluate_files(settings)
    print(json.dumps(report.record(), indent=1, ensure_ascii=False) if settings.format == "json" else report.text())
