"""The task is told by what the data hold and the model reads, and by what a checkpoint records."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from seqtool import tasks
from seqtool.errors import InputError
from seqtool.metrics.scores import SCORES

TOY = {"_target_": "seqtool.data.corpora.parallel.Toy"}
SCENES = {"_target_": "seqtool.data.corpora.scenes.Scenes"}
LUONG = {"_target_": "seqtool.models.luong.Luong"}
SHOW_TELL = {"_target_": "seqtool.models.show_tell.ShowTell"}


@pytest.mark.parametrize(("data", "model", "name"), [(TOY, LUONG, "translation"), (SCENES, SHOW_TELL, "captioning")])
def test_the_data_tell_the_task(data: Any, model: Any, name: str) -> None:
    task = tasks.of(OmegaConf.create({"data": data}))
    assert task.name == name and {*task.scores, "loss"} <= SCORES.keys()
    task.check_model(OmegaConf.create({"data": data, "model": model}))


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        (
            TOY,
            SHOW_TELL,
            "model=show_tell describes images, but data=toy holds sentence pairs: choose another model, such as "
            "model=bahdanau, or other data, such as data=scenes.",
        ),
        (
            SCENES,
            LUONG,
            "model=luong translates sentences, but data=scenes holds images with captions: choose another model, such "
            "as model=show_tell, or other data, such as data=toy.",
        ),
        (TOY, SCENES, "model._target_ names Scenes, which does not say what it reads: text or images or nothing."),
        (LUONG, LUONG, "data._target_ names Luong, which does not say what it holds: pairs or captions or text."),
    ],
)
def test_what_does_not_go_together(data: Any, model: Any, message: str) -> None:
    config = OmegaConf.create({"data": data, "model": model})
    with pytest.raises(InputError) as error:
        tasks.of(config).check_model(config)
    assert str(error.value) == message


def test_a_checkpoint_tells_its_task() -> None:
    """By name, or as its model's class does in those of earlier versions."""

    def found(task: str | None, reads: str) -> Any:
        return SimpleNamespace(path=Path("c"), task=task, reads=reads)

    assert tasks.of_checkpoint(found("captioning", "images")).name == "captioning"
    assert tasks.of_checkpoint(found(None, "images")).name == "captioning"
    assert tasks.of_checkpoint(found(None, "text")).name == "translation"
    with pytest.raises(
        InputError, match=r"^c is for the task 'singing', which this version of seqtool does not know\.$"
    ):
        tasks.of_checkpoint(found("singing", "text"))


def test_preparing_text_does_without_torch(tmp_path: Path) -> None:
    arguments = ["prepare", "data=toy", "data.train=50", "data.valid=5", "data.test=5", "data.vocabulary.kind=char"]
    script = f"""
import sys
from seqtool.cli import main
assert main.run({arguments!r}, main.config_directory()) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)
