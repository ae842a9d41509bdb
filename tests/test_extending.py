"""docs/extending.md: its examples are files of their own, its commands work, and checkpoints use them if trusted."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
REFUSED = (
    "The configuration names '{name}': only classes of seqtool may be built from it (trust={top} would allow "
    "classes of {top}, and run the code of that module)."
)


def files() -> dict[str, str]:
    """The page's examples by the names that stand before them."""
    found = {}
    for block in re.finditer(r"^```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        names = re.findall(r"`([\w/]+\.(?:py|yaml))`(?=[:,])", PAGE[: block.start()])
        found[names[-1]] = block[1]
    return found


MODULES = [Path(name).stem for name in files() if name.endswith(".py")]


def commands(section: str) -> list[list[str]]:
    """Those of a section, training for two steps; what goes on goes on for two more."""
    found = []
    for line in re.findall(r"^    seqtool (.*)$", SECTIONS[section], re.MULTILINE):
        words = shlex.split(line)
        if words[0] == "train":
            words += shlex.split(TINY if "data=digits" in words else f"{TINY} {TOY}")
        if "train.resume=true" in words:
            words = [*words[: words.index("train.resume=true") + 1], "trust=cosine", "train.steps=4"]
        found.append(words)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the page's files, in which its commands are given."""
    directory, path = tmp_path_factory.mktemp("mine"), list(sys.path)
    for name, text in files().items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "new.en").write_text("I have a cat.\nthe red house\n")
    (directory / "new.es").write_text("Tengo un gato.\nla casa\n")
    (directory / "reference.es").write_text("Tengo un gato.\nla casa roja\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        yield directory
    sys.path[:] = path
    forget()


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)


def run(*words: str) -> int:
    return cli.run(words, config_directory())


def test_the_page_has_an_example_of_each() -> None:
    assert MODULES == ["cosine", "minimal", "bag", "exact", "digits", "lion"]
    assert [name for name in files() if name.endswith(".yaml")] == [
        "mine/model/bag.yaml",
        "mine/data/digits.yaml",
        "mine/optim/lion.yaml",
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_commands_of_the_page(section: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(section)
    assert found
    for words in found:
        assert run(*words) == 0, capsys.readouterr().err


@pytest.fixture(scope="module")
def cosine(place: Path) -> Path:
    """A run with a score and a metric of one's own."""
    line = (
        f"train run=own model.score=cosine.Cosine validation.scores=exact.Exact train.best_by=exact.Exact {TINY} {TOY}"
    )
    assert run(*shlex.split(line)) == 0
    return place / "runs" / "own"


def test_a_metric_of_ones_own_is_a_score_as_others_are(cosine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the run's progress and records, in `inspect`, and in each form of `eval`."""
    best = checkpoint.find(cosine).progress["best"]
    assert best.keys() == {"checkpoint", "step", "loss", "bleu", "exact.Exact"}
    records = [json.loads(line) for line in (cosine / "metrics.jsonl").read_text().splitlines()]
    assert any("valid_exact.Exact" in record for record in records)
    forget()
    assert run("inspect", str(cosine)) == run("inspect", "runs") == 0
    out = capsys.readouterr().out
    assert f"Exact {best['exact.Exact']:.4f}" in out and "| Exact" in out
    assert "exact" not in sys.modules
    files = ["eval", "hypotheses=new.es", "references=reference.es", "baseline=reference.es", "scores=exact.Exact"]
    assert run(*files, "format=json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["system"]["scores"][-1] == {"name": "Exact", "value": 50.0, "signature": "metric:exact.Exact"}
    assert found["comparison"]["differences"][-1]["name"] == "Exact"
    assert run(*files) == 0
    assert re.search(r"^\| Exact +\| 50\.0000 +\|$", capsys.readouterr().out, re.MULTILINE)
    assert run(*files, "format=jsonl") == 0
    lines = [json.loads(line)["scores"]["Exact"] for line in capsys.readouterr().out.splitlines()]
    assert lines == [100.0, 0.0]


@pytest.mark.parametrize(
    ("line", "text"),
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
def test_what_cannot_be_used(line: str, text: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(*shlex.split(f"{line} {TINY} {TOY}" if line.startswith("train") else line)) == 2
    assert text in capsys.readouterr().err
    assert not (place / "runs" / "x").exists()


LINES = (
    "translate checkpoint=runs/own input=new.en",
    "eval checkpoint=runs/own",
    "train run=own train.resume=true train.steps=3",
)


@pytest.mark.parametrize("line", LINES)
def test_without_trust_nothing_of_the_users_runs(line: str, cosine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forget()
    for trust in ("", " trust=cosin", " trust=exact"):
        assert run(*shlex.split(line + trust)) == 2
        sentence = REFUSED.format(name="cosine.Cosine", top="cosine")
        assert capsys.readouterr().err == f"seqtool: {sentence}\n"
        assert "cosine" not in sys.modules


def test_the_interface_of_python_needs_trust_too(cosine: Path) -> None:
    forget()
    with pytest.raises(InputError, match=r"^The configuration names 'cosine\.Cosine': .*\(trust=cosine would"):
        seqtool.load("runs/own")
    assert "cosine" not in sys.modules
    for trust in ("cosine", ["cosine"], "exact,cosine"):
        assert len(seqtool.load("runs/own", trust=trust, device="cpu").translate(["I have a cat."])) == 1


def test_a_run_goes_on_by_the_command_that_it_says(cosine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(*shlex.split(f"{LINES[2]} trust=cosine,exact")) == 0
    (last,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Run: ")]
    trust = "trust=cosine"  # of the model; the metric is not needed
    assert last == (
        f"Run: runs/own (seqtool translate checkpoint=runs/own {trust}; seqtool eval checkpoint=runs/own {trust})"
    )


def test_a_run_that_begins_with_a_model_of_ones_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"train --config-dir mine model=bag {TINY} {TOY}"
    assert run(*shlex.split(line), "run=first") == 0
    capsys.readouterr()
    assert run(*shlex.split(line), "run=second", "init_from=runs/first") == 2
    assert capsys.readouterr().err.endswith(f"{REFUSED.format(name='bag.Bag', top='bag')}\n")
    assert run(*shlex.split(line), "run=second", "init_from=runs/first", "trust=bag") == 0


@pytest.mark.parametrize(
    ("setting", "name", "text"),
    [
        ("_target_", "os.system", REFUSED.format(name="os.system", top="os")),
        ("_target_", "seqtoolx.Model", REFUSED.format(name="seqtoolx.Model", top="seqtoolx")),
        ("score", "cosinex.Cosine", REFUSED.format(name="cosinex.Cosine", top="cosinex")),
        ("score", "cosine.os.system", "Unknown target 'cosine.os.system': there is no module 'cosine.os'."),
        (
            "score",
            "cosine.AttentionScore",
            "The configuration names 'cosine.AttentionScore': only classes of cosine may be built from it.",
        ),
        ("cell", "posix.system", REFUSED.format(name="posix.system", top="posix")),
    ],
)
def test_what_a_stranger_names_does_not_run(
    setting: str, name: str, text: str, cosine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although one module is trusted. The modules that are named would leave a file."""
    for module in ("seqtoolx", "cosinex"):
        Path(f"{module}.py").write_text("open('canary', 'w').close()")
    copy = Path("stranger")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(checkpoint.find(cosine).path, copy)

    def change(record: dict[str, Any]) -> None:
        record["config"]["model"][setting] = name

    rewrite(copy, change)
    for line in (f"translate checkpoint={copy} input=new.en", f"eval checkpoint={copy}"):
        assert run(*shlex.split(line), "trust=cosine") == 2
        assert capsys.readouterr().err == f"seqtool: {text}\n"
    assert not Path("canary").exists()
