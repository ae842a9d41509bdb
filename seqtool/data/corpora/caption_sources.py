"""Published data sets of captioned images, in their original form."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from seqtool.data.corpora.caption_files import Captions, Entry, make_captioned, read_captions, read_list
from seqtool.data.corpora.corpus import SPLITS, Captioned, Digest, ImageCorpus
from seqtool.errors import InputError, place

KARPATHY_SPLITS = {"train": "train", "restval": "train", "val": "valid", "test": "test"}  # Karpathy's names to ours
FLICKR8K_LISTS = {"train": "train", "valid": "dev", "test": "test"}  # our names of splits to Flickr8k's
COCO_YEARS = (2014, 2017)


class CaptionFiles(ImageCorpus):
    """A corpus of annotation files and a directory of images."""

    _directory: Path  # the directory of the images
    files: dict[str, Path]  # the annotation files by their role, such as "captions" or a split
    _folders: tuple[tuple[str, ...], ...] = ()  # those that must be there, each as a tuple of its possible names
    _advice: Mapping[str, str]  # the advice if an annotation file is missing, by its role

    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if split in self.files)

    def check(self) -> None:
        """Raise InputError if the directory, an annotation file or a folder is missing."""
        if not self._directory.is_dir():
            raise InputError(f"{self._directory} is not a directory: set data.directory to where the images are.")
        for role, path in self.files.items():
            if not path.is_file():
                raise InputError(f"{path} does not exist: {self._advice[role]}")
        for names in self._folders:
            self._folder(*names)

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {role: digest(path) for role, path in self.files.items()}

    def _folder(self, *names: str) -> Path:
        """The first of these folders that exists in the directory. Raises InputError if none exists."""
        for name in names:
            if (self._directory / name).is_dir():
                return self._directory / name
        raise InputError(f"{place(self._directory)} has no folder {' or '.join(names)}: put the images there.")


class _Flickr(CaptionFiles):
    """A corpus with one folder of images, one file of captions, and other files that define the splits."""

    def images(self, split: str) -> list[Captioned]:
        directory, names, path = self._folder(*self._folders[0]), self._names(split), self.files["captions"]
        for name, location in names.items():
            if name not in self._captions:
                raise InputError(f"{location} names {name}, which has no caption in {path}.")
        return make_captioned(directory, {name: self._captions[name] for name in names})

    @abstractmethod
    def _names(self, split: str) -> dict[str, str]:
        """The names of the split's images, each with the location (file and possibly line) that lists it."""

    @cached_property
    def _captions(self) -> Captions[Entry]:
        return read_captions(self.files["captions"])


@final
class Flickr8k(_Flickr):
    """Flickr8k (Hodosh et al. 2013) with its official splits. `test` exists only if Flickr_8k.testImages.txt exists."""

    name = "flickr8k"
    _folders = (("Images", "Flicker8k_Dataset", "Flickr8k_Dataset"),)

    def __init__(self, *, directory: str) -> None:
        self._directory = Path(directory)
        tokens = self._directory / "Flickr8k.token.txt"
        kaggle = self._directory / "captions.txt"  # the form in which Kaggle publishes the captions
        self.files = {"captions": kaggle if kaggle.exists() and not tokens.exists() else tokens}
        self.files |= {split: self._directory / f"Flickr_8k.{stem}Images.txt" for split, stem in FLICKR8K_LISTS.items()}
        if not self.files["test"].exists():
            del self.files["test"]
        advice = "it is in Flickr8k_text.zip; set data.directory to where its files are."
        self._advice = dict.fromkeys(self.files, advice)

    def _names(self, split: str) -> dict[str, str]:
        return read_list(self.files[split])


@final
class Karpathy(CaptionFiles):
    """Captions and splits of Karpathy and Li (2015): dataset_flickr8k.json, dataset_flickr30k.json, dataset_coco.json.

    The file of an image is directory/FILEPATH/FILENAME (Flickr8k and Flickr30k have no FILEPATH). `restval` belongs to
    `train`. The identifier of an image of COCO is COCO's id.
    """

    name = "karpathy"

    def __init__(self, *, directory: str, annotations: str) -> None:
        self._directory = Path(directory)
        self._annotations = Path(annotations)
        self.files = {"annotations": self._annotations}
        advice = "set data.annotations to a JSON file of Karpathy's splits (caption_datasets.zip)."
        self._advice = {"annotations": advice}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._images)

    def images(self, split: str) -> list[Captioned]:
        return self._images[split]

    @cached_property
    def _images(self) -> dict[str, list[Captioned]]:
        splits: dict[str, dict[str, Sequence[Entry]]] = {split: {} for split in SPLITS}
        for image, entries in read_captions(self._annotations).items():
            if not entries:
                raise InputError(f"{self._annotations} has no caption of image {image}.")
            first, last = entries[0], entries[-1]
            if first.split not in KARPATHY_SPLITS:
                problem = f"has the split '{first.split}'" if first.split else "has no split"
                raise InputError(f"{first.location} {problem}: it must be one of {', '.join(KARPATHY_SPLITS)}.")
            if last.location != first.location:
                raise InputError(f"{last.location} is a second entry of image {image}: remove one.")
            splits[KARPATHY_SPLITS[first.split]][image] = entries
        if not splits["train"]:
            raise InputError(f"{self._annotations} has no image in the split 'train'.")
        return {split: make_captioned(self._directory, images) for split, images in splits.items() if images}


@final
class Flickr30k(_Flickr):
    """Flickr30k (Young et al. 2014) in the splits of Karpathy and Li (`split_file`): it is published without any."""

    name = "flickr30k"
    _folders = (("flickr30k_images", "flickr30k-images"),)

    def __init__(self, *, directory: str, split_file: str) -> None:
        self._directory = Path(directory)
        csv, tokens = (self._directory / name for name in ("results.csv", "results_20130124.token"))
        captions = csv if csv.exists() and not tokens.exists() else tokens
        self.files = {"captions": captions, "splits": Path(split_file)}
        self._karpathy = Karpathy(directory=directory, annotations=split_file)
        self._advice = {
            "captions": "it or results.csv has Flickr30k's captions; set data.directory to where it is.",
            "splits": "set data.split_file to dataset_flickr30k.json of Karpathy's splits (caption_datasets.zip).",
        }

    def splits(self) -> tuple[str, ...]:
        return self._karpathy.splits()

    def _names(self, split: str) -> dict[str, str]:
        return {image.identifier: str(self.files["splits"]) for image in self._karpathy.images(split)}


@final
class Coco(CaptionFiles):
    """COCO captions (Chen et al. 2015) with the splits train and val; captions of test images are not published."""

    name = "coco"

    def __init__(self, *, directory: str, year: int) -> None:
        if year not in COCO_YEARS:
            raise InputError(f"data.year is {year}; choose from {', '.join(map(str, COCO_YEARS))}.")
        self._directory = Path(directory)
        self._stems = {"train": f"train{year}", "valid": f"val{year}"}
        folder = self._directory / "annotations"
        self.files = {split: folder / f"captions_{stem}.json" for split, stem in self._stems.items()}
        self._folders = tuple((stem,) for stem in self._stems.values())
        archive = f"annotations_trainval{year}.zip of cocodataset.org"
        self._advice = dict.fromkeys(self._stems, f"it is in {archive}; set data.directory to where annotations/ is.")

    def images(self, split: str) -> list[Captioned]:
        directory, file = self._folder(self._stems[split]), self.files[split]
        entries = read_captions(file)
        for image, captions in entries.items():
            if captions and captions[0].image == image:
                raise InputError(
                    f"{captions[0].location} is a caption of image {image}, which is not among the images."
                )
        if without_captions := [image for image, captions in entries.items() if not captions]:
            raise InputError(f"{file} has no caption of image {without_captions[0]}.")
        return make_captioned(directory, entries)
