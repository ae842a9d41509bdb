"""`seqtool caption`: images in, captions out."""

from omegaconf import DictConfig

from seqtool.captioner import load_captioner
from seqtool.captioning import CaptionSettings, CaptionWriter
from seqtool.config import names, typed
from seqtool.data.images import find_images


def caption(config: DictConfig) -> None:
    """Describe images; nothing but captions on standard output."""
    settings = typed(CaptionSettings, {name: config[name] for name in ("format", "output", "plot")})
    settings.check()
    images = find_images(names(config.images))
    with CaptionWriter(settings, load_captioner(config)) as writer:
        writer.write_all(images)
