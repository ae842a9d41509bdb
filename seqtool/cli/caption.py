"""`seqtool caption`: describe images."""

import sys
from dataclasses import dataclass

from omegaconf import DictConfig
from tqdm import tqdm

from seqtool.data.images.finding import coco_id, find_images
from seqtool.errors import InputError
from seqtool.predict.captioner import Captioner
from seqtool.predict.writing import CaptionWriter, OutputSettings
from seqtool.runtime import distributed
from seqtool.runtime.files import check_outputs, one_line
from seqtool.settings import declarations, names


@dataclass
class CaptionSettings(declarations.Caption, OutputSettings):
    """The settings of configs/caption.yaml for finding images and for the output."""

    def find(self) -> list[str]:
        """The paths of the images. Raises InputError if there are none, or if the output would overwrite one."""
        paths = names(self.images)
        images = find_images(paths, recursive=self.recursive)
        check_outputs({"output": self.output}, ((path, path) for path in (*paths, *images)))
        if not images:
            raise InputError("images=… names no images: name images, or directories that contain some.")
        return images


def caption(config: DictConfig) -> None:
    """Describe images. Only captions are written to standard output.

    Images that cannot be read are reported and left out. Raises InputError if none can be read.
    """
    settings = CaptionSettings.of(config, Captioner)
    with distributed.group():
        images = distributed.from_first(settings.find)
        captioner = Captioner.from_config(config)
        with CaptionWriter(settings, captioner).opened() as writer:
            if settings.format == "coco":  # a file in this format has one caption for each image and each id
                images = list(dict.fromkeys(images))
                name_by_id: dict[int | str, str] = {}
                for name in images:
                    if (first := name_by_id.setdefault(coco_id(name), name)) != name:
                        advice = "caption them in separate commands, or choose format=jsonl"
                        raise InputError(f"{first} and {name} would both have the image id {coco_id(name)}: {advice}.")
            with writer.progress("caption", lambda: len(images)) as bar:
                for name, _, captions in captioner.caption_each(images, likeliest=settings.likeliest):
                    if isinstance(captions, InputError):
                        tqdm.write(f"Left out: {captions}", file=sys.stderr)
                    else:
                        writer.write_image(one_line(name), captions)
                    bar.update()
            if not writer.count:
                raise InputError("None of the images can be read.")
            if writer.count < len(images):
                print(f"Left out {len(images) - writer.count:,} of {len(images):,} images.", file=sys.stderr)
