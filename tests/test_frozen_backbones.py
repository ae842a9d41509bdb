"""Tests of frozen backbones: cached annotation vectors belong to the weights in the model's checkpoints."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import small_vision_transformer

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


def newest_checkpoint(run_name: str) -> Path:
    return checkpoint.newest(Path("runs") / run_name).path


def write_weights(path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    save_file(Small().state_dict(), path)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with `runs/tuned`, with a trained backbone, and `runs/frozen`, with that of first.safetensors."""
    directory = tmp_path_factory.mktemp("backbones")
    with contextlib.chdir(directory):
        assert run(*TRAIN, "run=tuned", "train.steps=2") == 0
        write_weights(Path("first.safetensors"), seed=1)
        first = "model.encoder.weights=first.safetensors"
        assert run(*TRAIN, *FROZEN, first, "run=frozen", "train.steps=4") == 0
        yield directory


def test_a_fine_tuned_backbone_is_frozen_only_with_its_weights(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = newest_checkpoint("tuned")
    arguments = [*TRAIN, *FROZEN, f"init_from={tuned}", "run=refrozen", "train.steps=2"]
    assert run(*arguments) == 2
    advice = f"model.encoder.weights={tuned}/model.safetensors"
    message = f"{tuned} has another backbone than model.encoder.weights=null gives, and it is frozen: set {advice}."
    assert message in capsys.readouterr().err
    assert not Path("runs/refrozen").exists()
    assert run(*arguments, advice) == 0
    weights, expected = (load_file(newest_checkpoint(name) / "model.safetensors") for name in ("refrozen", "tuned"))
    assert all(torch.equal(weights[name], expected[name]) for name in expected if name.startswith("backbone."))


def test_a_run_may_start_from_the_same_frozen_backbone(directory: Path) -> None:
    first = "model.encoder.weights=first.safetensors"
    assert run(*TRAIN, *FROZEN, first, "init_from=runs/frozen", "run=further", "train.steps=1") == 0


def test_a_trained_backbone_may_start_from_any_weights(directory: Path) -> None:
    assert run(*TRAIN, "init_from=runs/frozen", "run=thawed", "train.steps=1") == 0


def test_only_the_modules_that_are_not_frozen_change(directory: Path) -> None:
    """The others change from `fine_tune_from` on, also in a run that is resumed."""
    freeze = [
        "init_from=runs/tuned",
        "run=partly",
        "model.encoder.freeze=layers.0,layers.3",
        "optim=adamw",
        "optim.weight_decay=0.1",
    ]
    later = [*freeze, "model.encoder.fine_tune_from=1"]
    for steps, resume in ((1, []), (3, ["train.resume=true"])):
        assert run(*TRAIN, *later, f"train.steps={steps}", *resume) == 0
        weights, before = (load_file(newest_checkpoint(name) / "model.safetensors") for name in ("partly", "tuned"))
        backbone = {name.removeprefix("backbone.network.") for name in weights if name.startswith("backbone.network.")}
        changed = {n for n in backbone if not torch.equal(*(w[f"backbone.network.{n}"] for w in (weights, before)))}
        trained = {name for name in backbone if not name.startswith(("layers.0.", "layers.3."))}
        assert trained and changed == (set() if steps == 1 else trained)


def test_a_run_is_resumed_only_with_its_backbone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the file of weights was replaced, resuming is refused; with the checkpoint's weights, it is exact."""
    write_weights(Path("file.safetensors"), seed=1)
    first = "model.encoder.weights=file.safetensors"
    assert run(*TRAIN, *FROZEN, first, "run=twice", "train.steps=2") == 0
    last = newest_checkpoint("twice")
    write_weights(Path("file.safetensors"), seed=2)
    contents = {path: path.read_bytes() for path in Path("runs/twice").rglob("*") if path.is_file()}
    resume = ["train", "run=twice", "train.resume=true", "train.steps=4"]
    assert run(*resume) == 2
    advice = f"model.encoder.weights={last}/model.safetensors"
    message = f"{last} has another backbone than {first} gives, and it is frozen: set {advice}."
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("runs/twice").rglob("*") if path.is_file()} == contents
    assert run(*resume, advice) == 0
    expected, resumed = (load_file(newest_checkpoint(name) / "model.safetensors") for name in ("frozen", "twice"))
    assert expected.keys() == resumed.keys() and all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_other_encoder_settings_cannot_change_on_resuming(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "run=frozen", "train.resume=true", "++model.encoder.size=32") == 2
    message = "Run runs/frozen was started with other settings of model.encoder.size (64, now 32): "
    assert message in capsys.readouterr().err


def test_a_frozen_backbone_with_random_weights_is_warned_of(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is one warning, before images are read, and none if the backbone has weights or is trained."""
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
    error = capsys.readouterr().err
    assert "The CNN torchvision/resnet18 has random weights and stays frozen" in error
    assert "set model.encoder.weights to default or a file, or" in error


@pytest.mark.parametrize("settings", [["model.encoder.augment=false"], FROZEN], ids=["trained", "frozen"])
def test_captioners_see_by_a_vision_transformer(
    directory: Path, settings: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_vision_transformer(monkeypatch)
    vit = ["model.encoder.backbone=torchvision/vit_b_16", "model.encoder.size=32", *settings]
    name = f"vit-{len(settings)}"
    assert run(*TRAIN, *vit, f"run={name}", "train.steps=2") == 0
    capsys.readouterr()
    picture = "images=data/scenes/test/00000.png"
    assert run("caption", f"checkpoint=runs/{name}", picture, "format=jsonl", "weights=true", "max_length=4") == 0
    (caption,) = json.loads(capsys.readouterr().out)["captions"]
    assert caption["grid"] == [4, 4] and [len(row) for row in caption["attention"]] == 4 * [16]
    weights = load_file(newest_checkpoint(name) / "model.safetensors")
    assert sum(key.startswith("backbone.network.encoder.layers") for key in weights) == 2 * 12
