"""Translation, captioning and language models, implemented to match their papers' equations.

The names of axes in the whole package: B batch, K beam, S source positions (or image locations), T target positions,
V vocabulary, E embedding, H hidden, A alignment, D annotation vector.
"""

from seqtool.api import Run, load, train
from seqtool.runtime.version import __version__

__all__ = ["Run", "__version__", "load", "train"]


def __dir__() -> list[str]:
    return __all__
