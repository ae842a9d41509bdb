"""Tests of tasks: data, models and checkpoints define theirs; a new task is one class and one line in a table."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

import seqtool
from seqtool import tasks
from seqtool.cli import main as cli
from seqtool.data.corpora.parallel import Toy
from seqtool.errors import InputError
from seqtool.metrics.scores import SCORES
from seqtool.runtime.files import config_directory
from seqtool.runtime.task_table import TASKS, TaskEntry
from seqtool.training import checkpoint

TOY = {"_target_": "seqtool.data.corpora.parallel.Toy"}
SCENES = {"_target_": "seqtool.data.corpora.scenes.Scenes"}
LUONG = {"_target_": "seqtool.models.luong.Luong"}
SHOW_TELL = {"_target_": "seqtool.models.show_tell.ShowTell"}
UNNAMED = {"_target_": "test_tasks.Unnamed"}


class Unnamed(Toy):
    task = "singing"


@pytest.mark.parametrize(("data", "model", "name"), [(TOY, LUONG, "translation"), (SCENES, SHOW_TELL, "captioning")])
def test_the_data_determine_the_task(data: Any, model: Any, name: str) -> None:
    task = tasks.task_of_data(OmegaConf.create({"data": data}))
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
        (
            TOY,
            SCENES,
            "Setting 'model._target_' names 'seqtool.data.corpora.scenes.Scenes', which is not a class derived from "
            "seqtool.models.contract.EncoderDecoder.",
        ),
        (
            LUONG,
            LUONG,
            "Setting 'data._target_' names 'seqtool.models.luong.Luong', which is not a class derived from "
            "seqtool.data.corpora.corpus.Corpus.",
        ),
        (
            UNNAMED,
            LUONG,
            "data._target_ names Unnamed, which does not define its task: "
            "translation or captioning or language_modelling.",
        ),
    ],
)
def test_data_and_models_of_different_tasks_are_refused(data: Any, model: Any, message: str) -> None:
    config = OmegaConf.create({"data": data, "model": model})
    with pytest.raises(InputError) as error:
        tasks.task_of_data(config).check_model(config)
    assert str(error.value) == message


def test_a_checkpoint_determines_the_task() -> None:
    def checkpoint(task: str) -> Any:
        return SimpleNamespace(path=Path("c"), task=task, trust=())

    assert tasks.task_of_checkpoint(checkpoint("captioning")).name == "captioning"
    with pytest.raises(
        InputError, match=r"^c is for the task 'singing', which this version of seqtool does not have\.$"
    ):
        tasks.task_of_checkpoint(checkpoint("singing"))


def test_a_dotted_name_is_the_name_of_a_users_task() -> None:
    """It needs no line in the table, but checkpoints name it only if its module is trusted."""
    assert TASKS["mine.Task"].model == "a model for mine.Task"
    with pytest.raises(KeyError):
        TASKS["singing"]
    untrusted: Any = SimpleNamespace(path=Path("c"), task="mine.Task", trust=())
    with pytest.raises(InputError, match=r"^The configuration names 'mine\.Task': only classes of seqtool"):
        tasks.task_of_checkpoint(untrusted)
    other: Any = SimpleNamespace(path=Path("c"), task="seqtool.models.luong.Luong", trust=())
    with pytest.raises(InputError, match=r"which is not a concrete class derived from seqtool\.tasks\.task\.Task\.$"):
        tasks.task_of_checkpoint(other)


def test_the_table_has_every_task() -> None:
    """The table has each task under its name, with the command that uses its models."""
    for name, entry in TASKS.items():
        task = tasks.task_by_name(name)
        assert task.name == name == task.corpus.task
        assert task.usage.format(checkpoint="PATH").startswith(f"seqtool {entry.command} checkpoint=PATH")


def test_preparing_text_does_not_import_torch(tmp_path: Path) -> None:
    arguments = ["prepare", "data=toy", "data.train=50", "data.valid=5", "data.test=5", "data.vocabulary.kind=char"]
    script = f"""
import sys
from seqtool.cli import main
assert main.run({arguments!r}, main.config_directory()) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True)


COPYING_MODULE = '''
"""A user's task: to copy a word. Its models are translators, and its data are pairs of equal texts."""

from seqtool.data.corpora.corpus import TextCorpus
from seqtool.models.luong import Luong
from seqtool.predict.translator import Translator
from seqtool.tasks.translation import Translation


class Words(TextCorpus):
    name, task, contents, example = "words", "copying", "words to copy", "data=words"
    source_language = target_language = "xx"

    def splits(self):
        return ("train", "valid", "test")

    def pairs(self, split):
        return (((text := " ".join("abc"[n % 3] for n in range(i, i + i % 4 + 1))), text) for i in range(24))

    def fingerprint(self, digest):
        return {"version": 1}


class Copier(Luong):
    task = "copying"


class CopyingPredictor(Translator):
    task = "copying"


class Copying(Translation):
    name, corpus, does, example = "copying", Words, "copies words", "model=copier"
    predictor = "copying:CopyingPredictor"


TASK = Copying()
'''


CONFIGS = {
    "mine/data/words.yaml": "defaults: [/preparation@_here_, _self_]\n_target_: copying.Words\nprocesses: 1\n"
    "vocabulary: {kind: word, minimum_count: 1}\n",
    "mine/model/copier.yaml": "defaults: [luong, _self_]\n_target_: copying.Copier\nhidden: 8\nalignment: 8\n",
}


def test_a_users_task_can_be_used_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run can be prepared, trained, resumed, fine-tuned, used and scored. Models of other tasks are refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(TASKS, "copying", TaskEntry("copying:TASK", "a copier", "translate"))
    Path("copying.py").write_text(COPYING_MODULE)
    for file, text in CONFIGS.items():
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text)
    settings = ["--config-dir=mine", "data=words", "model=copier", "device=cpu", "threads=1", "train.minutes=null"]

    def run(*arguments: str) -> int:
        return cli.run(arguments, config_directory())

    assert run("train", *settings, "run=first", "train.steps=2") == 0, capsys.readouterr().err
    assert "seqtool translate checkpoint=runs/first trust=copying" in capsys.readouterr().out
    assert run("train", "run=first", "train.resume=true", "train.steps=4", "trust=copying") == 0
    assert run("train", *settings, "run=second", "train.steps=1", "init_from=runs/first", "trust=copying") == 0
    assert checkpoint.find("runs/first").task == "copying"
    assert len(seqtool.load("runs/first", trust="copying", device="cpu").translate(["a b"])) == 1
    capsys.readouterr()
    evaluation = ["eval", "checkpoint=runs/first", "trust=copying", "bootstrap=0", "device=cpu"]
    assert run(*evaluation, "beam=2", "format=json") == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["beam"] == 2
    assert run(*evaluation, "bound=2") == 2
    assert capsys.readouterr().err.endswith("bound= means nothing for translations.\n")
    assert run("train", "run=first", "train.resume=true", "train.bptt=7", "trust=copying") == 2
    assert "train.bptt" in capsys.readouterr().err
    assert run("inspect", "runs/first") == 0
    capsys.readouterr()
    assert run("translate", "checkpoint=runs/first", "trust=copying", "input=copying.py") == 2
    assert capsys.readouterr().err.endswith("holds a copier: use seqtool translate.\n")
    capsys.readouterr()
    assert run("train", *settings, "model=bahdanau", "run=third") == 2
    assert "model=bahdanau translates sentences, but data=words holds words to copy" in capsys.readouterr().err
