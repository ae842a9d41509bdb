"""Recurrent translation and captioning models, as the papers print them.

Axis alphabet of the whole package: B batch, K beam, S source positions (or image locations), T target
positions, V vocabulary, E embedding, H hidden, A alignment, D annotation vector.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqtool.captioner import Captioner
    from seqtool.translator import Translator

__version__ = "0.1.0"


def load(checkpoint: str | Sequence[str], **settings: Any) -> "Translator | Captioner":
    """Load a run or checkpoint directory: `seqtool.load("runs/toy").translate(["I have a cat."])`,
    `seqtool.load("runs/scenes").caption(["photo.jpg"])`.

    A list of paths loads an ensemble. Settings (device, threads, beam, …) are those of configs/decoding.yaml and
    configs/caption.yaml. torch is imported here, not by `import seqtool`.
    """
    from seqtool.checkpoint import find

    if find(checkpoint if isinstance(checkpoint, str) else checkpoint[0]).describes_images:
        from seqtool.captioner import Captioner

        return Captioner.load(checkpoint, **settings)
    from seqtool.translator import Translator

    return Translator.load(checkpoint, **settings)
