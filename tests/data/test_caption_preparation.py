"""Tests of prepared captions: the cache holds the corpus, bad images harm nothing else, and it is made once."""

import copy
import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from seqtool import tasks
from seqtool.data import preparation
from seqtool.data.batches import ShuffledEpoch
from seqtool.data.cache import ByImage, Cache, is_cache
from seqtool.data.corpora.corpus import Captioned, Digest, ImageCorpus
from seqtool.data.images import image_store
from seqtool.data.images.image_store import prepare_captions
from seqtool.data.preparation import CacheSettings, ColumnsWriter, cache_settings, make_corpus, prepare_pairs
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, make_backbone
from seqtool.models.inputs import Annotations, Pixels
from seqtool.models.tokens import BOS, EOS
from seqtool.runtime.files import config_directory
from seqtool.training.losses import TrainingLoss
from seqtool.training.saving import Progress
from seqtool.training.trainer import Trainer

Config = dict[str, Any]

CPU = torch.device("cpu")
FROZEN_ENCODER = EncoderSettings(
    backbone="small", layer=None, weights=None, size=32, fit="squash", fine_tune_from=None, lr=0.001, augment=False
)
CAPTIONS = ("A red cat .", "a RED cat sits.", "A cat", "The cat, red", "A red thing sits on a mat...")
BAD_FILES = {"missing.png": None, "empty.png": b"", "text.png": b"no image"}  # their content; None: no such file


class Album(ImageCorpus):
    """A corpus of pictures of one colour; a JSON file lists them with their captions."""

    name = "album"

    def __init__(self, *, file: str) -> None:
        self.file = Path(file)

    def splits(self) -> tuple[str, ...]:
        return tuple(json.loads(self.file.read_text()))

    def images(self, split: str) -> list[Captioned]:
        images = json.loads(self.file.read_text())[split]
        return [Captioned(self.file.parent / name, name.upper(), tuple(texts)) for name, texts in images.items()]

    def fingerprint(self, digest: Digest) -> dict[str, Any]:
        return {"file": digest(self.file)}


def write_album(directory: Path, **splits: dict[str, list[str]]) -> None:
    """Write the corpus, and draw each picture that is not in BAD_FILES and does not exist yet."""
    for images in splits.values():
        for name in images:
            if name in BAD_FILES and BAD_FILES[name] is not None:
                (directory / name).write_bytes(BAD_FILES[name] or b"")
            elif name not in BAD_FILES and not (directory / name).exists():
                Image.new("RGB", (20, 30), (sum(name.encode()) * 7 % 256, len(name), 3)).save(directory / name)
    (directory / "album.json").write_text(json.dumps(splits))


TRAIN_CAPTIONS = {f"{letter}.png": list(CAPTIONS) for letter in "abcdef"}
VALID_CAPTIONS = {"v.png": ["An  odd\u2028cat .", ""], "a.png": ["Cat."]}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr("seqtool.data.corpora.corpus.Album", Album, raising=False)
    (tmp_path / "pictures").mkdir()
    write_album(tmp_path / "pictures", train=TRAIN_CAPTIONS, valid=VALID_CAPTIONS)
    defaults: Any = OmegaConf.to_container(OmegaConf.load(config_directory() / "caption_preparation.yaml"))
    corpus_settings = {
        "_target_": "seqtool.data.corpora.corpus.Album",
        "file": str(tmp_path / "pictures" / "album.json"),
    }
    return {**corpus_settings, **defaults, "cache": str(tmp_path / "cache"), "processes": 1}


def with_settings(config: Config, **settings: Any) -> Config:
    """Return the configuration with these changes, such as `vocabulary_size=3` for `vocabulary.size`."""
    result = copy.deepcopy(config)
    for name, value in settings.items():
        group, _, key = name.partition("_")
        if group in ("vocabulary", "limits"):
            assert key in result[group]
            result[group][key] = value
        else:
            result[name] = value
    return result


def prepare(config: Config, encoder: EncoderSettings = FROZEN_ENCODER) -> Cache:
    return prepare_captions(config, encoder, device=CPU)


def cache_entries(config: Config) -> list[str]:
    return sorted(path.name for path in Path(config["cache"]).iterdir() if path.name != "digests.json")


def caption_caches(config: Config) -> list[str]:
    return [name for name in cache_entries(config) if name.startswith("album")]


def test_the_defaults_cover_all_settings(config: Config) -> None:
    assert set(config) - {"_target_", "file"} == {"vocabulary", "limits", "cache", "processes", "strict", "clean"}
    assert asdict(cache_settings(config)).keys() == CacheSettings.__dataclass_fields__.keys()


def test_ids_encode_the_captions_without_final_stops(config: Config) -> None:
    cache = prepare(config)
    vocabulary, train, valid = cache.target_vocabulary, cache.split("train"), cache.split("valid")
    assert cache.name == "album" and cache.splits == ("train", "valid")
    assert cache.has_images and list(cache.vocabularies) == ["target"]
    assert vocabulary.form.lowercase and [path.name for path in cache.vocabulary_files] == ["target.vocabulary"]
    expected = ["a red cat", "a red cat sits", "a cat", "the cat, red", "a red thing sits on a mat"]
    assert [vocabulary.decode(train.target(i)) for i in range(len(train))] == 6 * expected
    assert vocabulary.decode(valid.target(0)).endswith(" cat") and valid.target(1).tolist() == []
    for split in (train, valid):
        assert split.lengths()[1].tolist() == [len(split.target(i)) for i in range(len(split))]
        sources, targets = split.lengths(np.arange(len(split)))
        assert sources.tolist() == [1] * len(split)
        assert targets.tolist() == split.lengths()[1].tolist()
        with pytest.raises(IndexError):
            split.target(len(split))


def test_captions_know_their_image(config: Config, tmp_path: Path) -> None:
    cache = prepare(config)
    train, valid = cache.split("train"), cache.split("valid")
    assert train.image_of.tolist() == [image for image in range(6) for _ in range(5)]
    assert valid.image_of.tolist() == [0, 0, 1]
    assert valid.files == [str(tmp_path / "pictures" / name) for name in ("v.png", "a.png")]
    assert valid.references() == list(VALID_CAPTIONS.values()) and train.references() == list(TRAIN_CAPTIONS.values())


def test_a_batch_has_each_caption_with_its_image(config: Config) -> None:
    cache = prepare(config)
    train = cache.split("train")
    backbone = make_backbone(FROZEN_ENCODER, pretrained=True)
    indices = [29, 0, 1, 27]
    batch = train.collate(indices)
    assert isinstance(batch.source, Annotations)
    S = backbone.locations[0] * backbone.locations[1]  # noqa: N806
    assert batch.source.values.shape == (2, S, backbone.dimension) and batch.source.values.dtype == torch.float16
    assert batch.indices.tolist() == indices and batch.tokens == sum(len(train.target(i)) + 1 for i in indices)
    for row, index in zip(batch.target.tolist(), indices, strict=True):
        assert row[: len(train.target(index)) + 2] == [BOS, *train.target(index).tolist(), EOS]
    values = batch.source.each(batch.source.values)
    assert torch.equal(values[0], values[3]) and torch.equal(values[1], values[2])
    assert not torch.equal(values[0], values[1])
    pictures = train.pictures([5, 0])
    assert torch.equal(pictures.values, values[:2])
    assert torch.equal(cache.split("valid").pictures([1]).values, values[1:2])  # a.png is in both splits
    assert len(cache.store) == 7 and train.collate([]).source.values.shape[0] == 0
    pixel_batch = prepare(config, replace(FROZEN_ENCODER, fine_tune_from=3)).split("train").collate(indices)
    assert isinstance(pixel_batch.source, Pixels) and pixel_batch.source.values.shape == (2, 3, 32, 32)
    assert torch.equal(pixel_batch.target, batch.target)


def test_batches_hold_captions_of_equal_length(config: Config) -> None:
    train = prepare(config).split("train")
    epoch = ShuffledEpoch(train, size=6, unit="sentences", seed=1, epoch=0, pool=50)
    batches = epoch.batches(0, len(epoch))
    assert len(batches) == len(epoch) > 3
    assert all(len(set(train.lengths()[1][batch])) == 1 for batch in batches)


def test_training_captions_outside_the_limits_are_dropped_and_counted(config: Config) -> None:
    cache = prepare(with_settings(config, limits_minimum=3, limits_maximum=6, vocabulary_minimum_count=1))
    train, valid = cache.split("train"), cache.split("valid")
    assert len(train) == 18 and len(valid) == 3
    assert train.image_of.tolist() == [image for image in range(6) for _ in range(3)]
    lines = [line.split() for line in cache.describe().splitlines()]
    assert lines[0][:4] == ["album,", "images", "and", "captions;"]
    assert cache.describe().splitlines()[1] == "annotation vectors 4×4×96 (small): 7 images, 0.0 MB"
    assert lines[2] == ["split", "images", "captions", "tokens/caption", "unknown", "refused", "dropped"]
    assert lines[3] == ["train", "6", "18", "3.7", "0.00%", "0", "6", "too", "long,", "6", "too", "short"]
    assert lines[4] == ["valid", "2", "3", "1.3", "50.00%", "0", "none"]
    assert [" ".join(line) for line in lines[5:]] == ["Found in valid: held_out (1 of 2)"]


def test_a_held_out_image_in_training_is_found_under_another_name(config: Config, tmp_path: Path) -> None:
    """So are a caption that an image has twice, and images with another number of captions than most."""
    pictures = tmp_path / "pictures"
    write_album(pictures, train=TRAIN_CAPTIONS, valid={"v.png": ["Odd."], "w.png": ["Cat."]})
    (pictures / "twin.png").write_bytes((pictures / "v.png").read_bytes())
    captions = ["A red cat sits", "A cat sits", "The red cat", "A cat.", "A cat."]
    train = {**TRAIN_CAPTIONS, "twin.png": captions, "g.png": ["A cat.", "A red cat."]}
    write_album(pictures, train=train, valid={"v.png": ["Odd."], "w.png": ["Cat."]})
    cache = prepare(with_settings(config, vocabulary_minimum_count=1))
    problems = {finding["kind"]: finding["problem"] for finding in cache.summary["findings"]}
    assert problems.keys() == {"held_out", "duplicates", "captions"}
    assert problems["held_out"].startswith("1 of 2 different images of valid (50.00%) also stand in training, such as ")
    assert f"{pictures / 'twin.png'} of train, “A red cat sits”" in problems["held_out"]
    assert problems["duplicates"].startswith("1 of 37 captions of train ")
    assert problems["captions"].startswith("2 of 37 captions of train ") and "g.png" in problems["captions"]
    cleaned = prepare(with_settings(config, vocabulary_minimum_count=1, clean=["held_out", "duplicates"]))
    assert cleaned.summary["splits"]["train"]["dropped"] == {"held_out": 5}
    assert cleaned.summary["splits"]["train"]["images"] == len(cleaned.split("train").files) - 1
    assert [] in cleaned.split("train").references(), "a held-out picture has no captions to train on"
    kinds = ["held_out", "duplicates", "captions"]
    usual = prepare(with_settings(config, vocabulary_minimum_count=1, clean=kinds, strict=True))
    assert usual.summary["splits"]["train"]["dropped"] == {"held_out": 5, "captions": 2}
    with pytest.raises(InputError, match=r"refuses these data: 2 of 37 captions of train .* belong to images"):
        prepare(with_settings(config, vocabulary_minimum_count=1, strict=True, cache=str(tmp_path / "other")))
    assert not list((tmp_path / "other").glob("album*"))


@pytest.mark.parametrize(("single", "found", "example"), [("abc", "5 of 8", "d.png"), ("a", "1 of 6", "a.png")])
def test_the_usual_number_of_captions_is_that_of_most_images(
    single: str, found: str, example: str, config: Config, tmp_path: Path
) -> None:
    """Not that of most captions: three images have one, and one has five. Of equally many, the larger number."""
    train = {**{f"{letter}.png": [f"A {letter}."] for letter in single}, "d.png": list(CAPTIONS)}
    write_album(tmp_path / "pictures", train=train, valid={"v.png": ["Odd."]})
    cache = prepare(with_settings(config, vocabulary_minimum_count=1))
    (problem,) = [finding["problem"] for finding in cache.summary["findings"]]
    assert problem.startswith(f"{found} captions of train ") and example in problem


def test_bad_images_are_reported_and_harm_nothing_else(config: Config, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    clean = prepare(config)
    write_album(
        pictures,
        train={"missing.png": ["One", "Two"], **TRAIN_CAPTIONS, "empty.png": ["Three"]},
        valid={"text.png": ["Four."], **VALID_CAPTIONS, "missing.png": ["Five"]},
    )
    cache = prepare(config)
    assert cache.directory != clean.directory and cache.store.directory != clean.store.directory
    for split in ("train", "valid"):
        actual_split, clean_split = cache.split(split), clean.split(split)
        batch, clean_batch = (
            actual_split.collate(range(len(actual_split))),
            clean_split.collate(range(len(clean_split))),
        )
        assert torch.equal(batch.target, clean_batch.target)
        assert torch.allclose(batch.source.values.float(), clean_batch.source.values.float(), rtol=2**-10, atol=1e-5)
        assert actual_split.references() == clean_split.references() and actual_split.files == clean_split.files
    lines = (cache.directory / "refused.txt").read_text().splitlines()
    assert lines[:3] == [
        f"train\t{pictures / 'missing.png'} does not exist.",
        f"train\t{pictures / 'empty.png'} is empty.",
        lines[2],
    ]
    assert lines[2].startswith(f"valid\t{pictures / 'text.png'} is not an image")
    assert lines[3:] == [f"valid\t{pictures / 'missing.png'} does not exist."]
    described = cache.describe().splitlines()
    assert described[3].split()[5:] == ["2", "3", "of", "refused", "images"]
    assert described[4].split()[5:] == ["2", "2", "of", "refused", "images"]
    assert described[5] == f"Refused images, each with the reason: {cache.directory / 'refused.txt'}"
    assert cache.target_vocabulary.fingerprint == clean.target_vocabulary.fingerprint
    Image.new("RGB", (9, 9)).save(pictures / "missing.png")
    assert len(prepare(config).split("train")) == 32


def test_the_reason_of_a_refusal_is_no_part_of_the_name(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache keeps its name if the sentence for a refused image is worded differently."""
    write_album(tmp_path / "pictures", train={**TRAIN_CAPTIONS, "missing.png": ["One"]}, valid=VALID_CAPTIONS)
    first = prepare(config).directory
    monkeypatch.setattr(image_store, "unreadable_reason", lambda file: f"{file} is away.")
    shutil.rmtree(first)
    again = prepare(config).directory
    assert again.name == first.name and "is away." in (again / "refused.txt").read_text()


def test_an_unusual_refused_name_takes_one_line(config: Config, tmp_path: Path) -> None:
    name = os.fsdecode(b"K\xf6ln\nx.png")
    images = {**TRAIN_CAPTIONS, name: ["A cat"]}
    (tmp_path / "pictures" / "album.json").write_text(json.dumps({"train": images}))
    lines = (prepare(config).directory / "refused.txt").read_text().splitlines()
    assert lines == [f"train\t{tmp_path / 'pictures'}/K\\udcf6ln x.png does not exist."]


def test_a_split_without_images_is_refused(config: Config, tmp_path: Path) -> None:
    write_album(tmp_path / "pictures", train=TRAIN_CAPTIONS, valid={"text.png": ["Four."], "missing.png": ["Five"]})
    with pytest.raises(InputError) as error:
        prepare(config)
    assert str(error.value).startswith(
        f"None of the 2 images of the split 'valid' can be used; {tmp_path / 'pictures' / 'text.png'} is not an image "
    )
    (tmp_path / "pictures" / "album.json").write_text(json.dumps({"train": TRAIN_CAPTIONS, "valid": {}}))
    with pytest.raises(InputError) as error:
        prepare(config)
    assert str(error.value) == "None of the 0 images of the split 'valid' can be used."
    assert caption_caches(config) == []


def test_settings_captions_and_images_decide_the_cache(config: Config, tmp_path: Path) -> None:
    first = prepare(config)
    assert first.directory.name.startswith("album-") and is_cache(first.directory)
    assert first.has_images and not image_store.is_store(first.directory)
    assert prepare(config).directory == first.directory
    assert prepare(with_settings(config, processes=2)).directory == first.directory
    all_words = prepare(with_settings(config, vocabulary_minimum_count=1))
    assert all_words.directory != first.directory and all_words.store.directory == first.store.directory
    assert prepare(with_settings(config, limits_maximum=5)).store.directory == first.store.directory
    crop = prepare(config, replace(FROZEN_ENCODER, fit="crop"))
    assert crop.directory == first.directory and crop.store.directory != first.store.directory
    write_album(tmp_path / "pictures", train=TRAIN_CAPTIONS, valid={**VALID_CAPTIONS, "b.png": ["Another word"]})
    larger = prepare(config)
    assert larger.directory not in (first.directory, all_words.directory)
    assert larger.store.directory == first.store.directory
    (tmp_path / "pictures").rename(tmp_path / "moved")
    moved = prepare(with_settings(config, file=str(tmp_path / "moved" / "album.json")))
    assert moved.split("train").files[0] == str(tmp_path / "moved" / "a.png")
    assert moved.store.directory == first.store.directory


def test_preparing_uses_the_number_of_threads(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    thread_counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    model = {"_target_": "seqtool.models.show_tell.ShowTell", "encoder": asdict(FROZEN_ENCODER)}
    settings = OmegaConf.create({"data": config, "model": model, "device": "cpu", "threads": 3})
    assert len(tasks.task_of_data(settings).prepare(settings).split("valid")) == 3 and thread_counts == [3]
    with pytest.raises(InputError, match=r"^threads must be at least 1, not 0\.$"):
        tasks.task_of_data(settings).prepare(OmegaConf.create({**settings, "threads": 0}))


def test_an_existing_cache_is_not_made_again(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = prepare(config).directory
    monkeypatch.setattr(preparation, "_fill", None)
    monkeypatch.setattr(image_store, "_fill", None)
    cache = prepare(config)
    assert cache.directory == directory
    cache_without_images = Cache(directory)
    assert cache_without_images.describe() == "\n".join(
        line for line in cache.describe().splitlines() if not line.startswith("annotation")
    )
    with pytest.raises(ValueError, match="was opened without an image store"):
        cache_without_images.split("train")


def test_a_vocabulary_can_be_reused(config: Config, tmp_path: Path) -> None:
    first = prepare(config)
    write_album(tmp_path / "pictures", train={"a.png": ["One new caption"]})
    second = prepare(with_settings(config, vocabulary_reuse=str(first.directory)))
    assert second.target_vocabulary.fingerprint == first.target_vocabulary.fingerprint
    assert second.summary["splits"]["train"]["unknown"] == 3
    with pytest.raises(InputError) as error:
        prepare(with_settings(config, vocabulary_reuse="/nowhere"))
    assert str(error.value) == "/nowhere has no vocabulary: expected a directory with target.vocabulary."
    with pytest.raises(InputError, match=r"^/nowhere has no vocabulary"):
        prepare(with_settings(config, vocabulary_reuse="/nowhere", cache=str(tmp_path / "empty")))
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_few_captions_need_no_size_of_their_vocabulary(config: Config, kind: str) -> None:
    cache = prepare(with_settings(config, vocabulary_kind=kind))
    assert 8 < len(cache.target_vocabulary) < 200 and cache.summary["splits"]["train"]["unknown"] == 0


def test_pieces_may_be_learnt_from_a_sample(config: Config) -> None:
    pieces = {"vocabulary_kind": "char", "vocabulary_size": 100}
    sampled = prepare(with_settings(config, vocabulary_sample=1, **pieces))
    assert len(sampled.target_vocabulary) < len(prepare(with_settings(config, **pieces)).target_vocabulary)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"processes": 0}, "data.processes must be at least 1, not 0."),
        (
            {"limits_minimum": 9},
            "None of the 30 captions of the split 'train' is within data.limits: 30 too short.",
        ),
        (
            {"vocabulary_minimum_count": 99},
            "No word occurs data.vocabulary.minimum_count=99 times in the training text: nothing can be learnt from "
            "it. Lower this number, or add text.",
        ),
    ],
)
def test_unusable_settings_leave_no_cache(config: Config, settings: Config, message: str) -> None:
    with pytest.raises(InputError) as error:
        prepare(with_settings(config, **settings))
    assert str(error.value).startswith(message)
    assert not Path(config["cache"]).exists() or caption_caches(config) == []


def test_text_and_images_are_not_mistaken_for_each_other(config: Config) -> None:
    common = {"longest": 25} | {key: config[key] for key in ("vocabulary", "limits", "cache", "processes")}
    toy = {"_target_": "seqtool.data.corpora.parallel.Toy", "seed": 1, "train": 9, "valid": 1, "test": 1, **common}
    with pytest.raises(InputError) as error:
        prepare(toy)
    assert str(error.value) == (
        "Toy has sentence pairs, but images with captions are needed here, such as data=scenes."
    )
    with pytest.raises(InputError) as error:
        prepare_pairs(config)
    assert str(error.value) == ("Album has images with captions, but sentence pairs are needed here, such as data=toy.")
    with pytest.raises(InputError, match=r"^The configuration names 'os\.system'"):
        make_corpus(with_settings(config, _target_="os.system"), ImageCorpus, trusted=False)


def test_an_unusable_caption_cache_is_refused(config: Config, tmp_path: Path) -> None:
    directory = prepare(config).directory
    with pytest.raises(InputError) as error:
        Cache(tmp_path)
    assert str(error.value) == f"{tmp_path} is not a cache: seqtool prepare makes them."
    with pytest.raises(InputError) as error:
        prepare(config).split("test")
    assert str(error.value) == f"{directory} has no split 'test'; it has train, valid."
    rows = directory / "train.rows.bin"
    rows.write_bytes(rows.read_bytes()[:-8])
    with pytest.raises(InputError) as error:
        prepare(config)
    assert str(error.value) == f"{rows} has 40 bytes instead of 48: remove {directory} and prepare again."


KILLED_SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[1])
import test_caption_preparation as tests
from seqtool.data.images import image_store
from seqtool.data.corpora import corpus as corpora

corpora.Album = tests.Album
write = image_store.write_lines
def die(path, lines):
    write(path, lines)
    if path.name.startswith("valid"):
        os.kill(os.getpid(), signal.SIGKILL)
image_store.write_lines = die
tests.prepare(__import__("json").loads(sys.argv[2]))
"""


def test_a_partial_cache_of_a_killed_process_is_not_used(config: Config) -> None:
    command = [sys.executable, "-c", KILLED_SCRIPT, str(Path(__file__).parent), json.dumps(config)]
    assert subprocess.run(command, check=False).returncode == -9
    entries = caption_caches(config)
    assert [name.rpartition(".")[2] for name in entries] == ["lock", "partial"]
    assert not (Path(config["cache"]) / entries[1] / "summary.json").exists()
    cache = prepare(config)
    assert len(cache.split("valid")) == 3 and caption_caches(config) == [cache.directory.name]


def test_an_interrupted_preparation_is_resumed(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Captions dropped before and after the interruption do not change which images the other captions describe."""
    config = with_settings(config, limits_minimum=3, limits_maximum=6, vocabulary_minimum_count=1)
    uninterrupted = prepare(with_settings(config, cache=str(tmp_path / "whole")))
    monkeypatch.setattr(preparation, "CHUNK", 4)
    write, chunk_sizes = ColumnsWriter.write, []

    def write_or_interrupt(self: ColumnsWriter, chunk: preparation.EncodedChunk) -> None:
        write(self, chunk)
        chunk_sizes.append(len(chunk.kept))
        if len(chunk_sizes) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ColumnsWriter, "write", write_or_interrupt)
        with pytest.raises(KeyboardInterrupt):
            prepare(config)
    caplog.set_level(logging.INFO)
    cache = prepare(config)
    assert any("Resuming after 12 captions of the split 'train'" in message for message in caplog.messages)
    assert cache.summary == uninterrupted.summary
    for name in cache.summary["files"]:
        assert (cache.directory / name).read_bytes() == (uninterrupted.directory / name).read_bytes()


def test_the_cache_is_memory_mapped(config: Config) -> None:
    split = prepare(config).split("train")
    assert isinstance(split.image_of, np.memmap) and isinstance(split.store._values, np.memmap)


@pytest.fixture
def examples(config: Any) -> ByImage:
    cache = prepare(config, replace(FROZEN_ENCODER, fine_tune_from=0))
    assert cache.split("train").has_pixels
    return ByImage(cache.split("train"))


@pytest.mark.parametrize("size, unit", [(10, "sentences"), (1, "sentences"), (60, "tokens")])
def test_an_epoch_visits_every_caption_once(examples: ByImage, size: int, unit: str) -> None:
    epoch = examples.epoch(size=size, unit=unit, pool=2, seed=1, epoch=0)
    batches = [examples.collate(images) for images in epoch.batches(0, len(epoch))]
    indices = np.concatenate([batch.indices for batch in batches])
    assert sorted(indices.tolist()) == list(range(len(examples.split)))
    for batch, images in zip(batches, epoch.batches(0, len(epoch)), strict=True):
        assert (batch.tokens, len(batch.target)) == (examples.count_labels(images), examples.count_targets(images))
        if unit == "tokens":
            assert len(images) == 1 or batch.target[:, 1:].numel() <= size
        else:
            assert len(batch.indices) == max(size, 5)
    again = ShuffledEpoch(examples, size=2, unit="sentences", pool=2, seed=1, epoch=1)
    assert np.concatenate(again.batches(0, 9)).tolist() != np.concatenate(epoch.batches(0, 9)).tolist()


def test_the_divisor_counts_captions_and_not_images(examples: ByImage) -> None:
    settings, loss = SimpleNamespace(accumulate=2, normalise="sentences"), SimpleNamespace()
    optimisation = SimpleNamespace(prepare=lambda *_: None)
    trainer: Any = SimpleNamespace(progress=Progress(), settings=settings, state=SimpleNamespace(loss=loss))
    trainer.examples, trainer.optimisation = examples, optimisation
    epoch = examples.epoch(size=4, unit="sentences", pool=9, seed=1, epoch=0)
    batches, _, _, divisor = Trainer._begin_update(trainer, epoch)
    captions = sum(len(examples.collate(images).indices) for images in batches)
    assert divisor == captions > sum(map(len, batches))


@pytest.mark.parametrize("name", ["SHOW_TELL", "SHOW_ATTEND_TELL"])
def test_one_pass_of_the_encoder_has_the_gradient_of_one_for_each_caption(examples: ByImage, name: str) -> None:
    import small_models  # not at the top: a process that is killed imports this module without it

    torch.manual_seed(0)
    encoder = EncoderSettings(**small_models.ENCODER | {"fine_tune_from": 0, "size": 32})
    size = len(examples.split._columns["target"].stream)  # more than its largest id
    kind = small_models.ShowTell if name == "SHOW_TELL" else small_models.ShowAttendTell
    model = kind(**getattr(small_models, name) | {"encoder": encoder, "target_vocabulary": size}).double().train()
    loss, batch = TrainingLoss(model, 0.1).double().train(), examples.collate([0, 3])
    assert isinstance(batch.source, Pixels) and batch.source.values.shape[0] == 2 and len(batch.target) == 10
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shared = torch.autograd.grad(loss(batch).total, parameters)
    values = batch.source.each(batch.source.values)
    alone = torch.autograd.grad(loss(replace(batch, source=Pixels(values))).total, parameters)
    for one, other in zip(shared, alone, strict=True):
        torch.testing.assert_close(one, other)
    assert any(gradient.norm() > 0 for gradient in shared[:4])


def test_only_images_whose_captions_name_no_side_may_be_mirrored(config: Config, tmp_path: Path) -> None:
    sides = {
        "a.png": ["A cat.", "To the LEFT, a cat."],
        "b.png": ["A cat.", "Leftovers, a cat."],
        "c.png": ["Right-handed."],
    }
    write_album(tmp_path / "pictures", train=sides, valid=VALID_CAPTIONS)
    config = with_settings(config, vocabulary_minimum_count=1)
    pixels = replace(FROZEN_ENCODER, fine_tune_from=0, augment=True)
    assert prepare(config, pixels).split("train").pictures([0, 1]).may_mirror is None
    train = prepare(config, replace(pixels, mirror_unless=["left", "Right"])).split("train")
    assert train.pictures([2, 1, 0]).may_mirror.tolist() == [False, True, False]
    batch = ByImage(train).collate([1, 0])  # its images are in their order in the split
    assert batch.source.may_mirror.tolist() == [False, True]
    assert batch.source.each(torch.arange(2)).tolist() == [1, 1, 0, 0]
    one = prepare(config, replace(pixels, mirror_unless="left")).split("train")
    assert one.pictures([0, 1, 2]).may_mirror.tolist() == [False, True, True]
