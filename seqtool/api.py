"""The Python interface: `load` a trained model, `train` one, and read the results of its `Run`.

`import seqtool` imports this module, which takes 10 ms: torch, Hydra and matplotlib are imported when they are needed.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqtool.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from seqtool.predict.captioner import Captioner
    from seqtool.predict.generator import Generator
    from seqtool.predict.translator import Translator


def load(
    checkpoint: "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    *,
    trust: str | Sequence[str] = (),
    **settings: Any,
) -> "Translator | Captioner | Generator":
    """Load the model of a run or checkpoint directory.

    seqtool.load("runs/toy").translate(["I have a cat."])
    seqtool.load("runs/scenes").caption(["photo.jpg"])
    seqtool.load("runs/text").generate(["Once upon"])

    checkpoint: a path, or a list of paths, which loads an ensemble
    trust: modules of your own whose classes the checkpoint may name, such as `trust="mine"`; their code is run
    settings: device, threads, beam and so on, as in configs/decoding.yaml, configs/caption.yaml and
        configs/generate.yaml; `threads` applies only while the model computes

    torch is imported by this function, not by `import seqtool`.
    """
    from seqtool.runtime.spinning import limit_spinning

    limit_spinning()  # before torch is imported

    from seqtool import tasks
    from seqtool.predict.predictor import check_list
    from seqtool.settings.classes import modules
    from seqtool.training.checkpoint import find

    def is_path(value: Any) -> bool:
        return isinstance(value, str | os.PathLike)

    values = [checkpoint] if is_path(checkpoint) else checkpoint
    paths = check_list(values, caller="seqtool.load takes a path or", item="path", is_valid=is_path, expected="a path")
    if not all(paths) or not paths:
        raise InputError("seqtool.load needs a run or checkpoint, or a list of them.")
    checkpoints = [find(path, trust=modules(trust)) for path in paths]
    model: Translator | Captioner | Generator = tasks.task_of_checkpoint(checkpoints[0]).load(checkpoints, **settings)
    return model


class Run:
    """A run that `seqtool.train` or the command `seqtool train` made.

    path: its directory, such as runs/first. Raises InputError if it is not the directory of a run.
    """

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        from seqtool.training.runs import nearby

        self.path = Path(path).expanduser()
        if not (self.path / "config.yaml").is_file():
            raise InputError(f"{self.path} is not the directory of a run.{nearby(self.path)}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl in order, each with its `step`. Losses are in nats per token; `valid_loss`,
        `valid_bleu` and so on are the scores of validations. `pandas.DataFrame(run.metrics)` makes a table of them.
        """
        from seqtool.runtime.files import read_json_lines

        return read_json_lines(self.path / "metrics.jsonl", lambda record: "step" in record, "has no 'step'")

    def plot(self, path: str | Path | None = None, *, beside: "Sequence[Run]" = ()) -> "Figure":
        """Draw the learning curves, as in the run's learning_curves.png.

        path: the PNG, SVG or PDF file to write, if any
        beside: other runs, which are drawn in the same figure, each in its own colour

        Returns the figure. Raises NothingToDrawError if nothing is recorded.
        """
        from seqtool.view import plots

        runs = {str(run.path): run.path / "metrics.jsonl" for run in (self, *beside)}
        return plots.learning_curves(runs, path)

    def load(self, **settings: Any) -> "Translator | Captioner | Generator":
        """Load the model of the run's best checkpoint, with the arguments of `seqtool.load`."""
        return load(self.path, **settings)


def train(*settings: str, **keyword_settings: Any) -> Run:
    """Train a model, or resume its run, as the command `seqtool train` does with these settings.

    seqtool.train("experiment=quickstart", "train.steps=500", run="first")
    seqtool.train(experiment="quickstart", train={"steps": 500}, run="first")
    seqtool.train(run="first", train={"resume": True, "steps": 800})

    settings: arguments as on the command line, such as "train.steps=500" or "--config-dir=mine"
    keyword_settings: settings by name, those of a group as a dictionary; a value is text, as on the command line, a
        number, True, False, None, a path or a list of these

    The run is written into runs/ in the working directory; messages are printed to standard output and error. The
    weights and scores are the same as with the command. Raises InputError for bad input. Ctrl-C, or Interrupt in a
    notebook, ends the run after the update in progress, saves a checkpoint from which it can be resumed, and
    raises KeyboardInterrupt.
    """
    from seqtool.runtime.spinning import limit_spinning

    limit_spinning()  # before torch is imported

    from seqtool.cli import arguments, main
    from seqtool.runtime.files import config_directory
    from seqtool.settings import leaves

    arguments.load.cache_clear()  # the user's own YAML files may have changed since the last call
    command_line = [*settings, *(f"{name}={_format_value(name, value)}" for name, value in leaves(keyword_settings))]
    options, overrides, files = arguments.read(command_line, "train", config_directory())
    if options.multirun or options.cfg:
        raise InputError("seqtool.train trains one run: leave out --multirun and --cfg.")
    with _preserve_globals():
        run = main.call(main.composed(overrides, files), files, overrides)
    if run is False:
        raise KeyboardInterrupt
    return Run(run)


def _format_value(name: str, value: Any) -> str:
    """Format the value of a setting as on the command line."""
    from numbers import Real

    from seqtool.cli.arguments import quote

    if value is None:
        return "null"
    if isinstance(value, str | os.PathLike | Real):
        return str(value).lower() if isinstance(value, Real) else str(value)
    if not isinstance(value, list | tuple):
        raise InputError(f"Setting '{name}' is a {type(value).__name__}: use text, a number, a path or a list of them.")
    quoted = [quote(str(item)) if isinstance(item, str | os.PathLike) else _format_value(name, item) for item in value]
    return f"[{','.join(quoted)}]"


@contextmanager
def _preserve_globals() -> Iterator[None]:
    """Show the log within the context, as the command does. Afterwards restore the caller's logging, the state of
    Hydra, torch's random numbers and the number of CPU threads.
    """
    import logging
    import sys

    import torch
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    from seqtool.runtime.devices import set_threads

    log, handler = logging.getLogger("seqtool"), logging.StreamHandler(sys.stderr)
    level, hydra, config = log.level, GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(handler)
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        set_threads(None)
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config
        log.setLevel(level)
        log.removeHandler(handler)
