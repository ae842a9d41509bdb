"""Tests of docs/extending.md: its examples and commands work, and checkpoints use its classes only if trusted."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_bad_input import rewrite

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
TITLES = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
SECTIONS = dict(zip(TITLES, re.split(r"^## .*$", PAGE, flags=re.MULTILINE)[1:], strict=True))
TINY = (
    "train.steps=2 train.batch_size=8 train.minutes=null validation.max_length=5 device=cpu threads=1 data.processes=1"
)
TOY = "data.train=40 data.valid=6 data.test=6 data.vocabulary.kind=word"
NOT_TRUSTED = (
    "The configuration names '{name}': only classes of seqtool may be built from it (trust={top} would allow classes "
    "of {top}, and run the code of that module)."
)


def example_files() -> dict[str, str]:
    """Return the page's examples by the file names in the text before them."""
    contents = {}
    for block in re.finditer(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        names = re.findall(r"`([\w/]+\.(?:py|yaml))`(?=[:,])", PAGE[: block.start()])
        contents[names[-1]] = block[1]
    return contents


MODULES = [Path(name).stem for name in example_files() if name.endswith(".py")]


def commands(section: str) -> list[list[str]]:
    """Return the commands of a section; they train for two steps, and resumed runs for two more."""
    command_lines = []
    for line in re.findall(r"^    seqtool (.*)$", SECTIONS[section], re.MULTILINE):
        arguments = shlex.split(line)
        if arguments[0] == "train":
            arguments += shlex.split(TINY if "data=digits" in arguments else f"{TINY} {TOY}")
        if "train.resume=true" in arguments:
            arguments = [*arguments[: arguments.index("train.resume=true") + 1], "trust=cosine", "train.steps=4"]
        command_lines.append(arguments)
    return command_lines


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the page's files, in which its commands are run."""
    directory, path = tmp_path_factory.mktemp("mine"), list(sys.path)
    for name, text in example_files().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "new.en").write_text("I have a cat.\nthe red house\n")
    (directory / "new.es").write_text("Tengo un gato.\nla casa\n")
    (directory / "reference.es").write_text("Tengo un gato.\nla casa roja\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        yield directory
    sys.path[:] = path
    forget_modules()


def test_models_and_corpora_are_chosen_without_yaml_files(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = f"data=digits.Digits data.vocabulary.kind=word {TINY}"
    assert run(*shlex.split(f"train run=bare model=bag.Bag model.size=8 model.cell=gru data.train=30 {digits}")) == 0
    assert run(*shlex.split("eval checkpoint=runs/bare trust=bag,digits bootstrap=0 ter=false device=cpu")) == 0
    for settings, message in (
        ("model=bag.Bag", "train needs model.cell=… and model.size=… (see seqtool train --help)."),
        ("data=digits.Digit", "Unknown target 'digits.Digit'; did you mean 'digits.Digits'?"),
        ("data=bag.Bag", "Setting 'data' names 'bag.Bag', which is not a class derived from seqtool.data.corpora."),
    ):
        assert run("train", "run=refused", *settings.split()) == 2
        assert message in capsys.readouterr().err


def forget_modules() -> None:
    """Forget the imports of the page's modules."""
    for name in MODULES:
        sys.modules.pop(name, None)


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


def test_the_page_has_an_example_of_each_kind() -> None:
    assert MODULES == ["cosine", "minimal", "bag", "exact", "digits", "lion"]
    assert [name for name in example_files() if name.endswith(".yaml")] == [
        "mine/model/bag.yaml",
        "mine/data/digits.yaml",
        "mine/optim/lion.yaml",
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_of_the_page_succeed(section: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command_lines = commands(section)
    assert command_lines
    for arguments in command_lines:
        assert run(*arguments) == 0, capsys.readouterr().err


@pytest.fixture(scope="module")
def cosine_run(directory: Path) -> Path:
    """A run with the page's attention score and metric."""
    classes = "model.score=cosine.Cosine validation.scores=exact.Exact train.best_by=exact.Exact"
    assert run(*shlex.split(f"train run=custom {classes} {TINY} {TOY}")) == 0
    return directory / "runs" / "custom"


def test_a_user_metric_is_reported_like_built_in_scores(cosine_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The metric is in the run's progress and records, in `inspect`, and in every output format of `eval`."""
    best = checkpoint.find(cosine_run).progress["best"]
    assert best.keys() == {"checkpoint", "step", "loss", "bleu", "exact.Exact"}
    records = [json.loads(line) for line in (cosine_run / "metrics.jsonl").read_text().splitlines()]
    assert any("valid_exact.Exact" in record for record in records)
    forget_modules()
    assert run("inspect", str(cosine_run)) == run("inspect", "runs") == 0
    output = capsys.readouterr().out
    assert f"Exact {best['exact.Exact']:.4f}" in output and "| Exact" in output
    assert "exact" not in sys.modules
    files = ["eval", "hypotheses=new.es", "references=reference.es", "baseline=reference.es", "scores=exact.Exact"]
    assert run(*files, "format=json") == 0
    report = json.loads(capsys.readouterr().out)
    exact = {"name": "Exact", "value": 50.0, "low": 0.0, "high": 100.0, "signature": "metric:exact.Exact"}
    assert report["system"]["scores"][-1] == exact
    assert report["comparison"]["differences"][-1]["name"] == "Exact"
    assert run(*files) == 0
    assert re.search(r"^\| Exact +\| 50\.0000 \[0\.0000, 100\.0000\] +\|$", capsys.readouterr().out, re.MULTILINE)
    assert run(*files, "format=jsonl") == 0
    scores = [json.loads(line)["scores"]["Exact"] for line in capsys.readouterr().out.splitlines()]
    assert scores == [100.0, 0.0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train run=x model.score=cosin.Cosine", "there is no module 'cosin'; did you mean 'cosine'?"),
        ("train run=x model.score=cosine.Cosne", "Unknown target 'cosine.Cosne'; did you mean 'cosine.Cosine'?"),
        (
            "train run=x model.score=minimal.Minimal",
            "Setting 'model.score' names 'minimal.Minimal', which is not a class derived from "
            "seqtool.models.attention.AttentionScore.",
        ),
        (
            "train run=x optim.name=minimal.Minimal",
            "Setting 'optim.name' names 'minimal.Minimal', which is not a class derived from "
            "torch.optim.optimizer.Optimizer.",
        ),
        (
            "train run=x validation.scores=minimal.Minimal",
            "Setting 'validation.scores' names 'minimal.Minimal', which is not a class derived from "
            "seqtool.metrics.scores.Metric.",
        ),
        (
            "train run=x train.best_by=exact.Exact",
            "train.best_by=exact.Exact is not a score of translation; choose from",
        ),
        (
            "train run=x data._target_=exact.Exact",
            "Setting 'data._target_' names 'exact.Exact', which is not a class derived from seqtool.data",
        ),
        ("eval hypotheses=new.es references=reference.es scores=chr", "Unknown score 'chr': scores="),
        (
            "eval hypotheses=new.es references=reference.es trust=exact",
            "trust= can only be given with checkpoint=PATH.",
        ),
    ],
)
def test_classes_that_do_not_fit_are_refused(
    line: str, message: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(*shlex.split(f"{line} {TINY} {TOY}" if line.startswith("train") else line)) == 2
    assert message in capsys.readouterr().err
    assert not (directory / "runs" / "x").exists()


COMMANDS = (
    "translate checkpoint=runs/custom input=new.en",
    "eval checkpoint=runs/custom",
    "train run=custom train.resume=true train.steps=3",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_user_code_does_not_run_without_trust(line: str, cosine_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget_modules()
    for trust in ("", " trust=cosin", " trust=exact"):
        assert run(*shlex.split(line + trust)) == 2
        message = NOT_TRUSTED.format(name="cosine.Cosine", top="cosine")
        assert capsys.readouterr().err == f"seqtool: {message}\n"
        assert "cosine" not in sys.modules


def test_the_python_interface_needs_trust_too(cosine_run: Path) -> None:
    forget_modules()
    with pytest.raises(InputError, match=r"^The configuration names 'cosine\.Cosine': .*\(trust=cosine would"):
        seqtool.load("runs/custom")
    assert "cosine" not in sys.modules
    for trust in ("cosine", ["cosine"], "exact,cosine"):
        assert len(seqtool.load("runs/custom", trust=trust, device="cpu").translate(["I have a cat."])) == 1


def test_a_resumed_run_prints_commands_with_trust(cosine_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(*shlex.split(f"{COMMANDS[2]} trust=cosine,exact")) == 0
    (last,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Run: ")]
    trust = "trust=cosine"  # for the model; these commands do not need the metric
    arguments = f"checkpoint=runs/custom {trust}"
    assert last == f"Run: runs/custom (seqtool translate {arguments}; seqtool eval {arguments})"


def test_initialising_from_a_user_model_needs_trust(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"train --config-dir mine model=bag {TINY} {TOY}"
    assert run(*shlex.split(line), "run=first") == 0
    capsys.readouterr()
    assert run(*shlex.split(line), "run=second", "init_from=runs/first") == 2
    assert capsys.readouterr().err.endswith(f"{NOT_TRUSTED.format(name='bag.Bag', top='bag')}\n")
    assert run(*shlex.split(line), "run=second", "init_from=runs/first", "trust=bag") == 0


@pytest.mark.parametrize(
    ("setting", "name", "message"),
    [
        ("_target_", "os.system", NOT_TRUSTED.format(name="os.system", top="os")),
        ("_target_", "seqtoolx.Model", NOT_TRUSTED.format(name="seqtoolx.Model", top="seqtoolx")),
        ("score", "cosinex.Cosine", NOT_TRUSTED.format(name="cosinex.Cosine", top="cosinex")),
        ("score", "cosine.os.system", "Unknown target 'cosine.os.system': there is no module 'cosine.os'."),
        (
            "score",
            "cosine.AttentionScore",
            "The configuration names 'cosine.AttentionScore': only classes of cosine may be built from it.",
        ),
        ("cell", "posix.system", NOT_TRUSTED.format(name="posix.system", top="posix")),
    ],
)
def test_untrusted_names_in_a_checkpoint_do_not_run(
    setting: str, name: str, message: str, cosine_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One module is trusted, and others are named, which would write a file if they were imported."""
    for module in ("seqtoolx", "cosinex"):
        Path(f"{module}.py").write_text("open('canary', 'w').close()")
    copy = Path("stranger")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(checkpoint.find(cosine_run).path, copy)

    def change(record: dict[str, Any]) -> None:
        record["config"]["model"][setting] = name

    rewrite(copy, change)
    for line in (f"translate checkpoint={copy} input=new.en", f"eval checkpoint={copy}"):
        assert run(*shlex.split(line), "trust=cosine") == 2
        assert capsys.readouterr().err == f"seqtool: {message}\n"
    assert not Path("canary").exists()


def test_a_reward_that_a_run_names_does_not_run_without_trust(
    cosine_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rewarding.py").write_text("open('canary', 'w').close()")
    shutil.copytree(cosine_run, "runs/rewarded")

    def change(record: dict[str, Any]) -> None:
        record["config"]["train"]["reward"] = "bleu+0.5*rewarding.Reward"

    for path in Path("runs/rewarded/checkpoints").glob("step-*"):
        rewrite(path, change)
    assert run("train", "run=rewarded", "train.resume=true", "trust=cosine,exact", "train.steps=9") == 2
    assert "rewarding.Reward" in capsys.readouterr().err and not Path("canary").exists()


def test_a_captioner_without_a_file_has_the_settings_of_its_encoder(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is chosen by its dotted name has its constructor's arguments, of which some have no default."""
    capsys.readouterr()
    chosen = ["model=seqtool.models.show_tell.ShowTell", "data=scenes", "model.encoder.size=32"]
    assert run("train", "--cfg=job", "--package=model", *chosen) == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert settings["encoder"]["size"] == 32 and settings["encoder"]["backbone"] == "small"
    assert settings["hidden"] == "???" and "target_vocabulary" not in settings
    assert run("train", "run=x", *chosen) == 2
    assert capsys.readouterr().err.startswith("seqtool: train needs model.cell=… and model.context=… and")
