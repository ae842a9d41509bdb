"""`seqtool export`: a small copy of a trained model, which every command takes as a checkpoint."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import pytest
import torch

import seqtool
from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

TRANSLATOR = (
    "train run=words device=cpu threads=1 data.processes=1 train.steps=20 train.minutes=null train.batch_size=8 "
    "data.train=60 data.valid=4 data.test=6 data.vocabulary.kind=word model=bahdanau model.embedding=8 "
    "model.encoder_hidden=8 model.decoder_hidden=8 model.alignment=8 model.maxout=8"
)


def run(line: str) -> int:
    return cli.run(line.split(), config_directory())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        assert run(TRANSLATOR) == 0
        assert run("export runs/words output=words licence=CC-BY-4.0") == 0
    return directory


@pytest.fixture(autouse=True)
def working_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)


def test_an_exported_model_is_the_best_checkpoint_in_half_precision() -> None:
    best, exported = checkpoint.find("runs/words"), checkpoint.find("words")
    assert exported.config == best.config and exported.data == best.data
    assert exported.progress["last"] == best.progress["last"] and "optimiser" not in exported.progress
    assert sorted(path.name for path in Path("words").iterdir()) == [
        *("card.md", "checkpoint.json", "manifest.json", "model.safetensors", "source.vocabulary", "target.vocabulary")
    ]
    for name, weight in exported.weights().items():
        assert weight.dtype == torch.float16
        assert torch.equal(weight, best.weights()[name].half())


def test_it_is_used_as_any_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = (seqtool.load(path, beam=2, max_length=6) for path in ("words", "runs/words"))
    sentences = ["I have a cat.", "you do not see the red car."]
    for half, full in zip(ours.hypotheses(sentences), theirs.hypotheses(sentences), strict=True):
        assert half[0].log_probability == pytest.approx(full[0].log_probability, abs=1e-2)
    assert run("eval checkpoint=words bootstrap=0 max_length=6 beam=1 format=json device=cpu") == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"] == ["words"]
    assert run("inspect words") == 0
    assert "20 steps" in capsys.readouterr().out
    started = f"{TRANSLATOR.replace('run=words', 'run=tuned')} init_from=words data.vocabulary.reuse=words"
    assert run(started.replace("steps=20", "steps=2").replace("data.vocabulary.kind=word ", "")) == 0


def test_its_card_says_what_it_is_and_may_be_edited(capsys: pytest.CaptureFixture[str]) -> None:
    card = Path("words/card.md")
    text = card.read_text("utf-8")
    assert text.startswith("# words\n\nA translation model, trained with seqtool ")
    headings = ["Use", "Model", "Data", "Training", "Scores", "Licence"]
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == headings and text.endswith("## Licence\n\nCC-BY-4.0\n")
    for row in (
        "size | train 60 pairs; valid 4 pairs; test 6 pairs",
        "machine | device cpu, threads 1, precision fp32",
    ):
        assert f"| {row} |" in text
    assert (
        "| length | 20 steps" in text
        and "| this model | BLEU " in text
        and "seqtool translate checkpoint=words" in text
    )
    assert 'model.translate(["I have a cat."])' in text
    assert "runs/words" not in text and "{" not in text
    exec(textwrap.dedent(text.partition("In Python:\n\n")[2].partition("\n\n##")[0]))  # the example for Python runs
    assert capsys.readouterr().out.startswith("[")
    card.write_text(text + "\nMore.\n", encoding="utf-8")
    opened = checkpoint.find("words")
    assert checkpoint.run_directory(opened.path) == Path("words").absolute()  # it is outside any run


def test_no_file_names_a_directory_of_the_machine_that_trained_it(directory: Path) -> None:
    """Absolute paths are replaced by the names of the files. A model whose data are gone has a card without sizes."""
    for name in ("a", "b"):
        Path(f"{name}.tsv").write_text("the cat\tdie Katze\nthe dog\tder Hund\n")
    files = f"data=parallel data.train={directory}/a.tsv data.valid={directory}/b.tsv data.cache={directory}/private"
    small = "model=sutskever model.embedding=8 model.hidden=8 train.steps=1 data.processes=1 device=cpu threads=1"
    assert run(f"train run=mine {files} {small}") == 0
    assert run("export runs/mine output=mine") == 0
    texts = [path.read_bytes().decode(errors="replace") for path in Path("mine").iterdir()]
    assert not any(str(directory) in text for text in texts)
    config = checkpoint.find("mine").config
    assert (config["data"]["train"], config["data"]["valid"], config["data"]["cache"]) == ("a.tsv", "b.tsv", "private")
    card = Path("mine/card.md").read_text("utf-8")
    assert "| size | train 2 pairs; valid 2 pairs |" in card and "ParallelFiles: train a.tsv, valid b.tsv," in card
    assert 'model.translate(["…"])' in card, "the source may be in any language"
    shutil.rmtree("private")
    assert run("export runs/mine output=gone") == 0
    assert "| size | not recorded |" in Path("gone/card.md").read_text("utf-8")


def test_every_file_is_on_the_disk_before_the_model_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(checkpoint, "_sync", lambda path: synced.append(path.name))
    assert run("export runs/words output=synced") == 0
    assert {path.name for path in Path("synced").iterdir()} < {*synced} and "card.md" in synced


def test_the_command_that_uses_it_names_trusted_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export runs/words output=trusting trust=mine") == 0
    assert "(seqtool translate checkpoint=trusting trust=mine)" in capsys.readouterr().out
    assert "    seqtool translate checkpoint=trusting trust=mine\n" in Path("trusting/card.md").read_text("utf-8")


def test_full_precision_changes_nothing() -> None:
    assert run("export runs/words/last output=full precision=fp32") == 0
    full, last = checkpoint.find("full").weights(), checkpoint.find("runs/words/last").weights()
    assert all(torch.equal(full[name], last[name]) for name in full.keys() | last.keys())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export", "export needs checkpoint=… and output=… (see seqtool export --help)."),
        ("export runs/words", "export needs output=… (see seqtool export --help)."),
        ("export runs/words output=words", "output=words already exists: choose another name."),
        ("export runs/words runs/words output=new", "export needs one path: seqtool export PATH output=FOLDER."),
        (
            "export runs/words checkpoint=runs/tuned output=new",
            "export got checkpoint= and also runs/words: give only one of them.",
        ),
        ("export runs/word output=new", "There is no run or checkpoint at runs/word. runs holds words, tuned, mine."),
        ("export runs/words output=new precision=int4", "Unknown precision 'int4'; choose from fp16, fp32."),
        ("export runs/words output=new license=MIT", "Unknown setting 'license'; did you mean 'licence'?"),
    ],
)
def test_bad_input(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line) == 2
    error = capsys.readouterr().err
    assert re.sub(r"words, .*\.", "words.", error) == re.sub(r"words, .*\.", "words.", f"seqtool: {message}\n")
    assert not Path("new").exists()


def test_weights_that_half_precision_cannot_hold_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    opened = checkpoint.find("runs/words")
    weights = opened.weights()
    weights["output.bias"] = weights["output.bias"] + 70_000
    record = {name: getattr(opened, name) for name in ("task", "config", "progress", "versions", "data")}
    vocabularies = sorted(opened.path.glob("*.vocabulary"))
    checkpoint.save(Path("large"), model=weights, training={}, record=record, vocabularies=vocabularies)
    assert run("export large output=new") == 2
    message = "'output.bias' has values outside the range of fp16: use precision=fp32."
    assert capsys.readouterr().err == f"seqtool: {message}\n"
    assert run("export large output=large32 precision=fp32") == 0
