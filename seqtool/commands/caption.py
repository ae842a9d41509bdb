"""`seqtool caption`: images in, captions out."""

from omegaconf import DictConfig

from seqtool import distributed
from seqtool.captioner import load_captioner
from seqtool.captioning import CaptionSettings, CaptionWriter
from seqtool.config import names, typed
from seqtool.data.images import find_images
from seqtool.errors import InputError


def caption(config: DictConfig) -> None:
    """Describe images; nothing but captions on standard output."""
    settings = typed(CaptionSettings, {name: config[name] for name in ("format", "output", "plot")})
    settings.check(n_best=config.n_best)
    with distributed.group():
        images = distributed.from_first(lambda: find_images(names(config.images)))
        if not images:
            raise InputError("images=… names no image.")
        captioner = load_captioner(config)
        if distributed.is_first():
            with CaptionWriter(settings, captioner) as writer:
                writer.write_all(images)
        else:
            for _ in captioner.described(images):
                pass  # the first process writes
