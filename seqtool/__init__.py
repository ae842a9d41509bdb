"""Translation, captioning and language models, implemented to match their papers' equations.

The names of axes in the whole package: B batch, K beam, S source positions (or image locations), T target positions,
V vocabulary, E embedding, H hidden, A alignment, D annotation vector.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seqtool.runtime.version import __version__

if TYPE_CHECKING:
    from seqtool.predict.captioner import Captioner
    from seqtool.predict.generator import Generator
    from seqtool.predict.translator import Translator

__all__ = ["__version__", "load"]


def __dir__() -> list[str]:
    return __all__


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
    from seqtool.errors import InputError
    from seqtool.predict.predictor import check_paths
    from seqtool.settings.classes import modules
    from seqtool.training.checkpoint import find

    single = isinstance(checkpoint, str | os.PathLike)
    paths = check_paths([checkpoint] if single else checkpoint, caller="seqtool.load takes a path or", item="path")
    if not all(paths) or not paths:
        raise InputError("seqtool.load needs a run or checkpoint, or a list of them.")
    checkpoints = [find(path, trust=modules(trust)) for path in paths]
    model: Translator | Captioner | Generator = tasks.task_of_checkpoint(checkpoints[0]).load(checkpoints, **settings)
    return model
