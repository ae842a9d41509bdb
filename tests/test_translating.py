"""Tests of translate, eval, inspect and the Python API, with models that are trained for this module."""

import contextlib
import gzip
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from threading import Timer
from typing import Any

import pytest
import torch
from PIL import Image
from processes import Command
from safetensors.torch import load_file
from small_models import copy_with_fast_parts, make_model, random_sentences

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import make_source, make_target
from seqtool.decoding.batching import DecodeSettings, decode, encoded_sentences
from seqtool.errors import InputError
from seqtool.models.fast.decoding import optimise_for_decoding
from seqtool.models.fast.packed import PackedLinear
from seqtool.predict.translator import Translator
from seqtool.runtime.files import config_directory
from seqtool.runtime.precision import autocast, onednn
from seqtool.training import checkpoint

SETTINGS = ["data.train=3000", "data.valid=50", "data.test=60", "data.processes=1", "device=cpu", "train.minutes=null"]
COMMAND = [sys.executable, "-m", "seqtool"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(seqtool.__file__).parents[1]), "TERM": "xterm"}
TRANSLATE = ["translate", "checkpoint=runs/attend", "device=cpu", "threads=1"]
SIZES = ["embedding=32", "encoder_hidden=32", "decoder_hidden=64", "alignment=32", "maxout=32"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with `runs/attend` and `runs/fixed`, trained on a little of the built-in corpus."""
    directory = tmp_path_factory.mktemp("workspace")
    with contextlib.chdir(directory):
        sizes = [f"model.{size}" for size in SIZES]
        assert run("train", *SETTINGS, *sizes, "run=attend", "train.epochs=6", "optim.lr=0.005") == 0
        fixed = ["model=sutskever", "model.hidden=32", "model.embedding=32", "run=fixed", "train.epochs=1"]
        assert run("train", *SETTINGS, *fixed) == 0
        yield directory


def run(*arguments: str) -> int:
    return cli.run(list(arguments), config_directory())


@pytest.fixture
def sentences(workspace: Path) -> list[str]:
    cache = next((workspace / "cache").glob("toy-*/"))
    return (cache / "test.source.txt").read_text().splitlines()


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes standard input a pipe with the bytes that it is called with."""
    streams: list[io.TextIOWrapper] = []

    def fill(content: bytes) -> None:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        streams.append(io.TextIOWrapper(os.fdopen(read, "rb")))
        monkeypatch.setattr(sys, "stdin", streams[-1])

    yield fill
    for stream in streams:
        stream.close()


def test_each_line_gives_a_line(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty lines stay empty, the order is kept, and nothing else is on standard output."""
    stdin(b"I have a big cat.\n\nShe sees the house.\n  \nNo newline at the end.")
    assert run("translate", "checkpoint=runs/attend") == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 6 and lines[5] == ""
    assert lines[1] == "" and lines[3] == ""
    assert all(lines[i] for i in (0, 2, 4))


def test_min_length_applies_to_short_sources(workspace: Path) -> None:
    """By default, a translation has at most three times the tokens of its source plus ten."""
    translator = seqtool.load("runs/attend", min_length=50, max_length=60)
    assert isinstance(translator, Translator)
    assert all(len(best.pieces) >= 49 for (best,) in translator.hypotheses(["I see.", "I have a big cat."]))


@pytest.mark.parametrize("checkpoint", ["runs/attend", "runs/attend,runs/fixed"])
@pytest.mark.parametrize("settings", [{"beam": 4}, {"sample": True, "top_k": 5}], ids=["beam", "sample"])
def test_translations_begin_with_their_prefixes(
    workspace: Path, sentences: list[str], checkpoint: str, settings: dict[str, Any]
) -> None:
    """The text after a prefix has its probability by forced decoding, whatever the prefixes of other sentences are."""
    translator = seqtool.load(checkpoint.split(","), device="cpu", max_length=30, **settings)
    assert isinstance(translator, Translator)
    prefixes = ["", "El", "La casa", "Tengo un gato grande y", "No"] * 4
    hypotheses = [hypothesis for (hypothesis,) in translator.hypotheses(sentences[:20], prefixes=prefixes)]
    assert all(hypothesis.text.startswith(prefix) for hypothesis, prefix in zip(hypotheses, prefixes, strict=True))
    pieces_of, compared = translator.target_vocabulary.pieces, 0
    for sentence, prefix, hypothesis in zip(sentences, prefixes, hypotheses, strict=False):
        length = len(pieces_of(prefix))
        assert hypothesis.pieces[:length] == pieces_of(prefix) and len(hypothesis.pieces) < 31
        if hypothesis.ended and pieces_of(hypothesis.text) == hypothesis.pieces:
            (forced,) = translator.forced([sentence], [hypothesis.text])
            assert forced.log_probabilities is not None
            assert sum(forced.log_probabilities[length:]) == pytest.approx(hypothesis.log_probability, abs=1e-3)
            compared += 1
    assert compared >= 10
    if not settings.get("sample"):
        for i in (1, 3):
            assert translator.hypotheses([sentences[i]], prefixes=[prefixes[i]])[0][0].text == hypotheses[i].text


def test_prefixes_are_read_from_a_file(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lines in (("three", "El\n\nNo\n"), ("two", "El\nNo\n"), ("input", "I see.\nShe sees.\n\n")):
        (workspace / f"{name}.txt").write_text(lines)
    command = ["translate", "checkpoint=runs/attend", "device=cpu"]
    assert run(*command, "input=input.txt", "prefix=three.txt") == 0
    output = capsys.readouterr().out
    first, second, third = output.splitlines()
    assert first.startswith("El") and second and third == ""
    stdin(b"I see.\nShe sees.\n\n")
    assert run(*command, "prefix=three.txt") == 0
    assert capsys.readouterr().out == output
    for arguments, message in (
        (
            ["input=input.txt", "prefix=two.txt"],
            "prefix=two.txt has 2 lines but the input has 3: it must have as many.",
        ),
        (["input=input.txt", "prefix=none.txt"], "none.txt does not exist."),
        (["input=input.txt", "prefix=three.txt", "output=three.txt"], "is the same file as prefix=three.txt"),
        (["input=input.txt", "prefix=three.txt", "max_length=2"], "but a translation has at most max_length=2"),
    ):
        assert run(*command, *arguments) == 2
        assert message in capsys.readouterr().err
    translator = seqtool.load("runs/attend", device="cpu")
    assert isinstance(translator, Translator)
    for prefixes in (["El"], "El"):
        with pytest.raises(InputError, match="There must be a prefix for each of the 2 sentences"):
            translator.hypotheses(["I see.", "She sees."], prefixes=prefixes)
    stdin(b"I see.\nShe sees.\n\n")
    assert run(*command, "prefix=two.txt") == 2
    assert "prefix=two.txt has only 2 lines: the input has 3 or more." in capsys.readouterr().err


def test_each_line_and_each_prefix_is_tokenised_once(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens also serve for counts, warnings and output."""
    tokenised_texts: list[str] = []
    kind = type(seqtool.load("runs/attend", device="cpu").source_vocabulary)
    encode = kind.encode_batch
    monkeypatch.setattr(kind, "encode_batch", lambda self, texts: tokenised_texts.extend(texts) or encode(self, texts))
    lines, prefixes = ["I have a cat.", "字 sees the house."], ["Tengo", "La casa"]
    for name, texts in (("lines", lines), ("prefixes", prefixes)):
        Path(f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    files = ["input=lines.txt", "prefix=prefixes.txt", "output=out.jsonl", "format=jsonl", "weights=true"]
    assert run(*TRANSLATE, *files, "max_source_length=4") == 0
    assert sorted(tokenised_texts) == sorted([*lines, *prefixes])


def test_a_checkpoint_is_read_once(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command, and `load` in a notebook, reads the checkpoint once."""
    read, paths = checkpoint.read, []

    def record_and_read(path: Path, purpose: str) -> checkpoint.Checkpoint:
        if purpose != "record":
            paths.append(path)
        return read(path, purpose)

    monkeypatch.setattr(checkpoint, "read", record_and_read)
    Path("in.txt").write_text("I have a cat.\n")
    pairs = ["sources=in.txt", "references=in.txt", "device=cpu"]
    for read_checkpoints in (
        lambda: seqtool.load(["runs/attend", "runs/fixed"], device="cpu"),
        lambda: run(*TRANSLATE, "input=in.txt", "output=out.txt"),
        lambda: run("score", "checkpoint=runs/attend", *pairs),
        lambda: run("eval", "checkpoint=runs/attend", "bootstrap=2", *pairs),
    ):
        paths.clear()
        read_checkpoints()
        assert paths and len(paths) == len(set(paths))


def test_no_input_gives_no_output(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The input may be a pipe or a file."""
    stdin(b"")
    assert run("translate", "checkpoint=runs/attend") == 0
    assert capsys.readouterr().out == ""
    Path("nothing.txt").write_bytes(b"")
    Path("nothing.gz").write_bytes(gzip.compress(b""))
    for name in ("nothing.txt", "nothing.gz"):
        assert run("translate", "checkpoint=runs/attend", f"input={name}", "output=written.txt") == 0
        assert Path("written.txt").read_bytes() == b""


def test_files_and_pipes_give_the_same_translations(
    workspace: Path, sentences: list[str], stdin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in put (1).txt").write_text("\n".join(sentences) + "\n")
    assert run("translate", "checkpoint=runs/attend", "input=in put (1).txt", "output=out=ü,#1.txt") == 0
    stdin(("\n".join(sentences) + "\n").encode())
    capsys.readouterr()
    assert run("translate", "checkpoint=runs/attend") == 0
    assert Path("out=ü,#1.txt").read_text() == capsys.readouterr().out
    assert seqtool.load("runs/attend").translate(sentences) == Path("out=ü,#1.txt").read_text().splitlines()


def test_lines_are_translated_while_the_input_is_open(workspace: Path) -> None:
    process = Command(["translate", "checkpoint=runs/attend"], stdin=PIPE, stdout=PIPE, text=True)
    with process:
        assert process.stdin is not None and process.stdout is not None
        for line in ("I have a cat.", "", "She sees the house."):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert bool(process.stdout.readline().strip()) == bool(line)
        process.stdin.close()
    assert process.returncode == 0


class Typist:
    """A command that runs on a terminal. Its standard output may be another file descriptor."""

    def __init__(self, *arguments: str, stdout: int | None = None) -> None:
        self.terminal, command_end = pty.openpty()
        output = command_end if stdout is None else stdout
        streams = {"stdin": command_end, "stdout": output, "stderr": command_end}
        self.process = Command(arguments, **streams, env={"TERM": "xterm"}, leads_session=True)
        os.close(command_end)

    def read(self, end: bytes = b"") -> bytes:
        """Return what appears on the terminal until `end` appears or the command ends."""
        output = b""
        with suppress(OSError):  # the command has left the terminal
            while not end or end not in output:
                assert select.select([self.terminal], [], [], 20)[0], output
                if not (chunk := os.read(self.terminal, 4096)):
                    break
                output += chunk
        return output

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def status(self) -> int:
        return self.process.wait(60)

    def __enter__(self) -> "Typist":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


def test_lines_are_typed_and_edited_at_a_prompt(workspace: Path, tmp_path: Path) -> None:
    """Lines can be edited and recalled, and Ctrl-D ends the input. Standard output has only the translations, and no
    history is written to a file.
    """
    pytest.importorskip("readline")
    sentences = ["I have a cät.", "I have a big cät."]
    with (tmp_path / "out.txt").open("w") as out, Typist(*TRANSLATE, stdout=out.fileno()) as typist:
        assert b"> " in typist.read(b"> ")
        typist.type("I have a cärr\x7f\x7ft.\n")
        typist.read(b"> ")
        typist.type("\x1b[A" + "\x02" * 4 + "big \n")  # recalls the previous line, and moves back by four characters
        typist.read(b"> ")
        typist.type("\x04")
        assert typist.status() == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == seqtool.load("runs/attend").translate(sentences)
    assert not [path for path in Path().iterdir() if "history" in path.name]


def test_ctrl_c_at_the_prompt_stops_the_command(workspace: Path) -> None:
    with Typist(*TRANSLATE) as typist:
        typist.read(b"> ")
        typist.type("I have")
        typist.read(b"have")
        time.sleep(0.5)  # Python's readline misses a Ctrl-C in the same instant as another key, until the next key
        typist.type("\x03")
        assert typist.status() == 130
        assert not re.search(rb"[A-Z]", typist.read())


def test_ctrl_c_stops_a_command_that_reads_a_pipe(workspace: Path) -> None:
    with Command(TRANSLATE, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"I have a cat.\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == process.stderr.read() == b""


def test_a_terminal_shows_no_progress_among_translations(workspace: Path) -> None:
    Path("in.txt").write_text("I have a cat.\n" * 3)
    with Typist(*TRANSLATE, "input=in.txt") as typist:
        output = typist.read()
        assert typist.status() == 0
    assert output.count(b"\n") == 3 and b"line" not in output


def test_a_log_has_little_progress(workspace: Path, sentences: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    assert run(*TRANSLATE, "input=in.txt", "output=out.txt") == 0
    lines = re.split("[\r\n]+", capsys.readouterr().err.strip())
    assert 0 < len(lines) < 4 and "100%" in lines[-1] and "60/60" in lines[-1]


def test_output_may_be_the_name_of_a_pipe(workspace: Path, tmp_path: Path) -> None:
    """/dev/stdout is the name of a pipe, for example."""
    read, write = os.pipe()
    link = tmp_path / "stdout"
    link.symlink_to(f"/proc/self/fd/{write}")
    (tmp_path / "in.txt").write_text("I have a cat.\n")
    assert run(*TRANSLATE, f"input={tmp_path}/in.txt", f"output={link}") == 0
    os.close(write)
    with os.fdopen(read) as stream:
        assert len(stream.readlines()) == 1


def test_unfit_output_files_are_refused(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("I have a cat.\n")
    (tmp_path / "out.txt").write_text("before")
    assert run(*TRANSLATE, f"input={tmp_path}/in.txt", f"output={tmp_path}/out.txt.gz") == 2
    assert "out.txt.gz would be plain text under the name of a compressed file" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root it is always true
    assert run(*TRANSLATE, f"input={tmp_path}/in.txt", f"output={tmp_path}/out.txt") == 2
    assert "out.txt cannot be written: permission denied (chmod u+w " in capsys.readouterr().err
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["in.txt", "out.txt"]
    assert (tmp_path / "out.txt").read_text() == "before"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_stopped_command_keeps_what_is_finished(workspace: Path, tmp_path: Path, number: int) -> None:
    """The output file that existed before is unchanged."""
    output, links = tmp_path / "out.txt", tmp_path / "links"
    output.write_text("before")
    os.mkfifo(links)
    arguments = [*TRANSLATE, f"output={output}", f"alignments={links}"]
    with Command(arguments, stdin=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write("I have a cat.\nShe sees the house.\n")
        process.stdin.flush()
        limit = Timer(60, process.kill)
        limit.start()
        with links.open() as stream:
            assert stream.readline() and stream.readline()
            limit.cancel()
            process.send_signal(number)
            assert process.wait(60) == 128 + number
        partial = tmp_path / "out.txt.partial"
        message = f"Stopped: {partial} has what is finished, 2 lines; {output} is unchanged.\n"
        assert process.stderr.read() == message
    expected = seqtool.load("runs/attend").translate(["I have a cat.", "She sees the house."])
    assert partial.read_text().splitlines() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "out.txt", "out.txt.partial"]
    assert output.read_text() == "before"


@pytest.mark.parametrize("name", ["attend", "fixed"])
def test_bf16_changes_probabilities_only_a_little(workspace: Path, sentences: list[str], name: str) -> None:
    exact = seqtool.load(f"runs/{name}", device="cpu", precision="fp32")
    rounded = seqtool.load(f"runs/{name}", device="cpu", precision="bf16")
    targets = exact.translate(sentences)
    nats = [model.score(sentences, targets) for model in (exact, rounded)]
    assert nats[0] != nats[1] and nats[1] == pytest.approx(nats[0], rel=0.05, abs=0.1)
    n_best_lists = [model.hypotheses(sentences[:9]) for model in (exact, rounded)]
    exact_log_p, rounded_log_p = ([n_best[0].log_probability for n_best in lists] for lists in n_best_lists)
    assert exact_log_p != rounded_log_p
    with pytest.raises(InputError, match=r"^precision=fp16 needs a GPU; on a CPU use precision=bf16 or fp32\.$"):
        seqtool.load(f"runs/{name}", device="cpu", precision="fp16")


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
@torch.no_grad()
def test_a_model_optimised_for_decoding_gives_the_same_features(
    precision: str, dtype: torch.dtype, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packs:
        monkeypatch.setattr(PackedLinear, "supports", lambda dtype: False)
    elif not PackedLinear.supports(dtype):
        pytest.skip("torch has no oneDNN for this type here")
    cpu = torch.device("cpu")
    model = copy_with_fast_parts(make_model("bahdanau-gru").eval())
    source, target = make_source(random_sentences(5, seed=1)), make_target(random_sentences(5, seed=2))
    with autocast(cpu, precision), onednn():
        expected = model(source, target).features
        decoder = optimise_for_decoding(model, precision, cpu)
        output, actual = decoder.output, decoder(source, target).features
    assert isinstance(output, PackedLinear) == packs and (output.matrix if packs else output.weight).dtype == dtype
    assert torch.allclose(actual, expected, rtol=0, atol=2**-5 if packs and precision == "bf16" else 1e-6)  # rounding


@pytest.mark.parametrize(
    ("settings", "sources_per_batch"),
    [({"beam": 1}, 320), ({}, 64), ({"beam": 500}, 1), ({"sample": True, "n_best": 10}, 32), ({"batch_size": 7}, 7)],
)
def test_a_batch_has_at_most_320_hypotheses(workspace: Path, settings: dict[str, Any], sources_per_batch: int) -> None:
    assert seqtool.load("runs/attend", device="cpu", **settings).settings.sources_per_batch == sources_per_batch


@pytest.mark.parametrize("name", ["attend", "fixed"])
def test_batch_size_and_order_change_nothing(workspace: Path, name: str) -> None:
    """210 sentences of random words get the same words, except for ties, and scores within 1e-5 relative."""
    translator = seqtool.load(f"runs/{name}", device="cpu", max_length=40)
    generator = torch.Generator().manual_seed(0)
    size = len(translator.source_vocabulary)
    lengths = torch.randint(1, 25, (210,), generator=generator).tolist()
    sources = [torch.randint(4, size, (length,), generator=generator).tolist() for length in lengths]
    shuffled = torch.randperm(210, generator=generator).tolist()

    def translate(order: list[int], beam: int, batch_size: int) -> list[tuple[list[int], float]]:
        settings = DecodeSettings(**{**vars(translator.settings), "beam": beam, "batch_size": batch_size})
        ordered = [sources[i] for i in order]
        options = {"device": translator.device, "keep_attention": False}
        n_best_lists = decode(translator.model, encoded_sentences(ordered), settings, **options)
        best = {i: (n_best[0].tokens, n_best[0].score) for i, n_best in zip(order, n_best_lists, strict=True)}
        return [best[i] for i in range(len(order))]

    for beam, count in ((1, 210), (5, 210)):
        expected = translate(list(range(count)), beam, 64)
        order = [i for i in shuffled if i < count]
        ties = 0
        for actual in (translate(order, beam, 7), translate(order, beam, 200)):
            for (tokens, score), (actual_tokens, actual_score) in zip(expected, actual, strict=True):
                assert actual_score == pytest.approx(score, rel=1e-5)
                ties += tokens != actual_tokens  # equal scores, so a tie
        assert ties <= 2


def test_a_long_line_is_cut_with_a_warning(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(b"I have a cat.\n" + b"the cat and " * 60 + b"the cat.\nI have a cat.\n")
    assert run("translate", "checkpoint=runs/attend", "max_length=30") == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 3
    warning = "Line 2 has 243 tokens: only the first 199 are translated (max_source_length=200)."
    assert warning in captured.err


def test_json_lines_have_all_fields(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(b"I have a big cat.\n\n")
    assert run("translate", "checkpoint=runs/attend", "format=jsonl", "n_best=3", "beam=3") == 0
    first, empty = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["source"] == "I have a big cat." and len(first["translations"]) == 3
    best = first["translations"][0]
    assert best["ended"] is True
    assert "".join(best["tokens"]).replace("▁", " ").strip() == best["text"]
    assert best["score"] == pytest.approx(best["log_probability"] / (len(best["tokens"]) + 1), rel=1e-4)
    assert best["alignment"].split()
    assert best["source_words"] == first["source"].split() and best["words"] == best["text"].split()
    no_translation = {"text": "", "score": 0.0, "log_probability": 0.0, "ended": True, "tokens": [], "alignment": None}
    assert empty["translations"] == [{**no_translation, "source_words": [], "words": []}]


def test_alignments_are_drawn_in_the_terminal(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With format=grid, a line, its translation and their grid follow one another; an empty line has no grid."""
    lines = b"I have a big cat.\n\n"
    stdin(lines)
    assert run("translate", "checkpoint=runs/attend", "format=grid") == 0
    source, text, blank, head, *rows = capsys.readouterr().out.splitlines()
    stdin(lines)
    assert run("translate", "checkpoint=runs/attend") == 0
    assert [source, text, blank] == ["I have a big cat.", capsys.readouterr().out.splitlines()[0], ""]
    words = text.split()
    assert head.split() == source.split()
    assert [row.split()[0] for row in rows[: len(words)]] == words
    assert any(set(row) & set("░▒▓█") for row in rows[: len(words)])
    assert set(rows[len(words) :]) == {""}
    assert run("translate", "checkpoint=runs/fixed", "format=grid") == 2
    assert "format=grid needs a model with attention" in capsys.readouterr().err


def test_n_best_lists_are_written_as_text(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(b"I have a big cat.\nShe sees the house.\n")
    assert run("translate", "checkpoint=runs/attend", "n_best=2", "beam=4") == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1"]
    assert float(rows[0][2]) >= float(rows[1][2])


def test_unended_translations_are_marked(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """An n-best list has a fourth field for them, and JSON a field. Their length is max_length."""
    settings = [*TRANSLATE, "n_best=5", "min_length=3", "max_length=3"]
    stdin(b"I have.\nThe dog and the cat.\n")
    assert run(*settings) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    stdin(b"I have.\nThe dog and the cat.\n")
    assert run(*settings, "format=jsonl") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    translations = [translation for record in records for translation in record["translations"]]
    assert [row[3:] for row in rows] == [[] if translation["ended"] else ["not ended"] for translation in translations]
    ended = [len(translation["tokens"]) for translation in translations if translation["ended"]]
    assert {len(translation["tokens"]) for translation in translations if not translation["ended"]} == {3}
    assert ended == [2] * len(ended)


def test_alignments_and_their_pictures_are_written(
    workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(b"I have a big cat.\n\nShe sees the house.\n")
    assert run("translate", "checkpoint=runs/attend", "alignments=links.txt", "plot=pictures", "beam=5") == 0
    lines = Path("links.txt").read_text().split("\n")
    assert capsys.readouterr().err.endswith("The figures are in pictures.\n")
    assert len(lines) == 4 and lines[1] == ""
    assert all(0 <= int(link.split("-")[0]) < 5 for link in lines[0].split())
    names = sorted(path.name for path in Path("pictures").iterdir())
    assert names == ["alignment-0001.png", "alignment-0003.png"]
    with Image.open("pictures/alignment-0001.png") as picture:
        assert picture.width > 100 and len(set(picture.convert("L").tobytes())) > 10


def test_a_model_without_attention_has_no_alignments(
    workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin(b"I have a cat.\n")
    assert run("translate", "checkpoint=runs/fixed", "alignments=none.txt") == 2
    assert "alignments=… needs a model with attention" in capsys.readouterr().err
    assert not Path("none.txt").exists()


def test_unknown_words_are_replaced(workspace: Path) -> None:
    """With a vocabulary of words, an unknown target word becomes the source word that it attends to."""
    from seqtool.data.text.vocabulary import Form, WordVocabulary

    attend = seqtool.load("runs/attend", device="cpu")
    words = WordVocabulary(["▁I", "▁have", "▁a", "."], Form("word", "nfc", lowercase=False))
    model: Any = attend.model
    translator = Translator(
        [model],
        source_vocabulary=words,
        target_vocabulary=words,
        device=torch.device("cpu"),
        settings=attend.settings,
        config=attend.config,
    )
    with torch.no_grad():
        bias = model.output.bias.clone()
        model.output.bias[1] += 1e4  # now the model writes only unknown words
    try:
        plain = translator.hypotheses(["I have a Zebra."])[0][0].text
        replaced = translator.hypotheses(["I have a Zebra."], replace_unknown=True)[0][0].text
    finally:
        with torch.no_grad():
            model.output.bias.copy_(bias)
    assert "⁇" in plain
    assert "⁇" not in replaced and set(replaced.replace(".", " .").split()) <= {"I", "have", "a", "Zebra", "."}


def test_the_python_api_scores_its_own_translations(workspace: Path, sentences: list[str]) -> None:
    translator = seqtool.load("runs/attend", beam=3, n_best=3)
    for sentence, n_best in zip(sentences, translator.hypotheses(sentences[:5]), strict=False):
        scores = translator.score([sentence] * 3, [hypothesis.text for hypothesis in n_best])
        for hypothesis, score in zip(n_best, scores, strict=True):
            if translator.target_vocabulary.pieces(hypothesis.text) == hypothesis.pieces:  # as tokenised by score
                assert score == pytest.approx(hypothesis.log_probability, rel=1e-3)
    with pytest.raises(InputError, match=r"must have the same length, not 2 and 1: give one target per source\."):
        translator.score(["a", "b"], ["c"])
    with pytest.raises(InputError, match=r"lists of sentences: write \[sentence\]"):
        translator.score("abc", "def")
    assert seqtool.load(Path("runs/attend")).translate([]) == seqtool.load([Path("runs/attend")]).translate([]) == []
    with pytest.raises(InputError, match=r"Unknown setting 'baem'; did you mean 'beam'\?"):
        seqtool.load("runs/attend", baem=3)


def test_an_ensemble_of_two_models_translates(workspace: Path, sentences: list[str]) -> None:
    ensemble = seqtool.load(["runs/attend", "runs/fixed"], device="cpu")
    twice = seqtool.load(["runs/attend", "runs/attend"], device="cpu")
    assert twice.translate(sentences) == seqtool.load("runs/attend", device="cpu").translate(sentences)
    assert len(ensemble.translate(sentences)) == len(sentences)


def test_samples_that_ended_come_first(workspace: Path, sentences: list[str]) -> None:
    translator = seqtool.load("runs/attend", sample=True, n_best=30, max_length=14)
    assert isinstance(translator, Translator)
    n_best_lists = translator.hypotheses(sentences[:5])
    for n_best in n_best_lists:
        assert n_best == sorted(n_best, key=lambda sample: (not sample.ended, -sample.log_probability))
    assert any(len({sample.ended for sample in n_best}) == 2 for n_best in n_best_lists)


def test_an_ensemble_needs_a_single_vocabulary(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [*SETTINGS, "data.vocabulary.size=200", "model=sutskever", "model.hidden=8", "model.embedding=8"]
    assert run("train", *settings, "run=other", "train.steps=1") == 0
    capsys.readouterr()
    assert run("translate", "checkpoint=runs/attend,runs/other") == 2
    assert "an ensemble needs one vocabulary" in capsys.readouterr().err
    assert run("train", *SETTINGS, "run=tuned", "init_from=runs/other", "train.steps=1") == 2
    assert "was trained with another vocabulary" in capsys.readouterr().err


def test_sampling_is_seeded(workspace: Path, sentences: list[str]) -> None:
    """Samples do not depend on how the input is divided into batches."""

    def draw(seed: int, position: int) -> list[str]:
        translator = seqtool.load("runs/attend", sample=True, seed=seed)
        return translator.translate(sentences[:position]) + translator.translate(sentences[position:])

    assert draw(1, 3) == draw(1, 40) != draw(2, 3)


def test_eval_translates_and_scores_with_a_checkpoint(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BLEU is sacreBLEU's score of the translations that it writes, and alignments are better than uniform ones."""
    import sacrebleu

    assert run("eval", "checkpoint=runs/attend", "format=json", "output=test.es", "plot=figures") == 0
    report = json.loads(capsys.readouterr().out)
    cache = next((workspace / "cache").glob("toy-*/"))
    references = (cache / "test.target.txt").read_text().splitlines()
    expected = sacrebleu.corpus_bleu(Path("test.es").read_text().splitlines(), [references])
    scores = {score["name"]: score for score in report["system"]["scores"]}
    assert scores["BLEU"]["value"] == pytest.approx(expected.score)
    assert "tok:13a" in scores["BLEU"]["signature"] and {"chrF2", "TER"} <= set(scores)
    alignment = report["alignment"]
    assert max(alignment["aer"], alignment["aer_diagonal"]) < alignment["aer_uniform"]
    assert 0 <= alignment["crossed"] <= alignment["swaps"]
    assert Path("figures/bleu_by_length.png").stat().st_size > 5000
    assert run("eval", "checkpoint=runs/attend") == 0
    table = capsys.readouterr().out
    assert f"{expected.score:.2f}" in table and "alignment error rate" in table


def test_eval_scores_files(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("hyp.txt").write_text("a small cat sat here today\nthe dog ran\n" * 10)
    Path("ref one.txt").write_text("a small cat sat here today\nthe dog ran away\n" * 10)
    Path("ref2.txt").write_text("one cat sat here\nthe dog ran off\n" * 10)
    Path("src.txt").write_text("x y z\n" * 10 + "a b c d e f g h i j k l m n o p\n" * 10)
    Path("base.txt").write_text("a cat sat\nthe dog ran away\n" * 10)
    Path("links.txt").write_text("0-0 1-1\n" * 20)
    Path("gold.txt").write_text("0-0 1-1 2?1\n" * 20)
    arguments = ["references=ref one.txt,ref2.txt", "hypotheses=hyp.txt", "sources=src.txt", "baseline=base.txt"]
    options = ["alignments=links.txt", "gold=gold.txt", "format=json", "bootstrap=100"]
    assert run("eval", *arguments, *options) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["alignment"]["aer"] == 0
    assert report["system"]["by_length"][0]["sentences"] == 10
    assert len(report["comparison"]["differences"]) == 3
    assert report["gaps"]["short"]["value"] > 0
    assert run("eval", *arguments, *options[:2], "bootstrap=100") == 0
    assert "the difference of the two" in capsys.readouterr().out


def test_eval_reads_the_output_of_translate(
    workspace: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    Path("in.txt").write_text("I have a cat.\nShe sees the house.\n")
    for form in ("text", "jsonl"):
        assert run("translate", "checkpoint=runs/attend", "input=in.txt", f"format={form}", f"output=out.{form}") == 0
    reports = []
    for form in ("text", "jsonl"):
        capsys.readouterr()
        files = [f"hypotheses=out.{form}", "references=in.txt", f"baseline=out.{form}", "format=json", "bootstrap=10"]
        assert run("eval", *files) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0]["system"]["bleu"] == reports[1]["system"]["bleu"]
    Path("out.jsonl").write_text('{"source": "a", "translations": []}\n' * 2)
    assert run("eval", "hypotheses=out.jsonl", "references=in.txt") == 2
    assert "out.jsonl line 1 is not a record as written by translate format=jsonl." in capsys.readouterr().err
    Path("table.tsv").write_text("a\tb\nc\td\n")
    assert run("eval", "hypotheses=in.txt", "references=table.tsv") == 0
    assert "The lines of table.tsv have tabs, so it seems to be a table" in caplog.text
    caplog.clear()
    assert run("eval", "hypotheses=in.txt", "references=in.txt", "sources=table.tsv", "bootstrap=0") == 0
    assert "The lines of table.tsv have tabs, so it seems to be a table" in caplog.text
    caplog.clear()
    assert run("translate", "checkpoint=runs/attend", "input=table.tsv") == 0
    assert "The lines of table.tsv have tabs, so it seems to be a table" in caplog.text
    Path("captions.csv").write_text("file,caption\na.jpg,a cat\n")
    assert run("eval", "hypotheses=in.txt", "references=captions.csv") == 2
    assert "references=captions.csv contains captions: add task=captioning, or" in capsys.readouterr().err
    assert run("translate", "checkpoint=runs/attend", "input=in.txt", "plot=in.txt") == 2
    assert "plot=in.txt cannot be used: in.txt is a file, not a directory; name a directory." in capsys.readouterr().err


def test_eval_of_files_equals_eval_of_their_corpus(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gold links of the corpus number punctuation marks, so the files need words=marks."""
    cache = next((workspace / "cache").glob("toy-*/"))
    names = {"sources": "source.txt", "references": "target.txt", "gold": "alignments.txt"}
    files = [f"{setting}={cache / f'test.{name}'}" for setting, name in names.items()]
    assert run("eval", "checkpoint=runs/attend", "format=json", *files, "words=marks") == 0
    by_files = json.loads(capsys.readouterr().out)
    assert run("eval", "checkpoint=runs/attend", "format=json") == 0
    assert by_files == json.loads(capsys.readouterr().out)


REFUSED_SETTINGS = {
    "checkpoint=runs/attend bootstrap=1": r"bootstrap must be at least 2, or 0 for no intervals, not 1\.",
    "checkpoint=runs/attend length_bins=[14,8]": r"length_bins must be .* in rising order, not \[14, 8\]\.",
    "checkpoint=runs/attend lowercase=maybe": r"[Ss]etting 'lowercase' must be true or false, not 'maybe'\.",
    "checkpoint=runs/fixed sources=hyp.txt references=hyp.txt gold=hyp.txt": r"gold=… needs a model with attention",
    "checkpoint=runs/attend seed=abc": r"[Ss]etting 'seed' must be a whole number, not 'abc'\.",
    "checkpoint=runs/attend threads=two": r"[Ss]etting 'threads' must be a whole number or null, not 'two'\.",
    "checkpoint=runs/attend sample=true top_k=-1": r"top_k must be at least 0, not -1\.",
    "checkpoint=runs/attend words=letters": r"Unknown words 'letters'; choose from spaces, marks, characters\.",
    "checkpoint=runs/attend alignments=hyp.txt": r"alignments= is for hypotheses=FILE: leave it out",
    "checkpoint=runs/attend baseline=none.txt": r"none\.txt does not exist\.",
    "checkpoint=runs/attend langpair=en-de": r"langpair=… needs testset=…\.",
    "hypotheses=hyp.txt references=hyp.txt output=x": "output= is for the translations of checkpoint=PATH",
    "checkpoint=runs/attend sources=hyp.txt": r"sources=FILE and references=FILE\[,FILE…\] must be given together\.",
    "checkpoint=runs/attend sources=hyp.txt references=short.txt": r"hyp\.txt has 20 lines but short\.txt has 1",
    "checkpoint=runs/atend": r"There is no run or checkpoint at runs/atend\. runs holds .*attend",
    "": r"eval needs either checkpoint=PATH or hypotheses=FILE references=FILE",
    "hypotheses=hyp.txt": r"eval hypotheses=FILE needs references=FILE",
    "hypotheses=hyp.txt references=short.txt": r"hyp\.txt has 20 lines but short\.txt has 1: they must be parallel",
    "hypotheses=none.txt references=hyp.txt": r"none\.txt does not exist\.",
    "hypotheses=empty.txt references=hyp.txt": r"empty\.txt is empty\.",
    "hypotheses=latin.txt references=hyp.txt": r"latin\.txt line 2 is not valid UTF-8",
    "hypotheses=runs references=hyp.txt": r"hypotheses=runs is a directory.* are evaluated by checkpoint=RUN\.",
    "hypotheses=hyp.txt references=hyp.txt baseline=runs/attend": r"=runs/attend is a directory.* seeds=RUN baseline=",
    "hypotheses=hyp.txt references=hyp.txt tokenize=13b": r"13b",
    "hypotheses=hyp.txt references=hyp.txt gold=hyp.txt": r"alignments=FILE and gold=FILE must be given together\.",
    "checkpoint=runs/attend split=tset": r"Unknown split 'tset'; this corpus has train, valid, test\. For files of",
    "checkpoint=runs/attend testset=wmt99": r"Unknown testset 'wmt99'",
    "checkpoint=runs/attend testset=wmt14": r"testset=wmt14 needs langpair=…",
    "checkpoint=runs/attend format=xml": r"Unknown format 'xml'; choose from table, json, jsonl\.",
    "checkpoint=runs/attend task=dancing": r"Unknown task 'dancing'",
    "checkpoint=runs/attend beam=0": r"beam must be at least 1, not 0\.",
    "checkpoint=runs/attend n_best=9": r"n_best \(9\) cannot be more than beam \(5\)\.",
    "checkpoint=runs/attend length_penalty=long": r"Unknown length_penalty 'long'",
}


@pytest.mark.parametrize("settings", REFUSED_SETTINGS)
def test_invalid_settings_are_refused(workspace: Path, settings: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A single message is on standard error, nothing is on standard output, and the exit status is 2."""
    Path("hyp.txt").write_text("a small cat\n" * 20)
    Path("short.txt").write_text("a small cat\n")
    Path("empty.txt").write_text("")
    Path("latin.txt").write_bytes(b"good\nK\xf6ln\n" + b"x\n" * 18)
    assert run("eval", *settings.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [
        line for line in captured.err.splitlines() if line.strip() and "it/s" not in line and "line" not in line[:12]
    ]
    assert len(lines) == 1 and re.search(REFUSED_SETTINGS[settings], lines[0]), captured.err


def test_invalid_bytes_are_refused(workspace: Path, stdin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that existed before is unchanged."""
    Path("kept.txt").write_text("before")
    stdin(b"Good.\nK\xf6ln\n")
    assert run("translate", "checkpoint=runs/attend", "output=kept.txt") == 2
    assert "Standard input is not valid UTF-8 in line 2: convert it to UTF-8." in capsys.readouterr().err
    Path("latin.txt").write_bytes(b"Good.\nK\xf6ln\n")
    for files in (["input=latin.txt"], ["input=kept.txt", "alignments=no/such/place"]):
        assert run("translate", "checkpoint=runs/attend", "output=kept-too.txt", *files) == 2
    assert not Path("kept-too.txt").exists()
    assert Path("kept.txt").read_text() == "before"
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_unknown_words_are_counted(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.txt").write_text("I have a cat.\n字 and 字\n字\n")
    assert run("translate", "checkpoint=runs/attend", "input=odd.txt", "output=odd.es") == 0
    assert "The model does not know 3 words or pieces of the input, in 2 of 3 lines." in capsys.readouterr().err
    Path("even.txt").write_text("I have a cat.\n")
    assert run("translate", "checkpoint=runs/attend", "input=even.txt", "output=even.es") == 0
    assert "does not know" not in capsys.readouterr().err
    with pytest.raises(InputError, match="translate takes a list of sentences"):
        seqtool.load("runs/attend").translate([1])


def test_invalid_bytes_in_redirected_input_are_reported_first(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("late.txt").write_bytes(b"Good.\n" * 2000 + b"K\xf6ln\n")
    monkeypatch.setattr(Translator, "hypotheses", lambda *_, **__: pytest.fail("translated before all was read"))
    with Path("late.txt").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert run("translate", "checkpoint=runs/attend", "output=never.txt") == 2
    assert not Path("never.txt").exists()


def test_jobs_of_a_sweep_do_not_overwrite_each_other(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("I have a cat.\n")
    sweep = ["translate", "-m", "checkpoint=runs/attend", "input=in.txt", "beam=1,2"]
    assert run(*sweep, "output=shared.txt") == 2
    assert "seqtool: output=shared.txt was written by an earlier job of this sweep: name a" in capsys.readouterr().err
    assert run(*sweep, "output=beam-${beam}.txt") == 0
    assert Path("beam-1.txt").exists() and Path("beam-2.txt").exists()
    assert run(*sweep, "output=/dev/null") == 0
    capsys.readouterr()
    files = [f"{name}=in.txt" for name in ("hypotheses", "references", "sources")]
    assert run("eval", "-m", "lowercase=true,false", *files, "plot=swept") == 2
    assert "seqtool: plot=swept was written by an earlier job of this sweep" in capsys.readouterr().err


@pytest.mark.parametrize("settings", ["output=empty.txt <&-", "input=in.txt output=closed.txt <&- >&- 2>&-"])
def test_standard_streams_may_be_closed(workspace: Path, settings: str) -> None:
    Path("in.txt").write_text("I have a cat.\n")
    line = " ".join([*COMMAND, *TRANSLATE, settings])
    assert subprocess.run(line, shell=True, env=ENVIRONMENT, check=False).returncode == 0
    if "closed.txt" in settings:
        assert Path("closed.txt").read_text() != ""
    else:
        assert Path("empty.txt").read_text() == ""


def test_two_outputs_may_not_be_one_file(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("I have a cat.\n")
    for name in ("same.txt", "./same.txt"):
        outputs = ["output=same.txt", f"alignments={name}"]
        assert run("translate", "checkpoint=runs/attend", "input=in.txt", *outputs) == 2
        assert "output and alignments are both same.txt: name two files." in capsys.readouterr().err
    assert not Path("same.txt").exists()


@pytest.mark.parametrize("setting", ["output", "alignments"])
@pytest.mark.parametrize("name", ["source.txt", "./source.txt", "link.txt", "hard.txt"])
def test_the_source_is_not_overwritten(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    name: str,
) -> None:
    """No name of the source is accepted as output, whether it is read by name or as standard input."""
    command = [f"checkpoint={workspace / 'runs/attend'}", f"{setting}={name}"]
    monkeypatch.chdir(tmp_path)
    Path("source.txt").write_text("I have a cat.\n")
    Path("link.txt").symlink_to("source.txt")
    Path("hard.txt").hardlink_to("source.txt")
    assert run("translate", *command, "input=source.txt") == 2
    clause = f"{setting}={name} is the same file as"
    message = f"seqtool: {clause} input=source.txt, which is read: name another file to write to.\n"
    assert capsys.readouterr().err == message
    with Path("source.txt").open() as source:
        monkeypatch.setattr(sys, "stdin", source)
        assert run("translate", *command) == 2
    assert f"{clause} standard input, which is read" in capsys.readouterr().err
    assert Path("source.txt").read_text() == "I have a cat.\n" and Path("link.txt").is_symlink()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("attend", {"temperature": 0.5}, "temperature= can only be given with sample=true"),
        ("attend", {"top_k": 3, "top_p": 0.9}, "top_k=, top_p= can only be given with sample=true"),
        ("fixed", {"coverage_penalty": 0.2}, "coverage_penalty=… needs a model with attention"),
    ],
)
def test_settings_without_effect_are_refused(
    workspace: Path, capsys: pytest.CaptureFixture[str], name: str, settings: dict[str, float], message: str
) -> None:
    Path("in.txt").write_text("I have a cat.\n")
    overrides = [f"{key}={value}" for key, value in settings.items()]
    assert run("translate", f"checkpoint=runs/{name}", "input=in.txt", *overrides) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(InputError, match=re.escape(message)):
        seqtool.load(f"runs/{name}", **settings)
    assert seqtool.load("runs/attend", sample=True, **settings).translate(["I have a cat."])


def test_output_is_utf_8_in_any_locale(workspace: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "seqtool", "translate", "checkpoint=runs/attend"],
        input=b"She sees the small girl tomorrow.\n",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(seqtool.__file__).parents[1])},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode("utf-8").count("\n") == 1


def test_output_replaces_neither_links_nor_devices(workspace: Path, tmp_path: Path) -> None:
    """A link stays a link, and /dev/null does not become a file."""
    Path("in.txt").write_text("I have a cat.\n")
    (tmp_path / "real.txt").write_text("before")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    assert run("translate", "checkpoint=runs/attend", "input=in.txt", f"output={tmp_path / 'link.txt'}") == 0
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() != "before"
    assert run("translate", "checkpoint=runs/attend", "input=in.txt", "output=/dev/null") == 0
    assert not Path("/dev/null").is_file()


def test_inspect_describes_runs_and_caches(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "runs/attend") == 0
    summary = capsys.readouterr().out
    weights = load_file(checkpoint.find("runs/attend").path / "model.safetensors")
    size = sum(tensor.numel() for tensor in weights.values())
    assert "Bahdanau" in summary and f"{size:,}" in summary and "BLEU" in summary
    assert f"seqtool {seqtool.__version__}" in summary
    assert run("inspect", "runs/attend/best") == 0
    assert capsys.readouterr().out == summary
    assert run("inspect", str(next((workspace / "cache").glob("toy-*/")))) == 0
    assert "3,000" in capsys.readouterr().out
    assert run("inspect", "nowhere") == 2
    assert "There is no run or checkpoint at nowhere" in capsys.readouterr().err


def test_inspect_refuses_a_cache_whose_summary_has_no_counts(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(next((workspace / "cache").glob("toy-*/")), copy)
    summary = json.loads((copy / "summary.json").read_bytes())
    for split in summary["splits"].values():
        del split["pairs"]
    (copy / "summary.json").write_text(json.dumps(summary))
    assert run("inspect", str(copy)) == 2
    assert capsys.readouterr().err.startswith(f"seqtool: {copy / 'summary.json'} is damaged: remove {copy} and")


def test_a_copied_checkpoint_needs_nothing_else(workspace: Path, tmp_path: Path, sentences: list[str]) -> None:
    """Without its run and cache, a copy gives the same translations as the checkpoint in the run."""
    copy = tmp_path / "my model (1)"
    shutil.copytree(checkpoint.find("runs/attend").path, copy)
    assert seqtool.load(str(copy)).translate(sentences[:10]) == seqtool.load("runs/attend").translate(sentences[:10])


def test_a_checkpoint_may_only_build_classes_of_seqtool(workspace: Path, tmp_path: Path) -> None:
    """The target of the model is changed and the manifest repaired. It is refused, and nothing is run."""
    import hashlib

    copy = tmp_path / "stranger"
    shutil.copytree(checkpoint.find("runs/attend").path, copy)
    record = json.loads((copy / "checkpoint.json").read_text())
    record["config"]["model"] = {"_target_": "os.mkdir", "path": str(tmp_path / "canary")}
    (copy / "checkpoint.json").write_text(json.dumps(record))
    content = (copy / "checkpoint.json").read_bytes()
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["checkpoint.json"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"names 'os\.mkdir': only classes of seqtool may be built"):
        seqtool.load(str(copy))
    assert not (tmp_path / "canary").exists()
