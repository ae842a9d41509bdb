"""Tests of captioning by train, caption, eval, inspect and the Python API, on photos made for this module."""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import Command
from safetensors.torch import load_file

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError, counted
from seqtool.predict.captioner import Captioner
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint
from seqtool.training.trainer import Trainer

Capture = pytest.CaptureFixture[str]
COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 60, 210), "yellow": (220, 210, 40)}
DATA = ["data=photos", "data.vocabulary.minimum_count=1", "data.processes=1", "device=cpu", "train.minutes=null"]
TRAIN = "data.train=data/photos/captions.jsonl"
SIZES = ["model.embedding=16", "model.hidden=32", "optim.lr=0.003", "train.batch_size=16", "validation.max_length=12"]
SOFT = ["model=show_attend_tell", "model.alignment=16", "model.dropout=0", *SIZES]
QUICK = ["optim.lr=0.006", "model.encoder.augment=false"]
HARD = [*SOFT, "model.attention=hard"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with photos of a square on the left or right, and `runs/soft` and `runs/fixed`, trained on them."""
    directory = tmp_path_factory.mktemp("captioning")
    with contextlib.chdir(directory):
        photos = directory / "data" / "photos"
        photos.mkdir(parents=True)
        rows, generator = [], np.random.default_rng(0)
        for number in range(96):
            colour = list(COLOURS)[number % 4]
            side = ("left", "right")[number // 4 % 2]
            pixels = generator.integers(90, 130, (64, 64, 3), dtype=np.uint8)
            columns = slice(4, 28) if side == "left" else slice(36, 60)
            pixels[20:44, columns] = COLOURS[colour]
            Image.fromarray(pixels).save(photos / f"{number:03d}.png")
            captions = [f"A {colour} square on the {side}.", f"a {colour} square is on the {side}"]
            rows.append({"file": f"{number:03d}.png", "captions": captions})
        (photos / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        train = ["train", *DATA, TRAIN]
        schedule = ["train.epochs=45", "train.validate_every=270", "train.best_by=cider"]
        assert run(*train, *SOFT, *QUICK, *schedule, "run=soft") == 0
        assert run(*train, "model=show_tell", *SIZES, "run=fixed", "train.epochs=1") == 0
        yield directory


def weights(run_name: str) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.newest(Path("runs") / run_name).path / "model.safetensors")


def test_checkpoints_and_training_count_the_same_parameters(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The buffers of the backbone are not counted."""
    with caplog.at_level(logging.INFO, "seqtool"):
        assert run("train", *DATA, TRAIN, "model=show_tell", *SIZES, "run=counted", "train.steps=1") == 0
    assert f"runs/counted: {checkpoint.find('runs/counted').parameters:,} parameters on cpu" in caplog.text


def test_a_captioner_learns_to_name_colours_and_sides(directory: Path, capsys: Capture) -> None:
    assert run("caption", "checkpoint=runs/soft", "images=data/photos", "device=cpu") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [Path(name).name for name, _ in lines] == [f"{number:03d}.png" for number in range(96)]
    colours, sides = list(COLOURS), ("left", "right")
    correct = [colours[i % 4] in text and sides[i // 4 % 2] in text for i, (_, text) in enumerate(lines)]
    assert sum(correct) >= 94  # of 96


@pytest.mark.parametrize("hard", [["model.soft_share=0.5"], ["model.samples=2", "model.baseline=leave_one_out"]])
def test_resuming_equals_not_stopping(directory: Path, monkeypatch: pytest.MonkeyPatch, hard: list[str]) -> None:
    """Weights are equal bit for bit, with hard attention, a baseline, and a backbone that is trained from step 5 on, on
    crops with fewer pixels than the pictures.
    """
    name, crops = f"hard-{len(hard)}", ["model.encoder.crop=0.6", "model.encoder.crop_size=48"]
    common = [*DATA, TRAIN, *HARD, *hard, *crops, "model.encoder.fine_tune_from=4", "train.epochs=null"]
    assert run("train", *common, f"run={name}", "train.steps=12") == 0
    assert run("train", *common, f"run={name}-twice", "train.steps=7") == 0
    assert run("train", f"run={name}-twice", "train.resume=true", "train.steps=12") == 0
    expected, resumed = weights(name), weights(f"{name}-twice")
    assert expected.keys() == resumed.keys() and all(torch.equal(expected[key], resumed[key]) for key in expected)
    baseline = checkpoint.newest(Path("runs") / name).training_tensors()["loss.baseline"]
    assert bool(baseline.isfinite())


def test_the_backbone_is_trained_from_the_configured_step(
    directory: Path, curves: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbones: list[dict[str, torch.Tensor]] = []
    begin_update = Trainer._begin_update

    def record_backbone(self: Trainer, *arguments: Any) -> Any:
        backbones.append({name: p.detach().clone() for name, p in self.model.named_parameters() if "backbone" in name})
        return begin_update(self, *arguments)

    monkeypatch.setattr(Trainer, "_begin_update", record_backbone)
    settings = [*DATA, TRAIN, *SOFT, "model.encoder.fine_tune_from=2", "train.epochs=null"]
    assert run("train", *settings, "run=from-two", "train.steps=4") == 0
    assert Path("runs/from-two/learning_curves.png").stat().st_size > 5000
    changed = [any(not torch.equal(before[k], after[k]) for k in before) for before, after in pairwise(backbones)]
    assert changed == [False, False, True]


def test_caption_writes_json_lines_and_coco_results(directory: Path, capsys: Capture) -> None:
    images = "images=data/photos/000.png,data/photos/001.png"
    assert run("caption", "checkpoint=runs/soft", images, "format=jsonl", "n_best=2", "device=cpu") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(record["image"]).name for record in records] == ["000.png", "001.png"]
    for record in records:
        first, second = record["captions"]
        assert first["score"] >= second["score"]
        assert len(first["attended"]) == len(first["words"]) == len(first["text"].split())
        assert all(0 <= row < 8 and 0 <= column < 8 for row, column in first["attended"])
    assert run("caption", "checkpoint=runs/soft", images, "format=coco", "output=results.json", "device=cpu") == 0
    results = json.loads(Path("results.json").read_text())
    assert [result["image_id"] for result in results] == ["000.png", "001.png"]
    with_repeated_image = [f"{images},data/photos/000.png", "format=coco", "output=again.json", "device=cpu"]
    assert run("caption", "checkpoint=runs/soft", *with_repeated_image) == 0
    assert json.loads(Path("again.json").read_text()) == results
    assert results[0]["caption"] == records[0]["captions"][0]["text"]


def test_attended_locations_are_those_that_were_drawn(directory: Path, capsys: Capture) -> None:
    """With hard_attention=sample, these differ from the locations with the largest weights."""
    images = [f"data/photos/{number:03d}.png" for number in range(20)]
    settings = ["format=jsonl", "hard_attention=sample", "device=cpu"]
    assert run("caption", "checkpoint=runs/soft", f"images={','.join(images)}", *settings) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    attended = [record["captions"][0]["attended"] for record in records]
    captioner = Captioner.load("runs/soft", hard_attention="sample", device="cpu")
    captions = [best for best, *_ in captioner.describe(images)]
    assert attended == [[list(divmod(location, 8)) for location in best.chosen or []] for best in captions]
    largest = [best.attention.argmax(-1).tolist() for best in captions if best.attention is not None]
    assert largest != [best.chosen for best in captions]


def test_minimum_bayes_risk_needs_independent_samples(directory: Path, capsys: Capture) -> None:
    settings = ["checkpoint=runs/soft", "images=data/photos/000.png", "device=cpu", "hard_attention=sample"]
    assert run("caption", *settings, "mbr=cider_d") == 2
    assert "with hard_attention=sample all samples of an image look at the same places" in capsys.readouterr().err


def test_captions_that_do_not_end_are_marked(directory: Path, capsys: Capture) -> None:
    """Captions without an end have a fourth column in n-best lists, and `ended` is false in JSON."""
    settings = ["checkpoint=runs/soft", "images=data/photos/000.png,data/photos/001.png", "device=cpu", "n_best=5"]
    settings += ["min_length=3", "max_length=3"]
    assert run("caption", *settings) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert run("caption", *settings, "format=jsonl") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    captions = [caption for record in records for caption in record["captions"]]
    assert [row[3:] for row in rows] == [[] if caption["ended"] else ["not ended"] for caption in captions]
    assert [caption["ended"] for caption in captions] == [len(caption["words"]) < 3 for caption in captions]
    assert not all(caption["ended"] for caption in captions)
    hard = ["hard_attention=sample", "likeliest=2", "format=jsonl"]  # must also accept captions without an end
    assert run("caption", *settings, *hard) == 0


@pytest.mark.parametrize("output", ["photo.png", "link.png", "list.txt"])
def test_caption_does_not_overwrite_its_input(directory: Path, capsys: Capture, output: str) -> None:
    content = Path("data/photos/000.png").read_bytes()
    Path("photo.png").write_bytes(content)
    Path("list.txt").write_text("photo.png\n")
    if not Path("link.png").is_symlink():
        Path("link.png").symlink_to("photo.png")
    assert run("caption", "checkpoint=runs/soft", "images=list.txt", f"output={output}", "device=cpu") == 2
    input_name = "list.txt" if output == "list.txt" else "photo.png"
    message = f"output={output} is the same file as {input_name}, which is read: name another file to write to."
    assert message in capsys.readouterr().err
    assert Path("photo.png").read_bytes() == content and Path("list.txt").read_text() == "photo.png\n"


@pytest.mark.parametrize(
    ("form", "signal_number"), [("jsonl", signal.SIGINT), ("text", signal.SIGTERM), ("coco", signal.SIGINT)]
)
def test_finished_captions_are_kept_after_a_signal(
    directory: Path, tmp_path: Path, form: str, signal_number: int
) -> None:
    """Finished lines are kept in a .partial file; a partial JSON list is removed. The output is unchanged."""
    (tmp_path / "out").write_text("before")
    settings = [f"images={','.join(['data/photos'] * 5)}", f"output={tmp_path / 'out'}", f"format={form}"]
    arguments = ["caption", "checkpoint=runs/soft", *settings, f"plot={tmp_path / 'p'}", "threads=1"]
    with Command(arguments, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        deadline = time.monotonic() + 30
        while not (tmp_path / "p/caption-0001-000.png").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal_number)
        assert process.wait(60) == 128 + signal_number
        error = process.stderr.read()
    assert (tmp_path / "out").read_text() == "before"
    partial = tmp_path / "out.partial"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "p"} | (set() if form == "coco" else {partial.name})
    if form != "coco":
        count = partial.read_text().count("\n")
        assert 0 < count < 480
        assert f"{partial} has what is finished, {counted(count, 'image')}; {tmp_path / 'out'} is unchanged." in error


def test_bad_images_are_reported_and_left_out(directory: Path, capsys: Capture) -> None:
    Path("bad.jpg").write_bytes(b"\xff\xd8 not a picture")
    names = "images=data/photos/003.png,bad.jpg,data/photos/004.png"
    assert run("caption", "checkpoint=runs/soft", names, "device=cpu") == 0
    captured = capsys.readouterr()
    assert [line.split("\t")[0][-7:] for line in captured.out.splitlines()] == ["003.png", "004.png"]
    assert "Left out: bad.jpg" in captured.err and "Left out 1 of 3 images." in captured.err
    assert run("caption", "checkpoint=runs/soft", "images=bad.jpg", "device=cpu") == 2
    assert "None of the images can be read." in capsys.readouterr().err


@pytest.mark.parametrize("choice", ["expected", "argmax", "sample"])
def test_caption_plots_pictures_of_attention(directory: Path, choice: str) -> None:
    settings = [f"plot=pictures-{choice}", f"hard_attention={choice}", "device=cpu"]
    assert run("caption", "checkpoint=runs/soft", "images=data/photos/000.png", *settings) == 0
    with Image.open(f"pictures-{choice}/caption-0001-000.png") as picture:
        assert picture.width > 800 and picture.getextrema()[0][0] < 60 < 250 <= picture.getextrema()[0][1]


def test_the_batch_size_changes_no_caption(directory: Path) -> None:
    """Random samples of words and of hard attention do not change either."""
    images = [f"data/photos/{number:03d}.png" for number in range(20)]
    for settings in ({}, {"hard_attention": "sample"}, {"sample": True}):
        in_large_batch = Captioner.load("runs/soft", device="cpu", batch_size=20, **settings).caption(images)
        in_small_batches = Captioner.load("runs/soft", device="cpu", batch_size=3, **settings).caption(images)
        assert in_large_batch == in_small_batches


def test_a_bad_image_changes_no_other_caption(directory: Path, capsys: Capture) -> None:
    """Random samples do not change either: they depend on the index of an image in the list."""
    captions = []
    for first in ("nowhere.png", "data/photos/009.png"):
        images = f"images={first},data/photos/010.png,data/photos/011.png"
        assert run("caption", "checkpoint=runs/soft", images, "sample=true", "temperature=3", "device=cpu") == 0
        captions.append(capsys.readouterr().out.splitlines()[-2:])
    assert captions[0] == captions[1]
    captioner = Captioner.load("runs/soft", device="cpu", sample=True, temperature=3)
    assert captioner.caption(["data/photos/010.png"]) == captioner.caption(["data/photos/010.png"])


@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16", "RGBA", "CMYK", "LA"])
def test_pillow_images_of_every_mode_are_captioned(directory: Path, mode: str) -> None:
    image = Image.new(mode, (70, 40))
    (caption,) = Captioner.load("runs/soft", device="cpu").caption([image])
    assert isinstance(caption, str)


def test_a_pillow_image_is_turned_upright_like_its_file(directory: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180°: left and right change places
    Image.open("data/photos/000.png").convert("RGB").save("turned.jpg", exif=exif, quality=95)
    captioner = Captioner.load("runs/soft", device="cpu")
    assert captioner.caption([Image.open("turned.jpg")]) == captioner.caption(["turned.jpg"])
    assert "right" in captioner.caption(["turned.jpg"])[0]


def test_unusual_file_names_are_written_as_utf8(directory: Path, capsys: Capture) -> None:
    """A name in another encoding, and one with a tab, are written on one line of UTF-8."""
    Path("odd").mkdir()
    for name in (b"odd/\xff.png", b"odd/a\tb.png"):
        Path(os.fsdecode(name)).write_bytes(Path("data/photos/000.png").read_bytes())
    for form in ("text", "jsonl", "coco"):
        assert run("caption", "checkpoint=runs/soft", "images=odd", f"format={form}", "device=cpu", "plot=odd-p") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[:2]] == ["odd/a b.png", "odd/\\udcff.png"]


def test_a_checkpoint_without_its_baseline_is_not_resumed(directory: Path, capsys: Capture) -> None:
    original = checkpoint.newest(Path("runs/fixed"))
    tensors = {name: tensor for name, tensor in original.training_tensors().items() if name != "loss.baseline"}
    shutil.copytree("runs/fixed", "runs/old")
    for path in Path("runs/old/checkpoints").iterdir():
        shutil.rmtree(path)
    checkpoint.save(
        Path("runs/old/checkpoints") / original.path.name,
        model=load_file(original.path / "model.safetensors"),
        training=tensors,
        record={name: getattr(original, name) for name in ("task", "config", "progress", "versions", "data")},
        vocabularies=list(original.path.glob("*.vocabulary")),
    )
    assert run("train", "run=old", "train.resume=true", "train.epochs=2") == 2
    assert "is damaged: its training state does not fit the run." in capsys.readouterr().err


def test_the_python_interface_captions_images(directory: Path) -> None:
    captioner = seqtool.load("runs/soft", device="cpu")
    assert isinstance(captioner, Captioner)
    image = Image.open("data/photos/005.png")
    assert captioner.caption([image]) == captioner.caption(["data/photos/005.png"])
    with pytest.raises(InputError, match="holds a captioner, but score takes translation and language models"):
        captioner.forced(None, ["a red picture"])
    with pytest.raises(InputError, match=r"write \[image\] for a single one"):
        captioner.caption(image)
    expected = {"a green square on the right", "a green square is on the right"}  # as in the training captions
    for precision in ("fp32", "bf16"):
        n_best = seqtool.load("runs/soft", device="cpu", precision=precision, n_best=2)
        assert isinstance(n_best, Captioner)
        assert {caption.text for caption in n_best.describe([image])[0]} == expected
    (best,) = captioner.describe([image])[0]
    assert best.attention is not None and best.attention.shape == (len(best.words), 64)
    assert best.attention.sum(-1) == pytest.approx(np.ones(len(best.words)), abs=1e-5)


def test_ensembles_describe_images_or_are_refused(directory: Path) -> None:
    """Models with and without attention can be combined; models of different image sizes are refused."""
    images = [f"data/photos/{number:03d}.png" for number in range(9)]
    single, twice, mixed = (
        Captioner.load([f"runs/{name}" for name in names], device="cpu").describe(images)
        for names in (["soft"], ["soft", "soft"], ["fixed", "soft"])
    )
    assert [n_best[0].text for n_best in twice] == [n_best[0].text for n_best in single]
    assert all(best.attention is not None and best.words for (best,) in mixed)
    arguments = [*DATA, TRAIN, *SOFT, "model.encoder.size=32", "run=other", "train.steps=1", "train.epochs=null"]
    assert run("train", *arguments) == 0
    refused = {
        ("soft", "other"): "read images of different sizes: an ensemble needs one size.",
        ("soft", "fixed"): "hard_attention=argmax needs one model, with attention that can choose locations.",
        ("fixed",): "hard_attention=argmax needs one model, with attention that can choose locations.",
    }
    for names, message in refused.items():
        with pytest.raises(InputError, match=re.escape(message)):
            Captioner.load([f"runs/{name}" for name in names], device="cpu", hard_attention="argmax")


def test_eval_scores_a_checkpoint(directory: Path, capsys: Capture) -> None:
    settings = ["split=test", "format=json", "device=cpu", "output=written.json"]
    assert run("eval", "checkpoint=runs/soft", *settings) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu1"] > 0.9 and scores["bleu4"] > 0.8
    image_ids = [result["image_id"] for result in json.loads(Path("written.json").read_text())]
    assert 5 < len(image_ids) == len(set(image_ids)) < 20  # a tenth of the photos, chosen by their names
    for choice, has_seed in (("argmax", False), ("sample", True)):  # which draws
        assert run("eval", "checkpoint=runs/soft", "device=cpu", "bootstrap=0", f"hard_attention={choice}") == 0
        heading = capsys.readouterr().out.splitlines()[1]
        assert heading.startswith("Decoding: ") and ("seed=1" in heading) == has_seed
    assert run("eval", "checkpoint=runs/soft", "split=test", "sources=a.txt", "device=cpu") == 2
    assert "sources= means nothing for captions." in capsys.readouterr().err


def test_eval_reports_the_likelihood_of_references(directory: Path, capsys: Capture) -> None:
    """Hard attention has a lower bound and an estimate above it; soft attention has log p. Repeated calls agree."""
    train_hard = ["train", *DATA, TRAIN, *HARD, "model.soft_share=0.5", "run=draws", "train.epochs=2"]
    assert run(*train_hard) == 0
    settings = ["split=train", "bound=4", "bootstrap=2", "beam=1", "device=cpu", "format=json"]

    def likelihood(name: str) -> Any:
        capsys.readouterr()
        assert run("eval", f"checkpoint=runs/{name}", *settings) == 0
        return json.loads(capsys.readouterr().out)["likelihood"]

    hard, soft = likelihood("draws"), likelihood("soft")
    assert hard["samples"] == 4 and hard["captions"] == soft["captions"] == 152
    assert hard["bound"] < hard["estimate"] < soft["log_p"] < 0
    assert likelihood("draws") == hard
    assert run("eval", "checkpoint=runs/draws", *settings[:-1]) == 0
    assert f"lower bound L_s         {hard['bound']:.3f} [" in capsys.readouterr().out
    assert run("eval", "checkpoint=runs/draws", *settings[:-1], "bootstrap=0") == 0
    assert f"lower bound L_s         {hard['bound']:.3f}, " in capsys.readouterr().out
    assert run("eval", "checkpoint=runs/draws", *settings[:-1], "format=jsonl") == 0
    images = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    bounds = [bound for image in images for bound in image["likelihood"]["bound"]]
    assert len(bounds) == 152 and sum(bounds) / 152 == pytest.approx(hard["bound"])
    assert all(len(image["likelihood"]["estimate"]) == len(image["references"]) for image in images)


def test_inspect_names_the_model_scores_and_data(directory: Path, capsys: Capture) -> None:
    assert run("inspect", "runs/soft") == 0
    text = capsys.readouterr().out
    assert "ShowAttendTell" in text and "CIDEr-D" in text and "Photos" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caption", "checkpoint=runs/soft", "images=nowhere.jpg"], "nowhere.jpg"),
        (["caption", "checkpoint=runs/fixed", "images=data/photos", "plot=p"], "plot=… needs a model with attention"),
        (["caption", "checkpoint=runs/soft", "images=data/photos", "format=xml"], "Unknown format 'xml'; choose from"),
        (
            ["caption", "checkpoint=runs/soft", "images=data/photos", "hard_attention=most"],
            "Unknown hard_attention 'most'; choose from expected, argmax, sample.",
        ),
        (["caption", "checkpoint=runs/soft", "images=data/photos", "precision=fp16"], "precision=fp16 needs a GPU"),
        (["translate", "checkpoint=runs/soft", "input=x"], "holds a captioner: use seqtool caption."),
        (["caption", "checkpoint=[]", "images=data/photos"], "checkpoint=… names no run or checkpoint."),
        (["caption", "checkpoint=runs/soft", "images=[]"], "images=… names no images: name images, or dir"),
        (
            ["caption", "checkpoint=runs/fixed", "images=data/photos", "coverage_penalty=1"],
            "needs a model with attention",
        ),
        (
            ["caption", "checkpoint=runs/soft", "images=data/photos", "top_p=0.5"],
            "top_p= can only be given with sample=true",
        ),
        (
            ["caption", "checkpoint=runs/soft", "images=data/photos", "format=coco", "n_best=2"],
            "format=coco allows one caption per image: leave n_best out, or choose format=jsonl.",
        ),
        (
            ["caption", "checkpoint=runs/soft", "images=data/photos/000.png,other/000.png", "format=coco"],
            "data/photos/000.png and other/000.png would both have the image id 000.png: caption them in separate",
        ),
        (
            ["train", *DATA, TRAIN, *SOFT, "data.vocabulary.joint=true"],
            "Setting 'data.vocabulary.joint' of train exists only with data=multi30k, parallel or toy.",
        ),
        (["train", *DATA, TRAIN, *SOFT, "run=soft"], "Run 'soft' already exists in runs/soft: choose another name"),
        (["train", *DATA, TRAIN, *SOFT, "model.reward=-1"], "model.reward must be at least 0, not -1.0."),
        (
            ["train", *DATA, TRAIN, *SOFT, "model.encoder.fine_tune_from=null"],
            "model.encoder.augment=true needs an encoder that is fine-tuned: set model.encoder.fine_tune_from to a "
            "step, or augment to false.",
        ),
        (
            ["train", "data=photos", "data.train=c.jsonl"],
            "model=bahdanau translates sentences, but data=photos holds images with captions: ",
        ),
        (
            ["train", "data=toy", "model=show_tell"],
            "model=show_tell describes images, but data=toy holds sentence pairs: choose another model, such as "
            "model=bahdanau, or other data, such as data=scenes.",
        ),
        (
            ["train", "train.best_by=cider"],
            "train.best_by=cider is not a score of translation; choose from bleu, ",
        ),
    ],
)
def test_bad_arguments_are_refused(directory: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    assert run(*arguments, "device=cpu") == 2
    assert message in capsys.readouterr().err


def test_a_single_path_instead_of_a_list_is_refused(directory: Path) -> None:
    with pytest.raises(InputError, match=r"caption takes a list of images: write \[image\] for a single one"):
        Captioner.load("runs/soft", device="cpu").caption("data/photos/000.png")
