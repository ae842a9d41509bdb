"""Tests of scores over several seeds: `eval seeds=…`, and the means below the tables of sweeps and of `inspect`."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqtool
from seqtool.cli import main as cli
from seqtool.cli.evaluate import _joined
from seqtool.metrics.bootstrap import over_seeds, resampled
from seqtool.metrics.translation import Bleu
from seqtool.runtime.files import config_directory, write_lines
from seqtool.training import checkpoint
from seqtool.training.runs import located

REFERENCES = [f"a small dog {n} runs over the wet grass {n % 7}" for n in range(60)]
SIZES = ["model=sutskever", "model.hidden=4", "model.embedding=4", "device=cpu", "threads=1", "validation.max_length=5"]
DATA = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def noisy(seed: int, share: float) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(word for word in line.split() if generator.random() > share) for line in REFERENCES]


SYSTEMS = {
    **{f"a{seed}": noisy(seed, 0.1) for seed in range(3)},
    **{f"b{seed}": noisy(9 + seed, 0.2) for seed in (0, 1)},
}


@pytest.fixture(scope="module", autouse=True)
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        for name, lines in {"r": REFERENCES, **SYSTEMS}.items():
            write_lines(Path(name), lines)
        yield


def vars_of(estimate: Any) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def evaluate(capsys: Capture, *settings: str, bootstrap: int = 10) -> Any:
    capsys.readouterr()
    assert run("eval", *settings, f"bootstrap={bootstrap}", "format=json") == 0
    return json.loads(capsys.readouterr().out)


def draws(names: Sequence[str]) -> np.ndarray[Any, Any]:
    """BLEU of each system, and of each of its resamples."""
    scorer = Bleu([[reference] for reference in REFERENCES], tokenize="13a", lowercase=False)
    statistics = [scorer.statistics(SYSTEMS[name]) for name in names]

    def bleu(rows: Any) -> list[float]:
        return [scorer.scores(system[rows])["bleu"] for system in statistics]

    segments = np.arange(len(REFERENCES))
    return np.array([bleu(segments), *resampled(bleu, [segments], 200)]).T


def test_the_mean_and_its_intervals_equal_their_definitions(capsys: Capture) -> None:
    """A baseline of two seeds gives an interval over sentences only; the resamples of both systems are the same."""
    record = evaluate(capsys, "seeds=a0,a1,a2", "baseline=b0,b1", "references=r", "ter=false", bootstrap=200)
    assert record["runs"] == {"baseline": ["b0", "b1"], "system": ["a0", "a1", "a2"]} and record["segments"] == 60
    rows = {row["of"]: row for row in record["scores"] if row["name"] == "BLEU"}
    system, baseline = draws(["a0", "a1", "a2"]), draws(["b0", "b1"])
    values = rows["system"]["values"]
    assert values == pytest.approx(system[:, 0]) and rows["system"]["sd"] == pytest.approx(np.std(values, ddof=1))
    for row, means in ((rows["system"], system.mean(0)), (rows["difference"], system.mean(0) - baseline.mean(0))):
        interval = [row["mean"][name] for name in ("value", "low", "high")]
        assert interval == pytest.approx([means[0], *np.percentile(means[1:], [2.5, 97.5])])
    assert rows["difference"]["with_seeds"].keys() == {"value"} and rows["difference"]["sd"] is None
    single = evaluate(capsys, "hypotheses=a1", "references=r", "ter=false")["system"]["scores"][0]
    assert values[1] == single["value"] and rows["system"]["signature"] == single["signature"]
    with_seeds = rows["system"]["with_seeds"]
    assert with_seeds["low"] < rows["system"]["mean"]["low"] < rows["system"]["mean"]["high"] < with_seeds["high"]
    assert run("eval", "seeds=a0,a1,a2", "baseline=b0,b1", "references=r", "bootstrap=0", "ter=false") == 0
    table = capsys.readouterr().out
    each = ", ".join(f"{value:.2f}" for value in values)
    assert f"| {np.std(values, ddof=1):.2f} | {each} |" in " ".join(table.split()) and "[" not in table


def test_seeds_that_differ_give_the_interval_of_the_t_test() -> None:
    """If all resamples are equal, the interval is mean ± t sd / √n; with equal seeds it is that of the resamples."""
    values = np.array([20.0, 21.0, 23.0, 20.5])
    low_t = 3.1824  # the 97.5th percentile of t with 3 degrees of freedom, from a table
    mean, with_seeds = over_seeds(np.repeat(values[:, np.newaxis], 1001, 1))
    half = low_t * np.std(values, ddof=1) / 2
    assert mean.low == mean.high == pytest.approx(values.mean())
    assert [with_seeds.low, with_seeds.high] == pytest.approx([values.mean() - half, values.mean() + half], rel=5e-3)
    on_segments, with_seeds = over_seeds(np.random.default_rng(0).normal(size=1001)[np.newaxis].repeat(3, 0))
    assert [with_seeds.low, with_seeds.high] == pytest.approx([on_segments.low, on_segments.high], rel=0.01)


def test_equally_many_runs_are_compared_in_pairs(capsys: Capture) -> None:
    """The interval of the difference is that of a mean of differences; with pairs of equal runs it is 0."""
    settings = ("references=r", "ter=false")
    difference, equal = (
        next(
            row
            for row in evaluate(capsys, "seeds=a0,a1,a2", f"baseline={runs}", *settings, bootstrap=200)["scores"]
            if (row["name"], row["of"]) == ("BLEU", "difference")
        )
        for runs in ("a1,a2,a0", "a0,a1,a2")
    )
    pairs = draws(["a0", "a1", "a2"]) - draws(["a1", "a2", "a0"])
    assert difference["values"] == pytest.approx(pairs[:, 0])
    assert difference["sd"] == pytest.approx(np.std(pairs[:, 0], ddof=1))
    mean, with_seeds = over_seeds(pairs)
    assert difference["mean"] == pytest.approx(vars_of(mean))
    assert difference["with_seeds"] == pytest.approx(vars_of(with_seeds))
    assert equal["sd"] == 0 and equal["with_seeds"] == {"value": 0, "low": 0, "high": 0}
    assert run("eval", "seeds=a0,a1", "baseline=b0,b1", *settings, "bootstrap=0") == 0
    without = capsys.readouterr().out
    assert "No intervals, since bootstrap=0. A difference of equally many runs is that of pairs" in without
    assert "bootstrap over segments" not in without and "unreliable" not in without


def test_captions_and_texts_have_means_over_seeds(capsys: Capture) -> None:
    for name, lines in {"r": REFERENCES, **SYSTEMS}.items():
        Path(f"{name}.json").write_text(json.dumps(dict(enumerate(lines))))
    record = evaluate(capsys, "task=captioning", "seeds=a0.json,a1.json,a2.json", "references=r.json")
    (row,) = [row for row in record["scores"] if row["name"] == "cider_d"]
    single = evaluate(capsys, "task=captioning", "hypotheses=a2.json", "references=r.json")["cider_d"]
    assert row["values"][2] == single and row["mean"]["value"] == pytest.approx(np.mean(row["values"]))
    write_lines(Path("text"), REFERENCES[:5])
    settings = ("text=text", "device=cpu", "threads=1")
    record = evaluate(capsys, "seeds=builtin/text", "baseline=builtin/text", *settings)
    bits = evaluate(capsys, "checkpoint=builtin/text", *settings)["bits_per_character"]
    assert record["scores"][1]["mean"] == bits and record["scores"][2]["mean"] == {"value": 0, "low": 0, "high": 0}


def test_runs_that_differ_in_the_seed_are_summed_up(capsys: Capture) -> None:
    """Below the table of a sweep and of `inspect`; a run with other settings is left out."""
    assert run("train", *DATA, *SIZES, "train.steps=2", "seed=1", "run=r") == 0
    assert run("train", "-m", *DATA, *SIZES, "train.steps=1", "seed=1,2", "run=s") == 0
    below = capsys.readouterr().out.split("\n\n")[-1]
    assert run("inspect", "runs") == 0
    assert capsys.readouterr().out.split("\n\n")[-1] == below
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in below.splitlines()]
    losses = [checkpoint.find(Path("runs") / name).progress["best"]["loss"] for name in ("s-0", "s-1")]
    assert rows[0] == ["mean ± sd over seeds", "loss", "BLEU"] and len(rows) == 3
    assert rows[2][:2] == ["s-0, s-1", f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"]
    settings = ("split=valid", "beam=1", "ter=false", "device=cpu", "threads=1")
    record = evaluate(capsys, "seeds=runs/s-0,runs/s-1", *settings)
    assert [Path(path).parts[-3] for path in record["checkpoints"]] == ["s-0", "s-1"]
    assert record["decoding"]["beam"] == 1 and len(record["scores"][0]["values"]) == 2
    capsys.readouterr()
    assert run("eval", f"seeds=runs/s-0,{record['checkpoints'][0]}", *settings) == 2
    assert "seeds= names runs/s-0, again as " in capsys.readouterr().err


def test_files_in_a_folder_called_checkpoints_are_not_of_one_run() -> None:
    for seed in (0, 1):
        Path("checkpoints").mkdir(exist_ok=True)
        shutil.copy(f"a{seed}", f"checkpoints/a{seed}")
        shutil.copytree(located(Path("builtin/words")), f"checkpoints/{seed}")
    assert run("eval", "seeds=checkpoints/a0,checkpoints/a1", "references=r", "bootstrap=2") == 0
    write_lines(Path("sources"), ["I have a cat."])
    settings = ["sources=sources", "references=sources", "bootstrap=2", "device=cpu", "threads=1"]
    assert run("eval", "seeds=checkpoints/0,checkpoints/1", *settings) == 0
    assert seqtool.load("checkpoints/1", device="cpu").name == "1"


def test_a_mean_over_seeds_says_how_many_runs_it_is_of(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The validations of a run that diverged have no scores."""
    assert run("train", "-m", *DATA, *SIZES, "train.steps=3", "seed=1,2,3", "run=one") == 0
    find = checkpoint.find

    def find_diverged(path: Path, **options: Any) -> Any:
        found = find(path, **options)
        return replace(found, progress={**found.progress, "best": {}}) if path.name == "one-2" else found

    monkeypatch.setattr(checkpoint, "find", find_diverged)
    capsys.readouterr()
    assert run("inspect", "runs") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| one-0, one-1, one-2 ")]
    assert line.count("(2 of 3 runs)") == 2


def test_an_older_run_is_not_shown_as_a_sweeps(capsys: Capture) -> None:
    assert run("train", *DATA, *SIZES, "train.steps=1", "seed=1", "run=older-1") == 0
    capsys.readouterr()
    assert run("train", "-m", *DATA, *SIZES, "train.steps=2", "seed=1,2", "run=older-${seed}") == 2
    shown = capsys.readouterr()
    assert "Run 'older-1' already exists" in shown.err
    assert "older-2" in shown.out and "older-1" not in shown.out.partition("| run")[2]


def test_search_settings_that_differ_between_runs_are_listed() -> None:
    """A model whose positions are learnt lowers the maximum length."""
    runs = [{"beam": 5, "max_length": 60}, {"beam": 5, "max_length": 50}]
    assert _joined(runs) == {"beam": 5, "max_length": [60, 50]}
    assert _joined(runs[:1]) == runs[0] and _joined([]) == {}


def test_a_sweep_shows_no_runs_of_others(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Such as those that another process trains meanwhile in the same folder."""
    call = cli._call

    def call_beside_another(command: str, config: Any, settings: Any) -> Any:
        run_directory = call(command, config, settings)
        shutil.copytree(run_directory, f"runs/another-{config.seed}")
        return run_directory

    monkeypatch.setattr(cli, "_call", call_beside_another)
    assert run("train", "-m", *DATA, *SIZES, "train.steps=1", "seed=1,2") == 0
    shown = capsys.readouterr().out
    assert "| seed=2 " in shown and "mean ± sd over seeds" in shown and "another-" not in shown


def test_each_run_may_start_from_the_one_with_its_seed(capsys: Capture) -> None:
    """They differ only in the seed, too."""
    sweep = ["train", "-m", *DATA, *SIZES, "seed=1,2", "train.steps=1"]
    assert run(*sweep, "run=1of2-${seed}") == 0  # the name has seeds' numbers that are not the seed
    assert run(*sweep, "run=second-${seed}", "init_from=runs/1of2-${seed}", "train.objective=sequence") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| second-1, second-2 ")


def test_rewards_of_a_model_that_has_learnt_nothing(caplog: pytest.LogCaptureFixture, capsys: Capture) -> None:
    rewarded = ["train", *DATA, *SIZES, "train.objective=sequence", "train.steps=1"]
    assert run(*rewarded, "run=untrained") == 0
    assert "train.objective=sequence without init_from= rewards a model that has learnt nothing yet." in caplog.messages
    assert run(*rewarded, "run=unscored", "data.cache=new", "train.reward=cider_d") == 2
    assert "train.reward=cider_d is no score of translation" in capsys.readouterr().err
    assert not Path("new").exists()  # nothing was prepared


def test_all_runs_are_checked_before_the_first_is_evaluated(capsys: Capture) -> None:
    assert run("eval", "seeds=builtin/words,none", "sources=r", "references=r", "device=cpu", "threads=1") == 2
    assert capsys.readouterr().err.startswith("seqtool: There is no run or checkpoint at none.")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("seeds=a0,a1 references=r output=o hypotheses=a2", "hypotheses=, output= cannot be given with seeds=: "),
        ("seeds=a0,a1 references=r format=jsonl", "format=jsonl is for the lines or images of one system, not for see"),
        ("hypotheses=a0 references=r baseline=b0,b1", "baseline=b0,b1 names several files or runs, which needs seeds="),
        ("seeds=a0,a1,a0 references=r", "seeds= names a0 twice: name each run once."),
        ("seeds=a0,a1 baseline=b0,./b0 references=r", "baseline= names b0, again as ./b0: name each run once."),
        ("seeds=a0,none references=r", "There is no run or checkpoint at none."),
        ("seeds=a0,short references=r", "short has 9 lines but r has 60: they must be parallel, line by line."),
        ("task=captioning seeds=a.json,b.json references=r.json", "b.json and a.json are scored on different segments"),
    ],
)
def test_unfit_settings_are_refused(settings: str, message: str, capsys: Capture) -> None:
    write_lines(Path("short"), REFERENCES[:9])
    for name, lines in {"r": REFERENCES, "a": REFERENCES, "b": REFERENCES[:9]}.items():
        Path(f"{name}.json").write_text(json.dumps(dict(enumerate(lines))))
    assert run("eval", *settings.split()) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
