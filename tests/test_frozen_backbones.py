"""A frozen backbone: annotation vectors are stored of the very weights that the model's checkpoints have."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqtool.cli import main as cli
from seqtool.models.backbone import Small
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

DATA = ["data=scenes", "data.train=12", "data.valid=4", "data.test=4", "data.processes=1", "device=cpu"]
MODEL = ["model=show_attend_tell", "model.embedding=8", "model.hidden=16", "model.alignment=8"]
TRAIN = ["train", *DATA, *MODEL, "train.minutes=null", "train.batch_size=8", "validation.max_length=4"]
FROZEN = ["model.encoder.fine_tune_from=null", "model.encoder.augment=false"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def newest(name: str) -> Path:
    return checkpoint.newest(Path("runs") / name).path


def write_weights(path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    save_file(Small().state_dict(), path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with `runs/tuned`, whose backbone is trained, and `runs/frozen`, with that of first.safetensors."""
    directory = tmp_path_factory.mktemp("place")
    with contextlib.chdir(directory):
        assert run(*TRAIN, "run=tuned", "train.steps=2") == 0
        write_weights(Path("first.safetensors"), seed=1)
        first = "model.encoder.weights=first.safetensors"
        assert run(*TRAIN, *FROZEN, first, "run=frozen", "train.steps=4") == 0
        yield directory


def test_fine_tuned_weights_are_not_frozen_behind_other_vectors(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = newest("tuned")
    arguments = [*TRAIN, *FROZEN, f"init_from={tuned}", "run=on", "train.steps=2"]
    assert run(*arguments) == 2
    advice = f"model.encoder.weights={tuned}/model.safetensors"
    message = f"{tuned} has another backbone than model.encoder.weights=null gives, and it is frozen: set {advice}."
    assert message in capsys.readouterr().err
    assert not Path("runs/on").exists()
    assert run(*arguments, advice) == 0
    ours, theirs = (load_file(newest(name) / "model.safetensors") for name in ("on", "tuned"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if name.startswith("backbone."))


def test_the_same_backbone_is_taken_over(place: Path) -> None:
    first = "model.encoder.weights=first.safetensors"
    assert run(*TRAIN, *FROZEN, first, "init_from=runs/frozen", "run=further", "train.steps=1") == 0


def test_a_backbone_that_is_trained_may_come_from_anywhere(place: Path) -> None:
    assert run(*TRAIN, "init_from=runs/frozen", "run=thawed", "train.steps=1") == 0


def test_a_run_goes_on_with_its_own_backbone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the file of weights was replaced it says so and changes nothing; named anew, it goes on bit for bit."""
    write_weights(Path("file.safetensors"), seed=1)
    first = "model.encoder.weights=file.safetensors"
    assert run(*TRAIN, *FROZEN, first, "run=twice", "train.steps=2") == 0
    last = newest("twice")
    write_weights(Path("file.safetensors"), seed=2)
    before = {path: path.read_bytes() for path in Path("runs/twice").rglob("*") if path.is_file()}
    resume = ["train", "run=twice", "train.resume=true", "train.steps=4"]
    assert run(*resume) == 2
    advice = f"model.encoder.weights={last}/model.safetensors"
    message = f"{last} has another backbone than {first} gives, and it is frozen: set {advice}."
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("runs/twice").rglob("*") if path.is_file()} == before
    assert run(*resume, advice) == 0
    once, twice = (load_file(newest(name) / "model.safetensors") for name in ("frozen", "twice"))
    assert once.keys() == twice.keys() and all(torch.equal(once[name], twice[name]) for name in once)


def test_other_settings_of_the_encoder_stay_as_they_were(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "run=frozen", "train.resume=true", "++model.encoder.size=32") == 2
    assert (
        "Run runs/frozen was started with other settings of model.encoder.size (64, now 32): "
        in capsys.readouterr().err
    )


def test_a_random_backbone_that_is_frozen_is_warned_of(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, before the images are read; not where it has weights or is trained."""
    prepare = ["prepare", *DATA, *MODEL]
    assert run(*prepare, *FROZEN) == 0
    warning = (
        "The CNN small has random weights and stays frozen, so captions can say little about the images: "
        "set model.encoder.weights to a file, or model.encoder.fine_tune_from=0 to train it too."
    )
    assert capsys.readouterr().err.splitlines().count(warning) == 1
    assert run(*TRAIN, *FROZEN, "run=random", "train.steps=1") == 0
    assert capsys.readouterr().err.splitlines().count(warning) == 1
    for settings in ([], [*FROZEN, "model.encoder.weights=first.safetensors"]):
        assert run(*prepare, *settings) == 0
        assert "random weights" not in capsys.readouterr().err
    assert run("prepare", *DATA, *MODEL, *FROZEN, "model.encoder.backbone=torchvision/resnet18") == 0
    assert "The CNN torchvision/resnet18 has random weights and stays frozen" in (said := capsys.readouterr().err)
    assert "set model.encoder.weights to default or a file, or" in said
