"""What a report of captions shows of each picture: the pixels that the model saw, its words, and where each looked."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seqtool.data.corpora.caption_files import Captions
from seqtool.data.images.image_decoding import fit, read_image
from seqtool.errors import InputError
from seqtool.predict.flags import flags_of
from seqtool.predict.scored_captions import records
from seqtool.view.packing import Details, rounded_weights

PICTURES = 200  # in a report
CONSIDERED = 5000  # pictures from which they are chosen, those of the first images
SIDE = 224  # pixels of a picture that is read from a file
END = "<end>"
SMALL = 128  # up to this side a picture is kept as it is; a larger one as JPEG
QUALITY = 80

Caption = dict[str, Any]  # text, words, and with attention the grid and the weights


class CaptionDetails:
    """By image, pictures as addresses that hold their data, and captions; of every image flags and, packed, what was
    expected at each token, if it is known.
    """

    def __init__(self) -> None:
        self.pictures: dict[str, str] = {}
        self.captions: dict[str, Caption] = {}
        self.flags: list[list[str]] = []
        self.packed: Details | None = None

    @classmethod
    def of_file(cls, file: str, references: Captions[str]) -> "CaptionDetails":
        """The captions of a file, and the pictures if their files are still there; words and attention are what
        `caption format=jsonl` wrote of them.
        """
        details = cls()
        for image, record in list(records(file, references).items())[:CONSIDERED]:
            details.captions[image] = caption(record)
            if (found := picture(record["file"])) is not None:
                details.pictures[image] = found
        return details

    def add(self, image: str, seen: NDArray[np.uint8], record: Mapping[str, Any]) -> None:
        """An image as the model saw it, and its caption, as `caption format=jsonl weights=true likeliest=5` has it."""
        self.flags.append(flags_of(str(record["text"]), ended=bool(record["ended"])))
        self.packed = self.packed or Details()
        self.packed.add(predicted=record.get("predicted"))
        if len(self.pictures) < CONSIDERED:
            self.pictures[image], self.captions[image] = address(seen), caption(record)


def caption(record: Mapping[str, Any]) -> Caption:
    """A caption from its record; what is damaged or missing in it is not shown."""
    text, words = str(record.get("text", "")), record.get("words")
    found: Caption = {"text": text, "words": list(map(str, words)) if isinstance(words, list) else []}
    found["words"] = found["words"] or text.split()
    grid, rows, looked = record.get("grid"), record.get("attention"), record.get("attended")
    try:
        weights = np.asarray(rows, float)
        height, width = (int(side) for side in grid or ())
        chosen = [int(row) * width + int(column) for row, column in looked or ()] if record.get("hard") else None
    except (TypeError, ValueError, OverflowError):
        return found
    if weights.ndim != 2 or weights.shape[1] != height * width:
        return found
    if len(weights) == len(found["words"]) + 1:
        found["words"].append(END)
    if len(weights) != len(found["words"]) or not np.isfinite(weights).all():
        return found
    found |= {"grid": [height, width], "weights": rounded_weights(weights)}
    if chosen is not None:
        found["chosen"] = chosen
    return found


def address(pixels: NDArray[np.uint8]) -> str:
    """An image, size×size×3, as a data: address."""
    buffer, image = io.BytesIO(), Image.fromarray(pixels)
    small = max(image.size) <= SMALL
    image.save(buffer, "PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": QUALITY}))
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture(file: str) -> str | None:
    """The picture in a file, squeezed into a square as `caption` does by default; None if it cannot be read."""
    if not Path(file).is_file():
        return None
    try:
        return address(fit(read_image(file), size=SIDE, mode="squash"))
    except InputError:
        return None


def chosen(scores: Sequence[float | None], count: int) -> dict[str, list[int]]:
    """Which of `count` images are shown, in several orders: the best and the worst twelve by score, twelve at random,
    and all that are in the report.
    """
    ranked = sorted(range(count), key=lambda i: (-(scores[i] or 0.0), i))
    drawn = np.random.default_rng(0).permutation(count).tolist()
    best, worst = ranked[:12], ranked[::-1][:12]
    shown = list(dict.fromkeys([*best, *worst, *drawn]))[:PICTURES]
    orders = {"best twelve": best, "worst twelve": worst, "random twelve": drawn[:12], "all": sorted(shown)}
    return {name: [i for i in order if i in set(shown)] for name, order in orders.items()}
