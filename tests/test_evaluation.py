"""Tests of `eval`: intervals, the parts of BLEU, decoding settings, user metrics, files and test sets."""

import contextlib
import gzip
import json
import math
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from evaluation_settings import evaluation_settings
from PIL import Image

from seqtool.cli import main as cli
from seqtool.data.text.vocabulary import VocabularySettings, train
from seqtool.errors import InputError
from seqtool.evaluation import translations
from seqtool.metrics.scores import SCORES, MetricInfo
from seqtool.predict.captioner import Captioner
from seqtool.predict.predictor import EncodedText
from seqtool.predict.translator import Translator
from seqtool.runtime.files import config_directory
from seqtool.training import checkpoint
from seqtool.view import plots, report

Capture = pytest.CaptureFixture[str]
FILES = ("hypotheses=system.txt", "references=reference.txt", "sources=source.txt", "bootstrap=50")
TEXT = ["data.train=200", "data.valid=20", "data.test=20", "data.vocabulary.size=150", "data.processes=1"]
SIZES = ["model.embedding=8", "model.encoder_hidden=8", "model.decoder_hidden=8", "model.alignment=8", "model.maxout=8"]


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


def evaluate(capsys: Capture, *arguments: str) -> Any:
    """Run `eval`, and return its report."""
    assert run("eval", *arguments, "format=json") == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with translations that are too short, worse translations, references and sources."""
    monkeypatch.chdir(tmp_path)
    words = ["the", "a", "small", "old", "cat", "dog", "house", "saw", "near", "runs"]
    reference = [[words[(i * j + i) % 10] for j in range(4 + i % 9)] for i in range(120)]
    Path("reference.txt").write_text("".join(" ".join(line) + " .\n" for line in reference))
    Path("system.txt").write_text("".join(" ".join(line[: 3 + i % 8]) + "\n" for i, line in enumerate(reference)))
    Path("baseline.txt").write_text("".join(" ".join(line[i % 3 :]) + "\n" for i, line in enumerate(reference)))
    Path("source.txt").write_text("".join("x " * (len(line) - 1) + "x\n" for line in reference))
    return tmp_path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the runs `text` and `photos`, each trained for one step."""
    directory = tmp_path_factory.mktemp("evaluation")
    with contextlib.chdir(directory):
        machine = ["device=cpu", "threads=1", "train.steps=1", "validation.max_length=5"]
        assert run("train", "run=text", *machine, *TEXT, *SIZES) == 0
        Path("photos").mkdir()
        for i in range(6):
            Image.new("RGB", (32, 32), (40 * i, 0, 0)).save(f"photos/{i}.png")
        lines = (json.dumps({"file": f"{i}.png", "caption": "all is red"}) for i in range(6))
        Path("photos/captions.jsonl").write_text("\n".join(lines) + "\n")
        photos = ["data=photos", "data.directory=photos", "data.train=photos/captions.jsonl", "data.processes=1"]
        sizes = ["model=show_attend_tell", "model.hidden=8", "model.alignment=8", "model.embedding=8"]
        shares = ["data.vocabulary.minimum_count=1", "data.valid_share=0.2", "data.test_share=0.4"]
        assert run("train", "run=photos", *machine, *photos, *sizes, "model.encoder.size=32", *shares) == 0
        yield directory


def test_the_interval_of_a_system_does_not_depend_on_its_role(files: Path, capsys: Capture) -> None:
    """The interval is the same for a single system, next to a baseline, and for a baseline."""
    report = evaluate(capsys, *FILES, "baseline=baseline.txt")
    bleu = report["system"]["bleu"]
    assert bleu["low"] < bleu["value"] < bleu["high"]
    assert report["comparison"]["differences"][0]["system"] == bleu
    swapped = evaluate(capsys, "hypotheses=baseline.txt", *FILES[1:], "baseline=system.txt")
    pairs = zip(swapped["comparison"]["differences"], report["comparison"]["differences"], strict=True)
    for swapped_difference, difference in pairs:
        assert swapped_difference["baseline"] == difference["system"]
        assert swapped_difference["system"] == difference["baseline"]
    assert evaluate(capsys, *FILES[:3], "bootstrap=20")["system"]["bleu"] != bleu


def test_every_score_of_a_single_system_has_an_interval(files: Path, user_scores: None, capsys: Capture) -> None:
    """The intervals equal those of a comparison with a baseline; with bootstrap=0 there are none."""
    settings = [*FILES, "scores=user_scores.Words"]
    scores = evaluate(capsys, *settings)["system"]["scores"]
    assert [score["name"] for score in scores] == ["BLEU", "chrF2", "TER", "Words"]
    compared = evaluate(capsys, *settings, "baseline=baseline.txt")["comparison"]["differences"]
    for score, difference in zip(scores, compared, strict=True):
        assert score["low"] < score["value"] < score["high"]
        assert {name: score[name] for name in ("value", "low", "high")} == difference["system"]
    assert run("eval", *settings) == 0
    table = capsys.readouterr().out
    for score, digits in zip(scores, (2, 2, 2, 4), strict=True):
        numbers = [f"{score[name]:.{digits}f}" for name in ("value", "low", "high")]
        assert re.search(rf"\| {score['name']} +\| {numbers[0]} \[{numbers[1]}, {numbers[2]}\] +\|", table)
    assert all("low" not in score for score in evaluate(capsys, *settings, "bootstrap=0")["system"]["scores"])


def test_the_parts_of_bleu_equal_those_of_sacrebleu(files: Path, capsys: Capture) -> None:
    """The score is their product: the mean precision times the brevity penalty."""
    system = evaluate(capsys, *FILES)["system"]
    hypotheses, references = (Path(name).read_text().splitlines() for name in ("system.txt", "reference.txt"))
    bleu = sacrebleu.corpus_bleu(hypotheses, [references])
    assert system["precisions"] == pytest.approx(bleu.precisions)
    assert system["brevity_penalty"] == pytest.approx(bleu.bp) and 0.1 < bleu.bp < 0.9
    assert system["length_ratio"] == pytest.approx(bleu.sys_len / bleu.ref_len)
    mean = math.exp(sum(map(math.log, system["precisions"])) / 4)
    assert system["scores"][0]["value"] == pytest.approx(mean * system["brevity_penalty"])
    assert run("eval", *FILES) == 0
    table = capsys.readouterr().out
    precisions = " / ".join(f"{precision:.1f}" for precision in bleu.precisions)
    assert f"n-gram precisions {precisions}, brevity penalty {bleu.bp:.3f}, length ratio 0." in table


def test_captions_have_a_brevity_penalty(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "h.json").write_text(json.dumps({"1": "a dog", "2": "two cats"}))
    (tmp_path / "r.json").write_text(json.dumps({"1": ["a dog runs", "the old dog runs here"], "2": ["two cats sit"]}))
    files = [f"hypotheses={tmp_path / 'h.json'}", f"references={tmp_path / 'r.json'}"]
    report = evaluate(capsys, "task=captioning", *files)
    assert report["length_ratio"] == pytest.approx(4 / 6)
    assert report["brevity_penalty"] == pytest.approx(math.exp(1 - 6 / 4))
    assert run("eval", "task=captioning", *files) == 0
    assert "brevity penalty 0.607, length ratio 0.667" in capsys.readouterr().out


def test_counts_of_one_are_singular(tmp_path: Path, capsys: Capture) -> None:
    hypotheses, references = tmp_path / "h.json", tmp_path / "r.json"
    hypotheses.write_text(json.dumps({"1": "a dog"}))
    references.write_text(json.dumps({"1": ["a dog runs"]}))
    assert run("eval", "task=captioning", f"hypotheses={hypotheses}", f"references={references}") == 0
    assert re.search(r"\b1 image\b", capsys.readouterr().out)
    (tmp_path / "line").write_text("a dog\n")
    assert run("eval", f"hypotheses={tmp_path / 'line'}", f"references={tmp_path / 'line'}") == 0
    assert re.search(r"\b1 sentence\b", capsys.readouterr().out)


def test_tokenised_text_is_warned_of(files: Path, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the file, and the setting to change."""
    tokenised = ["hypotheses=reference.txt", *FILES[1:]]
    evaluate(capsys, *tokenised)
    assert caplog.messages == [
        "reference.txt looks tokenised (120 lines end in ' .'), but tokenize=13a expects untokenised text: "
        "detokenise it, or set tokenize=none if all texts are tokenised alike."
    ]
    caplog.clear()
    evaluate(capsys, *tokenised, "tokenize=none")
    evaluate(capsys, *FILES)
    assert caplog.messages == []


@pytest.mark.parametrize(("name", "additional"), [("text", set()), ("photos", {"hard_attention"})])
def test_the_report_names_checkpoint_and_decoding_settings(
    directory: Path, name: str, additional: set[str], capsys: Capture
) -> None:
    """The report names the checkpoint, not only its run, and every setting that affects decoding."""
    machine = ["device=cpu", "threads=1", "max_length=6"]
    report = evaluate(capsys, f"checkpoint=runs/{name}", *machine, "beam=2")
    assert report["checkpoints"] == [f"runs/{name}/checkpoints/step-0000001"]
    decoding = report["decoding"]
    assert (decoding["beam"], decoding["max_length"], decoding["precision"]) == (2, 6, "fp32")
    assert {"length_penalty", "length_alpha", "coverage_penalty", "min_length", *additional} <= decoding.keys()
    assert run("eval", f"checkpoint=runs/{name}", *machine, "beam=2") == 0
    checkpoint_line, decoding_line, *_ = capsys.readouterr().out.splitlines()
    assert checkpoint_line == f"Checkpoint: runs/{name}/checkpoints/step-0000001"
    assert re.match(r"Decoding: beam=2 length_penalty=\w+ ", decoding_line) and "top_p" not in decoding_line
    # The settings in the line are valid arguments.
    settings = decoding_line.removeprefix("Decoding: ").split()
    assert evaluate(capsys, f"checkpoint=runs/{name}", *machine[:2], *settings) == report
    assert run("eval", f"checkpoint=runs/{name}", *machine, "sample=true", "seed=3") == 0
    sampling_line = capsys.readouterr().out.splitlines()[1]
    assert "sample=true" in sampling_line and "seed=3" in sampling_line and "beam=" not in sampling_line


def test_every_checkpoint_is_opened_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    find = checkpoint.find
    monkeypatch.setattr(checkpoint, "find", lambda path, **options: opened.append(path) or find(path, **options))
    assert run("eval", "checkpoint=runs/text,runs/text", "device=cpu", "threads=1", "max_length=5", "bootstrap=0") == 0
    assert opened == ["runs/text", "runs/text"]


def test_scoring_files_does_not_import_torch(files: Path) -> None:
    """Importing torch would take longer than scoring."""
    call = f"main.run(['eval', *{FILES}], main.config_directory())"
    code = f"from seqtool.cli import main; import sys; sys.exit({call} or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


INPUT_SETTINGS = {
    "runs/text": ("sources", "references", "baseline", "gold"),
    "runs/photos": ("baseline", "document_frequencies"),
}
INPUTS = [(run_name, setting) for run_name, settings in INPUT_SETTINGS.items() for setting in settings]


@pytest.mark.parametrize(("run_name", "input_setting"), INPUTS)
def test_input_files_are_not_overwritten(
    directory: Path, tmp_path: Path, run_name: str, input_setting: str, capsys: Capture
) -> None:
    files = {setting: tmp_path / setting for setting in INPUT_SETTINGS[run_name]}
    for file in files.values():
        file.write_text("before\n")
    arguments = [f"{setting}={file}" for setting, file in files.items()]
    assert run("eval", f"checkpoint={run_name}", *arguments, f"output={files[input_setting]}") == 2
    message = f"output={files[input_setting]} is the same file as {input_setting}={files[input_setting]}, which is read"
    assert capsys.readouterr().err == f"seqtool: {message}: name another file to write to.\n"
    assert files[input_setting].read_text() == "before\n"


def test_document_frequencies_do_not_overwrite_references(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"1": ["a dog"]}')
    assert run("eval", "task=captioning", f"references={file}", f"save_document_frequencies={file}") == 2
    assert f"is the same file as references={file}, which is read" in capsys.readouterr().err
    assert file.read_text() == '{"1": ["a dog"]}'


@pytest.mark.parametrize("name", ["text", "photos"])
def test_unwritable_outputs_are_refused_before_decoding(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, capsys: Capture
) -> None:
    monkeypatch.setattr(Translator, "hypotheses", pytest.fail)
    monkeypatch.setattr(Captioner, "caption_each", pytest.fail)
    arguments = ["eval", f"checkpoint=runs/{name}", "device=cpu", "threads=1"]
    assert run(*arguments, f"output={tmp_path}/no/x") == 2
    assert f"{tmp_path}/no/x cannot be written: there is no directory" in capsys.readouterr().err
    assert run(*arguments, f"report={tmp_path}/no/x.html") == 2
    assert f"{tmp_path}/no/x.html cannot be written: there is no directory" in capsys.readouterr().err
    if name == "text":
        (tmp_path / "file").touch()
        assert run(*arguments, f"plot={tmp_path}/file") == 2
        assert (
            f"plot={tmp_path}/file cannot be used: {tmp_path}/file is a file, not a directory; name"
            in capsys.readouterr().err
        )


def test_finished_translations_are_kept_after_an_interrupt(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "lines").write_text("a cat\n" * 50)
    calls: list[list[str]] = []

    def hypotheses(self: Translator, lines: list[str], **_: Any) -> list[list[Any]]:
        calls.append(lines)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return [[SimpleNamespace(text="un gato")]] * len(lines)

    monkeypatch.setattr(Translator, "hypotheses", hypotheses)
    files = [f"sources={tmp_path}/lines", f"references={tmp_path}/lines", f"output={tmp_path}/out"]
    assert run("eval", "checkpoint=runs/text", *files, "batch_size=1", "device=cpu", "threads=1") == 130
    assert f"Stopped: {tmp_path}/out.partial has what is finished, 32 lines." in capsys.readouterr().err
    assert (tmp_path / "out.partial").read_text() == "un gato\n" * 32 and not (tmp_path / "out").exists()


def test_systems_with_equal_file_names_are_both_drawn(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other").mkdir()
    Path("baseline.txt").rename("other/system.txt")
    figures: list[dict[str, Any]] = []
    monkeypatch.setattr(plots, "bleu_by_length", lambda systems, path, **_: figures.append(systems))
    assert run("eval", *FILES, "baseline=other/system.txt", "plot=figures") == 0
    assert run("eval", *FILES, "baseline=reference.txt", "plot=figures") == 0
    assert [list(systems) for systems in figures] == [["system.txt", "other/system.txt"], ["system", "reference"]]


def test_alignments_may_be_of_hypotheses_or_references(files: Path, capsys: Capture) -> None:
    """The link 2-2 exceeds the two words of the reference, but not the three words of the hypothesis."""
    names = ("source.txt", "system.txt", "reference.txt", "links", "gold")
    for name, text in zip(names, ("I do not", "no lo hago", "yo no", "0-0 2-2", ""), strict=True):
        Path(name).write_text(text + "\n")
    assert evaluate(capsys, *FILES, "alignments=links", "gold=gold")["alignment"]["aer"] == 1


def test_a_split_without_sentences_is_refused() -> None:
    """Only a user-defined corpus can have one; files and the built-in corpora cannot be empty."""
    corpus = SimpleNamespace(splits=lambda: ("test",), pairs=lambda split: iter(()), alignments=lambda split: None)
    data: Any = SimpleNamespace(corpus=lambda kind, predictor: corpus, check_files=lambda corpus: None)
    translator: Any = None
    with pytest.raises(InputError, match=r"^The split 'test' has no sentences: there is nothing to score\.$"):
        translations.TranslationEvaluator(evaluation_settings()).test_set(translator, data)


REFUSALS = {
    "checkpoint=runs/photos references={}": "references=FILE needs hypotheses=FILE: with checkpoint=PATH, a split "
    "of the data is scored.",
    "checkpoint=runs/text testset=wmt14/full langpair=en-de sources={} references={}": "testset=NAME has its own "
    "texts: leave sources= and references= out.",
    "checkpoint=runs/text sources={} references={} split=valid": "sources= is scored instead of a split: leave split= "
    "out.",
    "checkpoint=runs/text testset=wmt14/full langpair=en-de data=toy split=valid": "testset= is scored instead of a "
    "split: leave data= and split= out.",
    "checkpoint=runs/text length_bins=[]": "length_bins must be one or more lengths from 1, in rising order, not [].",
    "hypotheses={} references={} scores=user_scores.Words,more_scores.Words": "scores=more_scores.Words: the "
    "report already has a score 'Words'. Rename the class.",
    "hypotheses={} references={} scores=user_scores.BLEU": "scores=user_scores.BLEU: the report already has a "
    "score 'BLEU'. Rename the class.",
    "task=captioning hypotheses={} references={} scores=user_scores.cider": "scores=user_scores.cider: the report "
    "already has a score 'cider'. Rename the class.",
}


@pytest.fixture
def user_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's modules `user_scores` and `more_scores`, with the same metrics."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("user_scores", "more_scores"):
        (tmp_path / f"{name}.py").write_text(
            "import numpy as np\nfrom seqtool.metrics.scores import Metric\n"
            "class Words(Metric):\n"
            "    statistics = lambda self, lines: np.array([[len(line.split())] for line in lines])\n"
            "    score = lambda self, statistics: statistics.mean()\n"
            "class Nothing(Words):\n    score = lambda self, statistics: np.nan\n"
            "class BLEU(Words): pass\nclass cider(Words): pass\n"
            "def words(references, **options): return Words(references, name='words')\n"
        )


@pytest.mark.parametrize("settings", REFUSALS)
def test_settings_that_do_not_fit_are_refused(
    directory: Path, tmp_path: Path, user_scores: None, settings: str, capsys: Capture
) -> None:
    (tmp_path / "text").write_text("a cat\n")
    assert run("eval", *settings.format(*[tmp_path / "text"] * 2).split()) == 2
    assert capsys.readouterr() == ("", f"seqtool: {REFUSALS[settings]}\n")


def test_captions_may_have_user_scores(tmp_path: Path, user_scores: None, capsys: Capture) -> None:
    """User scores have signatures, and NaN becomes null in JSON."""
    file = tmp_path / "captions.json"
    file.write_text('{"1": "a dog runs", "2": "two cats"}')
    settings = ["task=captioning", f"hypotheses={file}", f"references={file}", "bootstrap=2"]
    settings.append("scores=user_scores.Words,user_scores.Nothing,user_scores.Words")
    report = evaluate(capsys, *settings)
    assert report["signatures"] == {"Words": "metric:user_scores.Words", "Nothing": "metric:user_scores.Nothing"}
    assert report["Words"] == 2.5 and report["Nothing"] is None and report["intervals"]["Nothing"]["low"] is None
    assert run("eval", *settings) == 0
    assert "\nWords: metric:user_scores.Words\n" in capsys.readouterr().out
    assert run("eval", *settings, "format=jsonl") == 0
    assert [json.loads(line)["scores"]["Nothing"] for line in capsys.readouterr().out.splitlines()] == [None, None]


@pytest.mark.parametrize("task", ["translation", "captioning"])
def test_user_metrics_are_in_every_output_format(
    task: str, tmp_path: Path, user_scores: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A metric is a line in the table of scores, or is chosen by its dotted name. Both have signatures."""
    info = MetricInfo("words", "words written", task=task, digits=1, scorer="user_scores:words", title="Words written")
    monkeypatch.setitem(SCORES, info.name, info)
    (tmp_path / "lines").write_text("a dog\ntwo old cats\n")
    (tmp_path / "captions").write_text('{"1": "a dog", "2": "two old cats"}')
    file = tmp_path / ("captions" if task == "captioning" else "lines")
    files = [f"hypotheses={file}", f"references={file}", f"baseline={file}", "bootstrap=2"]
    settings = [f"task={task}", *files, "scores=user_scores.Words"]
    pages: list[Any] = []
    monkeypatch.setattr(report, "write", lambda file, page, details: pages.append(page))
    record = evaluate(capsys, *settings, "report=page.html")
    signatures = {"words written": "metric:words", "Words": "metric:user_scores.Words"}
    if task == "captioning":
        assert record["words written"] == record["Words"] == 2.5 and record["signatures"] == signatures
    else:
        scores = {score["name"]: (score["value"], score["signature"]) for score in record["system"]["scores"]}
        assert {name: scores[name] for name in signatures} == {name: (2.5, text) for name, text in signatures.items()}
    assert {*signatures} < {difference["name"] for difference in record["comparison"]["differences"]}
    assert "Words written" in json.dumps(pages)
    assert run("eval", *settings) == 0
    assert re.search(r"words written[ |]+2\.5", capsys.readouterr().out)
    assert run("eval", *settings, "format=jsonl") == 0
    lines = [json.loads(line)["scores"] for line in capsys.readouterr().out.splitlines()]
    assert [(scores["words written"], scores["Words"]) for scores in lines] == [(2, 2), (3, 3)]


def test_long_lines_are_cut_with_a_warning(directory: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "lines").write_text("a\n" + "cat " * 20 + "\n")
    files = [f"sources={tmp_path}/lines", f"references={tmp_path}/lines"]
    assert run("eval", "checkpoint=runs/text", *files, "max_source_length=5", "device=cpu", "threads=1") == 0
    error = capsys.readouterr().err
    assert re.search(r"Line 2 has \d+ tokens: only the first 4 are translated \(max_source_length=5\)\.", error)
    assert "Line 1 " not in error


def test_a_line_may_have_more_tokens_than_characters(capsys: Capture) -> None:
    """The initial ▁ is a token, and NFKC turns the character of line 3 into 18."""
    vocabulary = train(["a b c d e f g h"], VocabularySettings("char", 13, 1, None, "nfkc", False, None))
    settings = SimpleNamespace(max_source_length=None)
    translator: Any = SimpleNamespace(settings=settings, source_length=8, max_positions=None)
    lines = ["abcdef", "abcdefg", "\ufdfa"]
    sources = [EncodedText(line, vocabulary.encode(line), vocabulary) for line in lines]
    Translator.warn_of_cut(translator, sources, 3)
    warnings = re.findall(r"Line (\d) has (\d+) tokens: only the first 7 are", capsys.readouterr().err)
    assert warnings[0] == ("4", "8") and [line for line, _ in warnings] == ["4", "5"]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """There is no network, and sacreBLEU's directory for test sets is empty; return that of WMT14."""
    with socket.socket() as closed:  # after it is closed, nothing listens on its port
        closed.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, proxy)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(urllib.request, "_opener", None)  # an existing opener would keep its proxies
    directory = tmp_path / "wmt14" / "full"
    monkeypatch.setattr(sacrebleu.utils, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(sacrebleu.DATASETS["wmt14/full"], "_outdir", str(directory))
    monkeypatch.setattr(sacrebleu.DATASETS["wmt14/full"], "_rawdir", str(directory / "raw"))
    return directory


@pytest.mark.parametrize("name", ["captions.json", "captions.json.gz"])
def test_captions_are_not_scored_as_translations(tmp_path: Path, name: str, capsys: Capture) -> None:
    file = tmp_path / name
    content = b'[{"image_id": 1, "caption": "a cat"}]'
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert run("eval", f"hypotheses={file}", f"references={file}") == 2
    assert f"hypotheses={file} contains captions: add task=captioning, or" in capsys.readouterr().err


def test_a_missing_test_set_is_explained_without_a_network(directory: Path, offline: Path, capsys: Capture) -> None:
    """The message names the address, and the files for the text; if these exist, they are used."""
    arguments = ["eval", "checkpoint=runs/text", "testset=wmt14/full", "langpair=en-de", "device=cpu", "threads=1"]
    assert run(*arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    source, reference = (offline / f"wmt14_full.en-de.{side}" for side in ("src", "ref"))
    assert error == (
        "seqtool: testset=wmt14/full cannot be downloaded from https://statmt.org/wmt14/test-full.tgz ("
        f"Connection refused): put its text, one sentence per line, into {source} and {reference}."
    )
    source.write_text("a small cat\n" * 3)
    reference.write_text("eine kleine Katze\n" * 3)
    assert run(*arguments, "max_length=5", "format=json") == 0
    assert json.loads(capsys.readouterr().out)["system"]["sentences"] == 3


def test_ter_may_be_left_out(files: Path, capsys: Capture) -> None:
    system = evaluate(capsys, *FILES, "ter=false")["system"]
    assert [score["name"] for score in system["scores"]] == ["BLEU", "chrF2"]


def test_jsonl_lists_the_scores_of_each_line(files: Path, capsys: Capture) -> None:
    assert run("eval", *FILES, "baseline=baseline.txt", "format=jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["line"] for line in lines] == list(range(1, 121))
    texts = [Path(name).read_text().splitlines() for name in ("system.txt", "reference.txt", "baseline.txt")]
    for line, system, reference, baseline in zip(lines, *texts, strict=True):
        assert line["hypothesis"] == system and line["references"] == [reference]
        assert line["baseline"]["hypothesis"] == baseline
        assert line["scores"]["chrF2"] == sacrebleu.sentence_chrf(system, [reference]).score
        assert line["baseline"]["scores"]["TER"] == sacrebleu.sentence_ter(baseline, [reference]).score


def test_further_systems_are_in_the_same_figure(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    curves: dict[str, Any] = {}
    monkeypatch.setattr(plots, "bleu_by_length", lambda systems, path, **_: curves.update(systems))
    Path("third.txt").write_text(Path("reference.txt").read_text())
    assert run("eval", *FILES, "baseline=baseline.txt", "beside=third.txt", "plot=figures") == 0
    assert list(curves) == ["system", "baseline", "third"]
    assert [group.bleu.value for group in curves["third"] if group.bleu] == pytest.approx([100.0] * 2)
    capsys.readouterr()
    assert run("eval", *FILES, "beside=third.txt") == 2
    assert capsys.readouterr().err == "seqtool: beside=FILE needs plot=DIR or report=FILE.html.\n"
