"""What a report shows of each picture: the pixels that the model saw, its words, and where each looked."""

import base64
import io
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seqtool.data.images.image_decoding import fit, read_image
from seqtool.errors import InputError
from seqtool.evaluation.evaluation import Output, SystemsEvaluation, flags_of
from seqtool.models.tokens import END
from seqtool.view.report import Details, Section, rounded_weights

SHOWN = 200  # pictures in a report
CONSIDERED = 5000  # pictures from which they are chosen, those of the first images
IN_ORDER = 12  # of the best, the worst, and those at random
SIDE = 224  # pixels of a picture that is read from a file
SMALL = 128  # up to this side a picture is kept as it is; a larger one as JPEG
QUALITY = 80

Caption = dict[str, Any]  # text, words, and with attention the grid and the packed weights


@dataclass
class CaptionOutput(Output):
    """What a system wrote about images, and what a report shows of these: pictures, as addresses that hold their data,
    and captions, each with its words and attention.
    """

    pictures: dict[str, str] = field(default_factory=dict)
    captions: dict[str, Caption] = field(default_factory=dict)

    def add_records(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Captions of a file, and the pictures if their files are still there; words and attention are what
        `caption format=jsonl` wrote of them.
        """
        for image, record in [*records.items()][:CONSIDERED]:
            self.captions[image] = _caption(record)
            if Path(record["file"]).is_file():
                with suppress(InputError):  # squeezed into a square, as `caption` does by default
                    self.pictures[image] = address(fit(read_image(record["file"]), size=SIDE, mode="squash"))

    def add(self, image: str, seen: NDArray[np.uint8], record: Mapping[str, Any]) -> None:
        """An image as the model saw it, and its caption, as `caption format=jsonl weights=true likeliest=5` has it."""
        self.flags.append(flags_of(str(record["text"]), ended=bool(record["ended"])))
        self.details = self.details or Details()
        self.details.add(predicted=record.get("predicted"))
        if len(self.pictures) < CONSIDERED:
            self.pictures[image], self.captions[image] = address(seen), _caption(record)


def pictures(evaluation: SystemsEvaluation, outputs: Sequence[CaptionOutput]) -> Section:
    """Pictures with each system's caption; images of which there is no picture are left out."""
    addresses = ChainMap(*(output.pictures for output in outputs))
    labels, values = evaluation.scores_by_segment
    column = next((j for j, name in enumerate(evaluation.system.values) if name == "cider_d"), 0)
    segments = [(i, segment) for i, segment in enumerate(evaluation.segments) if segment.name in addresses]
    orders = _chosen([values[0][column][i] for i, _ in segments])
    cards = []
    for i, segment in (segments[place] for place in orders["all"]):
        image, captions = str(segment.name), []
        for output in outputs:
            text = output.hypotheses[image]
            captions.append(output.captions.get(image) or {"text": text, "words": text.split()})
        cards.append(
            {
                "name": image,
                "picture": addresses[image],
                "captions": captions,
                "references": list(segment.references),
                "values": [[of_score[i] for of_score in of_system] for of_system in values],
            }
        )
    numbers, by = {place: card for card, place in enumerate(orders["all"])}, labels[column]["label"]
    count = f"{len(cards):,} of {len(evaluation.segments):,} images"
    return {
        "kind": "pictures",
        "title": "Pictures",
        "note": f"{count}: the best and the worst by {by}, and others at random.",
        "systems": list(evaluation.systems),
        "pictures": cards,
        "orders": {name: [numbers[place] for place in order] for name, order in orders.items()},
        "scores": labels,
    }


def address(pixels: NDArray[np.uint8]) -> str:
    """An image, size×size×3, as a data: address."""
    buffer, image = io.BytesIO(), Image.fromarray(pixels)
    small = max(image.size) <= SMALL
    image.save(buffer, "PNG" if small else "JPEG", **({"optimize": True} if small else {"quality": QUALITY}))
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _caption(record: Mapping[str, Any]) -> Caption:
    """A caption from its record; what is damaged or missing in it is not shown."""
    text, words = str(record.get("text", "")), record.get("words")
    words = (list(map(str, words)) if isinstance(words, list) else []) or text.split()
    caption: Caption = {"text": text, "words": words}
    grid, rows, attended = record.get("grid"), record.get("attention"), record.get("attended")
    try:
        weights = np.asarray(rows, float)
        height, width = (int(side) for side in grid or ())
        chosen = [int(row) * width + int(column) for row, column in attended or ()] if record.get("hard") else None
    except (TypeError, ValueError, OverflowError):
        return caption
    if weights.ndim != 2 or weights.shape[1] != height * width:
        return caption
    if len(weights) == len(words) + 1:
        words.append(END)
    if len(weights) != len(words) or not np.isfinite(weights).all():
        return caption
    caption |= {"grid": [height, width], "weights": rounded_weights(weights)}
    if chosen is not None:
        caption["chosen"] = chosen
    return caption


def _chosen(scores: Sequence[float | None]) -> dict[str, list[int]]:
    """Which of the images with these scores are shown, in several orders: the best and the worst twelve, twelve at
    random, and all that are in the report.
    """
    ranked = sorted(range(len(scores)), key=lambda i: (-(scores[i] or 0.0), i))
    drawn = np.random.default_rng(0).permutation(len(scores)).tolist()
    best, worst = ranked[:IN_ORDER], ranked[::-1][:IN_ORDER]
    shown = list(dict.fromkeys([*best, *worst, *drawn]))[:SHOWN]
    orders = {"best twelve": best, "worst twelve": worst, "random twelve": drawn[:IN_ORDER], "all": sorted(shown)}
    return {name: [i for i in order if i in set(shown)] for name, order in orders.items()}
