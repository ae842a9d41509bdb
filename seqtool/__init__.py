"""Translation, captioning and language models, as the papers print them.

Axis alphabet of the whole package: B batch, K beam, S source positions (or image locations), T target
positions, V vocabulary, E embedding, H hidden, A alignment, D annotation vector.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seqtool.runtime.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from seqtool.predict.captioner import Captioner
    from seqtool.predict.generator import Generator
    from seqtool.predict.translator import Translator


def load(
    checkpoint: "str | Path | Sequence[str | Path]", *, trust: str | Sequence[str] = (), **settings: Any
) -> "Translator | Captioner | Generator":
    """Load a run or checkpoint directory: `seqtool.load("runs/toy").translate(["I have a cat."])`,
    `seqtool.load("runs/scenes").caption(["photo.jpg"])`, `seqtool.load("runs/text").generate(["Once upon"])`.

    A list of paths loads an ensemble. Settings (device, threads, beam, …) are those of configs/decoding.yaml,
    configs/caption.yaml and configs/generate.yaml. trust: modules of your own whose classes the checkpoint may name, as
    `trust="mine"`; this runs their code. torch is imported here, not by `import seqtool`.
    """
    from seqtool import tasks
    from seqtool.errors import InputError
    from seqtool.runtime.classes import modules
    from seqtool.training.checkpoint import find

    if not checkpoint:
        raise InputError("seqtool.load needs a run or checkpoint, or a list of them.")
    paths = [checkpoint] if isinstance(checkpoint, str | os.PathLike) else checkpoint
    found = find(paths[0], trust=modules(trust))
    model: Translator | Captioner | Generator = tasks.of_checkpoint(found).load(paths, trust=found.trust, **settings)
    return model
