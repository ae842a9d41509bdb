"""Tests of bad and hostile input: commands refuse it with the expected messages. `fuzz.py` looks for further cases."""

import errno
import gzip
import hashlib
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from fuzz import repair
from mutations import RAW, Bomb, bomb, dump_json
from PIL import Image
from small_models import BAHDANAU, ENCODER, SHOW_ATTEND_TELL

from seqtool.cli import main as cli
from seqtool.data.text.vocabulary import JOINT, TARGET, Form, WordVocabulary
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.runtime.files import config_directory, replacement_path, write_whole
from seqtool.settings import declarations
from seqtool.training import checkpoint
from seqtool.training.checkpoint import weights

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parent.parent
LINES = b"the cat\n\nthe dog\n"
SCORES = {"step": 3, "loss": 1.5, "bleu": 2.5}
PROGRESS = {"step": 3, "epoch": 1, "seconds": 6.0, "best": {**SCORES, "checkpoint": "step-0000003"}, "last": SCORES}
NOT_SAVED = ("source_vocabulary", "target_vocabulary", "pretrained", "encoder")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two untrained checkpoints: `translator` and `captioner`."""
    directory = tmp_path_factory.mktemp("models")
    words = WordVocabulary(["▁the", "▁cat", "▁dog", "▁a", "▁red", "▁thing", "."], Form("word", "nfc", lowercase=False))
    for name in (JOINT, TARGET):
        words.save(directory / name)
    toy = {"_target_": "seqtool.data.corpora.parallel.Toy", "seed": 1, "train": 5, "valid": 5, "test": 5, "longest": 25}
    for name, model, parts, target, vocabulary in (
        ("translator", Bahdanau(**BAHDANAU), BAHDANAU, "bahdanau.Bahdanau", JOINT),
        ("captioner", ShowAttendTell(**SHOW_ATTEND_TELL), SHOW_ATTEND_TELL, "show_attend_tell.ShowAttendTell", TARGET),
    ):
        settings: dict[str, Any] = {key: value for key, value in parts.items() if key not in NOT_SAVED}
        settings["_target_"] = f"seqtool.models.{target}"
        if name == "captioner":
            settings["encoder"] = ENCODER
        checkpoint.save(
            directory / name,
            model=weights(model),
            training={"random.cpu": torch.get_rng_state()},
            record={
                "task": "translation" if name == "translator" else "captioning",
                "config": {"model": settings, "data": toy, "optim": {"name": "adam"}, "schedule": {"name": "constant"}},
                "progress": PROGRESS,
                "data": {},
                "versions": {"seqtool": "0"},
            },
            vocabularies=[directory / vocabulary],
        )
    return directory


@pytest.fixture
def directory(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with copies of the checkpoints `translator` and `captioner`, an image and a text file."""
    for name in ("translator", "captioner"):
        shutil.copytree(models / name, tmp_path / name)
    Image.new("RGB", (30, 20), "red").save(tmp_path / "red.png")
    (tmp_path / "lines").write_bytes(LINES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Run a command, and return its status, its standard output and the last line of its standard error."""
    capsys.readouterr()
    status = cli.run(arguments, config_directory())
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err.rstrip("\n").rpartition("\n")[2]


def refusal(capsys: Capture, command: str) -> str:
    """Run a command that must end with status 2, and return its message."""
    status, _, message = run(capsys, *command.split())
    assert status == 2 and message.startswith("seqtool: "), message
    return message.removeprefix("seqtool: ")


# Text.

TRANSLATE = "translate checkpoint=translator device=cpu beam=1 max_length=8 input=lines"
UNUSUAL_TEXTS = {
    "a byte order mark": b"\xef\xbb\xbfthe cat\nthe dog\n",
    "Windows line ends": b"the cat\r\nthe dog\r\n",
    "null characters": b"the\0 cat\nthe dog\0\n",
    "tabs": b"\tthe\tcat\nthe dog\t\t\n",
    "a line of a megabyte": b"the cat " * 131_072 + b"\nthe dog\n",
    "only spaces": " \u3000\u00a0 \n\t\t\n".encode(),
    "emoji, right-to-left text, stacked accents": "👩‍🚀🇦🇶 \u202eשלום مرحبا\ne\u0301\u0336\u0300\u0489 ⁇▁\n".encode(),
    "separators that do not end lines": "the\u2028cat\u0085\x0b\x0c\n\x1c\rdog\n".encode(),
}


@pytest.mark.parametrize("content", UNUSUAL_TEXTS.values(), ids=UNUSUAL_TEXTS)
def test_unusual_text_is_accepted(content: bytes, directory: Path, capsys: Capture) -> None:
    """`translate` writes one line for each line that it reads, and `eval` accepts the file too."""
    (directory / "lines").write_bytes(content)
    status, output, _ = run(capsys, *TRANSLATE.split())
    assert status == 0 and output.count("\n") == 2
    if len(content) < 1000:  # TER and chrF are slow on a line of a megabyte
        status, _, message = run(capsys, "eval", "hypotheses=lines", "references=lines", "bootstrap=2")
        assert status == 0, message


def test_byte_order_mark_and_line_ends_change_no_translation(directory: Path, capsys: Capture) -> None:
    outputs = []
    for content in (b"the cat\nthe dog\n", UNUSUAL_TEXTS["a byte order mark"], UNUSUAL_TEXTS["Windows line ends"]):
        (directory / "lines").write_bytes(content)
        outputs.append(run(capsys, *TRANSLATE.split())[1])
    assert len(set(outputs)) == 1


def test_a_line_that_is_shortened_is_reported(directory: Path, capsys: Capture) -> None:
    (directory / "lines").write_bytes(UNUSUAL_TEXTS["a line of a megabyte"])
    cli.run(TRANSLATE.split(), config_directory())
    expected = "Line 1 has 262,144 tokens: only the first 199 are translated (max_source_length=200)."
    assert expected in capsys.readouterr().err


PREPARE = "prepare data=parallel data.train=a,b data.valid=a,b data.processes=1"
BAD_TEXTS: dict[str, tuple[dict[str, bytes], str, str]] = {
    "no UTF-8": (
        {"lines": b"the cat\nK\xf6ln\n"},
        TRANSLATE,
        "lines line 2 is not valid UTF-8 (byte 2 of the line): convert the file to UTF-8.",
    ),
    "UTF-16": (
        {"lines": "the cat\n".encode("utf-16")},
        TRANSLATE,
        "lines is UTF-16: convert it with iconv -f UTF-16 -t UTF-8, or save it as UTF-8.",
    ),
    "half of a surrogate pair": (
        {"lines": b"\xed\xa0\x80\n"},
        TRANSLATE,
        "lines line 1 is not valid UTF-8 (byte 1 of the line): convert the file to UTF-8.",
    ),
    "an empty file": ({"lines": b""}, "eval hypotheses=lines references=lines2", "lines is empty."),
    "empty lines only": (
        {"a": b"\n", "b": b"\n"},
        PREPARE,
        "The training text has no words: nothing can be learnt from it.",
    ),
    "unequal files": (
        {"a": b"one\ntwo\n", "b": b"eins\n"},
        PREPARE,
        "a has 2 lines but b has 1: the files must be parallel.",
    ),
    "an empty file and its parallel file": ({"a": b"one\n", "b": b""}, PREPARE, "b is empty."),
    "tabs": (
        {"a.tsv": b"one\teins\ntwo\tzwei\t!\n"},
        "prepare data=parallel data.train=a.tsv data.valid=a.tsv data.processes=1",
        "a.tsv line 2 has 2 tabs: each line must be the source, one tab, the target.",
    ),
    "no tab": (
        {"a": b"one eins\n", "b": b"eins\n"},
        "prepare data=parallel data.train=a data.valid=a,b data.processes=1",
        "a line 1 has 0 tabs: each line must be the source, one tab, the target. Or give two files, source,target.",
    ),
    "CSV": (
        {"a.csv": b"one,eins\n", "b": b"eins\n"},
        "prepare data=parallel data.train=a.csv data.valid=b,b data.processes=1",
        "a.csv line 1 has 0 tabs: each line must be the source, one tab, the target. CSV is not read: save it with "
        "tabs.",
    ),
    "no validation set": (
        {"a": b"one\n", "b": b"eins\n"},
        "train data=parallel data.train=a,b data.valid=null data.processes=1 device=cpu",
        "The data have no split 'valid', only train: name its files with data.valid=.",
    ),
    "gzip cut short": (
        {"a.gz": gzip.compress(b"the cat\n" * 9)[:-12]},
        TRANSLATE.replace("input=lines", "input=a.gz"),
        "a.gz is cut short after line N: copy or download it again.",
    ),
    "no gzip": (
        {"a.gz": b"the cat\n"},
        TRANSLATE.replace("input=lines", "input=a.gz"),
        "a.gz is not an intact gzip file (after line N): copy or download it again.",
    ),
    "gzip that holds a line of gigabytes": (
        {"a.gz": gzip.compress(bytes(40 << 20), 1)},
        TRANSLATE.replace("input=lines", "input=a.gz"),
        "a.gz line 1 has 16 MB or more: break it into sentences.",
    ),
    "a directory": (
        {},
        TRANSLATE.replace("input=lines", "input=translator"),
        "translator is a directory, not a text file.",
    ),
    "no file": ({}, TRANSLATE.replace("input=lines", "input=no/such"), "no/such does not exist."),
    "a device": (
        {},
        TRANSLATE.replace("input=lines", "input=/dev/zero"),
        "/dev/zero is not a regular file: write the text into a file first.",
    ),
    "a link with a number of 5,000 digits": (
        {"links": b"0-0\n" + b"9" * 5000 + b"-1\n"},
        "eval hypotheses=lines2 references=lines2 sources=lines2 alignments=links gold=links bootstrap=2",
        f"links line 2: '{'9' * 5000}-1' is not an alignment link; expected i-j (sure) or i?j (possible), "
        "where i is the source word and j the target word, both counted from 0.",
    ),
}


for setting, other_setting in (("gold", "alignments"), ("alignments", "gold")):
    BAD_TEXTS[f"a link beyond the words: {setting}"] = (
        {"links": b"0-0\n0-1\n", "right": b"0-0\n0-0\n"},
        f"eval hypotheses=lines2 references=lines2 sources=lines2 {setting}=links {other_setting}=right bootstrap=2",
        "links line 2 has the link 0-1, but its sentences have 1 and 1 words, counted from 0. White space separates "
        "words, unless words=marks or words=characters is set. Give the text that was aligned, tokenised in the same "
        "way.",
    )


@pytest.mark.parametrize(("files", "command", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_bad_text_is_refused_with_its_file_and_line(
    files: dict[str, bytes], command: str, message: str, directory: Path, capsys: Capture
) -> None:
    for name, content in {"lines2": b"a\nb\n", **files}.items():
        (directory / name).write_bytes(content)
    assert re.sub(r"after line \d+", "after line N", refusal(capsys, command)) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_read_permission_are_refused(directory: Path, capsys: Capture) -> None:
    (directory / "lines").chmod(0)
    assert refusal(capsys, TRANSLATE) == "'lines' cannot be used: permission denied."
    (directory / "red.png").chmod(0)
    refusal(capsys, "caption checkpoint=captioner images=red.png device=cpu")
    (directory / "translator" / "model.safetensors").chmod(0)
    assert "cannot be used: permission denied." in refusal(capsys, "inspect translator")


def test_errors_in_writing_name_the_file_and_not_its_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_whole(tmp_path / "none" / "a", b"")
    assert error.value.filename == str(tmp_path / "none" / "a")


# JSON.

DEEP_JSON, LONG_NUMBER = RAW["@deep@"], RAW["@long@"]
EVAL_CAPTIONS = "eval task=captioning references=coco.json hypotheses=results.json tokenize=none"
PREPARE_PHOTOS = "prepare model=show_tell data=photos data.directory=. data.train=own.jsonl data.processes=1 device=cpu"
PREPARE_PHOTOS += " data.valid=own.jsonl data.test=own.jsonl data.vocabulary.minimum_count=1"
BAD_JSON: dict[str, tuple[str, str, str, str]] = {
    "deep nesting: references": (
        "coco.json",
        DEEP_JSON,
        EVAL_CAPTIONS,
        r"^coco\.json cannot be read as JSON \(too many nested brackets",
    ),
    "deep nesting: results": (
        "results.json",
        DEEP_JSON,
        EVAL_CAPTIONS,
        r"^results\.json cannot be read as JSON \(too many",
    ),
    "deep nesting: captions": (
        "own.jsonl",
        f'{{"file": "red.png", "caption": {DEEP_JSON}}}',
        PREPARE_PHOTOS,
        r"^own\.jsonl line 1 cannot be read as JSON \(too many nested brackets\)\.$",
    ),
    "deep nesting: document frequencies": (
        "df.json",
        f'{{"images": 1, "tokenize": "none", "document_frequencies": {DEEP_JSON}}}',
        f"{EVAL_CAPTIONS} document_frequencies=df.json",
        r"^df\.json holds no document frequencies: expected a JSON object",
    ),
    "a long number: references": (
        "coco.json",
        f"[{LONG_NUMBER}]",
        EVAL_CAPTIONS,
        r"^coco\.json cannot be read as JSON \(Exceeds the limit",
    ),
    "a long number: captions": (
        "own.jsonl",
        f'{{"file": "red.png", "caption": {LONG_NUMBER}}}',
        PREPARE_PHOTOS,
        r"^own\.jsonl line 1 cannot be read as JSON \(Exceeds the limit",
    ),
    "an infinite number: document frequencies": (
        "df.json",
        '{"images": 1e999, "tokenize": "none", "document_frequencies": {}}',
        f"{EVAL_CAPTIONS} document_frequencies=df.json",
        r"^df\.json holds no document frequencies",
    ),
    "not UTF-8": (
        "coco.json",
        "\xff",
        EVAL_CAPTIONS,
        r"^coco\.json line 1 is not valid UTF-8 \(byte 1 of the line\): convert the file to UTF-8\.$",
    ),
    "empty": ("coco.json", "", EVAL_CAPTIONS, r"^coco\.json is empty\.$"),
    "an image outside of the directory": (
        "own.jsonl",
        '{"file": "../red.png", "caption": "a"}',
        PREPARE_PHOTOS,
        r"^own\.jsonl line 1 names the image '\.\./red\.png': it must be the name of a file in \.\.$",
    ),
}


@pytest.mark.parametrize(("file", "content", "command", "message"), BAD_JSON.values(), ids=BAD_JSON)
def test_bad_json_is_refused_with_its_file_and_line(
    file: str, content: str, command: str, message: str, directory: Path, capsys: Capture
) -> None:
    (directory / "coco.json").write_text('{"1": ["the cat"]}')
    (directory / "results.json").write_text('{"1": "the dog"}')
    (directory / file).write_bytes(content.encode("latin-1"))
    actual = refusal(capsys, command)
    assert re.search(message, actual), actual


# Settings, on the command line and in a checkpoint.

LARGE = 10**30
BAD_SETTINGS = {
    f"{TRANSLATE} beam=two": "setting 'beam' must be a whole number, not 'two'.",
    f"{TRANSLATE} beam=1.5": "setting 'beam' must be a whole number, not 1.5.",
    f"{TRANSLATE} beam=[1]": "setting 'beam' must be a whole number, not [1].",
    f"{TRANSLATE} beam=null": "setting 'beam' must be a whole number, not null.",
    f"{TRANSLATE} beam=1000000": "beam must be at most 1,000, not 1,000,000.",
    f"{TRANSLATE} max_length=1000000": "max_length must be at most 10,000, not 1,000,000.",
    f"{TRANSLATE} temperature=nan": "setting 'temperature' must be a number, not nan.",
    f"{TRANSLATE} seed={LARGE}": f"setting 'seed' must be a whole number, between -2^53 and 2^53, not {LARGE}.",
    f"{TRANSLATE} threads=100000": "threads must be at most 1,024, not 100,000.",
    f"{TRANSLATE} sample=perhaps": "setting 'sample' must be true or false, not 'perhaps'.",
    "eval hypotheses=lines references=lines bootstrap=2000000": "bootstrap must be at most 1,000,000, not 2,000,000.",
    "train optim=adam optim.betas=[a,b]": "setting 'optim.betas' must be a list of numbers, not ['a', 'b'].",
    "train optim=adam optim.betas=[0.9]": "optim.betas must be 2 numbers from 0 to below 1, not [0.9].",
    "train optim=adam optim.eps=-1": "optim.eps must be at least 0, not -1.",
    "prepare data.test=1000000": "data.test is 1,000,000: it must be at most 100,000 pairs.",
    "prepare data.processes=99999": "data.processes must be at most 1,024, not 99,999.",
}


@pytest.mark.parametrize("command", BAD_SETTINGS)
def test_settings_of_wrong_types_or_sizes_are_refused(command: str, directory: Path, capsys: Capture) -> None:
    assert refusal(capsys, command).lower() == BAD_SETTINGS[command].lower()


CONFIGS = config_directory()


def read_settings(file: Path, prefix: str = "") -> dict[str, Any]:
    """Return the default values of the settings in a YAML file and in every file that its defaults list can include.

    The value of a group is the list of its choices.
    """
    settings, content = {}, yaml.safe_load(file.read_text("utf-8"))
    for entry in content.pop("defaults", []):
        if isinstance(entry, dict):
            (group,) = entry
            files = sorted((CONFIGS / group).glob("*.yaml"))
            settings[group] = [choice.stem for choice in files]
            for choice in files if group != "experiment" else ():
                settings |= read_settings(choice, f"{group}.")
        elif entry != "_self_":
            name, _, package = entry.lstrip("/").partition("@")
            package_prefix = "" if package in ("", "_here_") else f"{package}."
            settings |= read_settings(CONFIGS / f"{name}.yaml", prefix + package_prefix)
    return settings | flatten(content, prefix)


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dictionary with names such as train.steps."""
    flat_settings = {}
    for key, value in settings.items():
        flat_settings |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat_settings


COMMANDS = ("prepare", "train", "translate", "caption", "eval")
COMMAND_SETTINGS = {command: read_settings(CONFIGS / f"{command}.yaml") for command in COMMANDS}
GROUPS = {key: value for key, value in COMMAND_SETTINGS["train"].items() if "." not in key and isinstance(value, list)}


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_of_other_commands_are_refused(command: str, directory: Path, capsys: Capture) -> None:
    """All settings are reported together, each in a clause that names it and the command; no files are written."""
    all_settings = {key for settings in COMMAND_SETTINGS.values() for key in settings}
    foreign = sorted(all_settings - COMMAND_SETTINGS[command].keys() - GROUPS.keys())
    status, output, message = run(capsys, command, *(f"{key}=1" for key in foreign))
    assert (status, output) == (2, "")
    clauses = message.removeprefix("seqtool: ").removesuffix(".").split("; ")
    expected = [f"'{key}' is not a setting of {command}" for key in foreign]
    assert [clause.partition(", but of ")[0] for clause in clauses] == expected
    assert all(" but of " in clause for clause in clauses)
    first_name = foreign[0].partition(".")[0]
    required = {"translate": ["checkpoint=c"], "caption": ["checkpoint=c", "images=i"]}.get(command, [])
    for sign in ("+", "++"):
        message = run(capsys, command, *required, f"{sign}{foreign[0]}=1")[2]
        assert message.startswith(f"seqtool: '{first_name}' is not a setting of {command}, but of ")
    assert not (directory / "cache").exists() and not (directory / "runs").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("group", GROUPS)
def test_groups_of_other_commands_are_refused(command: str, group: str, directory: Path, capsys: Capture) -> None:
    if group in COMMAND_SETTINGS[command]:
        message = refusal(capsys, f"{command} {group}=none")
        assert message.startswith(f"Unknown {group} 'none'")
        return
    for choice in [*GROUPS[group], "null", "[a]"]:
        message = refusal(capsys, f"{command} {group}={choice}")
        expected = rf"'{group}' is not a setting of {command}, but of prepare(,| and) train( and eval)?\."
        assert re.fullmatch(expected, message)


def sections() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return the settings that are checked together, by section: the overrides that select them, and their defaults."""
    train = yaml.safe_load((CONFIGS / "train.yaml").read_text("utf-8"))
    by_section: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for name in ("train", "validation"):
        by_section[name] = ([], flatten(train.pop(name), f"{name}."))
    by_section["a run"] = ([], {key: value for key, value in train.items() if not isinstance(value, dict | list)})
    for group in ("optim", "schedule", "model", "data"):
        for file in sorted((CONFIGS / group).glob("*.yaml")):
            content = yaml.safe_load(file.read_text("utf-8"))
            overrides = [f"{group}={file.stem}", "train.epochs=1"]
            includes = [str(entry) for entry in content.pop("defaults", [])]
            if any("caption" in entry or "encoder" in entry for entry in includes):  # images
                overrides += {"model": ["data=scenes"], "data": ["model=show_tell"]}.get(group, [])
            tested_elsewhere = ["vocabulary", "processes", "strict", "clean"]
            if isinstance(content.get("train"), int):  # the splits of a built-in corpus
                tested_elsewhere += ["train", "valid", "test"]
            for key in tested_elsewhere:
                content.pop(key, None)
            overrides += ["data=text"] if file.stem.endswith("language_model") else []
            overrides += ["model=language_model"] if file.stem == "text" else []
            overrides += [f"data.{key}=lines" for key in ("train", "valid") if content.get(key) == "???"]
            by_section[" ".join(overrides)] = overrides, flatten(content, f"{group}.")
    preparation = flatten(yaml.safe_load((CONFIGS / "preparation.yaml").read_text("utf-8")), "data.")
    by_section["data.vocabulary"] = ([], preparation)
    encoder = flatten(yaml.safe_load((CONFIGS / "encoder.yaml").read_text("utf-8")), "model.encoder.")
    by_section["model.encoder"] = (["model=show_tell", "data=scenes"], encoder)
    return by_section


def values_of_wrong_type(settings: dict[str, Any]) -> dict[str, str]:
    """Return a value of a wrong type for each setting, except for names of files and runs, which may be any text."""
    commands = (declarations.command_settings(command).items() for command in declarations.COMMANDS)
    any_text = {name for settings in commands for name, setting in settings if setting.is_literal}
    any_text |= {"train.resume", "initialisation"}
    values = ("word", "[word]", "{a: 1}")
    wrong_values = {}
    for number, (key, value) in enumerate(settings.items()):
        if isinstance(value, int | float) and key not in any_text:
            wrong_values[key] = values[number % 3]
        elif key not in any_text and "_target_" not in key:
            wrong_values[key] = "word" if isinstance(value, list) else values[1 + number % 2]
            if value is None:
                wrong_values[key] = "{a: 1}"
    return wrong_values


@pytest.mark.parametrize("section", sections())
def test_values_of_wrong_types_are_reported_together(section: str, directory: Path, capsys: Capture) -> None:
    """All settings of a section are wrong: one message names them all, before any data are prepared."""
    overrides, settings = sections()[section]
    names = {key: value for key, value in settings.items() if key.endswith(".name")}
    for key, value in values_of_wrong_type(names).items():
        message = refusal(capsys, f"train {' '.join(overrides)} {key}={value.replace(' ', '')}")
        assert message.startswith(f"Setting '{key}' must be text, not ")
    values = values_of_wrong_type({key: value for key, value in settings.items() if key not in names})
    if not values:  # only names of files
        return
    status, output, message = run(capsys, "train", *overrides, *(f"{key}={value}" for key, value in values.items()))
    assert (status, output) == (2, "")
    assert {key for key in values if f"etting '{key}' must be " not in message} == set(), message
    assert not any((directory / name).exists() for name in ("cache", "runs", "data"))


EVAL_FILES = "eval hypotheses=lines references=lines"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (TRANSLATE, "decoding"),
        ("caption checkpoint=captioner images=red.png device=cpu", "decoding"),
        ("eval checkpoint=translator sources=lines references=lines", "decoding"),
        (TRANSLATE, "translate"),
        ("caption checkpoint=captioner images=red.png device=cpu", "caption"),
        (EVAL_FILES, "eval"),
    ],
)
def test_values_of_wrong_types_are_refused_when_decoding(
    command: str, settings: str, directory: Path, capsys: Capture
) -> None:
    """The values are reported together, except those of `eval`, `caption` and the machine, which are checked singly."""
    defaults = yaml.safe_load((CONFIGS / f"{settings}.yaml").read_text("utf-8"))
    values = values_of_wrong_type({key: value for key, value in defaults.items() if key != "defaults"})
    checked_singly = set(values) if settings in ("eval", "caption") else {"device", "threads"} & values.keys()
    for keys in [[key] for key in sorted(checked_singly)] + [[key for key in values if key not in checked_singly]]:
        arguments = [word for word in command.split() if word.partition("=")[0] not in keys]
        status, output, message = run(capsys, *arguments, *(f"{key}={values[key]}" for key in keys))
        assert (status, output) == (2, "") or not keys
        assert {key for key in keys if key not in message} == set(), message


@pytest.mark.parametrize("group", ["train", "validation", "embeddings", "data.vocabulary", "data.limits"])
def test_a_single_value_for_a_group_of_settings_is_refused(group: str, directory: Path, capsys: Capture) -> None:
    for value in ("3", "[1]", "null"):
        assert f"etting '{group}' " in refusal(capsys, f"train {group}={value}")


@pytest.mark.parametrize("group", ["data", "model", "optim", "schedule"])
def test_values_that_are_not_choices_of_a_group_are_refused(group: str, directory: Path, capsys: Capture) -> None:
    for value in ("3", "[1]", "{a:1}", "null", "", f"[{GROUPS[group][0]},3]"):
        assert refusal(capsys, f"train {group}={value}").startswith(f"Unknown {group} '")


def test_files_for_a_built_in_corpus_are_refused(directory: Path, capsys: Capture) -> None:
    for value in ("lines,lines", "[lines,lines]", "lines", "lines.tsv"):
        message = refusal(capsys, f"train data.train={value}")
        assert message.startswith("data.train is a number with data=toy, not ")
        assert message.endswith(": for files of your own add data=parallel or photos.")
    message = refusal(capsys, "prepare data=multi30k data.train=lines,lines")
    assert message == "Setting 'data.train' of prepare exists only with data=parallel, photos, scenes, text or toy."


@pytest.mark.parametrize("resume", ["train.resume=True", "train.resume='true'", "++train.resume=true"])
def test_data_settings_of_a_resumed_run_are_not_those_of_the_toy_corpus(
    resume: str, directory: Path, capsys: Capture
) -> None:
    """In every spelling of train.resume=true, data settings are compared with the run, not with the default corpus."""
    for data in ("data.train=lines,lines", "data.directory=moved"):
        message = refusal(capsys, f"train run=r {resume} {data}")
        assert (
            message == "There is no run to resume at runs/r: "
            "start it without train.resume, or change to the directory it is in."
        )


def test_resume_auto_checks_the_data_of_a_new_run(directory: Path, capsys: Capture) -> None:
    """A run that does not exist is new, so its data settings are checked for the default corpus."""
    for name in ("new", "new_${seed}"):
        message = refusal(capsys, f"train run={name} train.resume=auto data.train=lines,lines")
        assert message.endswith(": for files of your own add data=parallel or photos.")
    assert not (directory / "runs").exists()


def test_the_name_of_a_run_cannot_be_a_list(directory: Path, capsys: Capture) -> None:
    assert refusal(capsys, "train run=${optim.betas}") == "Setting 'run' must be text, not [0.9, 0.999]."


@pytest.mark.parametrize(
    "command",
    [
        "score checkpoint=translator sources=lines references=",
        "score checkpoint=translator references=lines sources=",
        "translate checkpoint=translator input=",
        "translate checkpoint=translator input=lines prefix=",
        "eval references=lines hypotheses=",
        "train init_from=",
        "train embeddings.source=",
        "train data.vocabulary.reuse=",
    ],
)
def test_a_setting_for_one_file_refuses_several(command: str, directory: Path, capsys: Capture) -> None:
    name, setting = command.split()[0], command.split()[-1]
    for value in ("lines,red.png", "[lines,red.png]"):
        message = f"{name} takes one file or directory for {setting}, not several: {value}."
        assert refusal(capsys, command + value) == message
    assert "lines,none" in refusal(capsys, command + "lines,none")  # may be the name of a file with a comma
    assert not (directory / "runs").exists()


def test_several_values_without_multirun_are_refused(directory: Path, capsys: Capture) -> None:
    for setting in ("seed=1,2", "model=luong,bahdanau", "seed=range(1,3)", "seed=choice(1,2)"):
        message = refusal(capsys, f"train {setting}")
        assert message.startswith(f"Setting {setting} has several values: add -m to run a job with each of them")
    message = refusal(capsys, "eval hypotheses=lines references=lines length_bins=2,4")
    assert message.endswith("(a list is written length_bins=[2,4]).")


# Places to write to.

PREPARE = "prepare data=parallel data.train=lines,lines data.valid=lines,lines data.test=lines,lines"
WRITING = {
    f"{TRANSLATE} plot=": "directory",
    "score checkpoint=translator device=cpu sources=lines references=lines plot=": "directory",
    "eval checkpoint=translator device=cpu plot=": "directory",
    "eval hypotheses=lines references=lines sources=lines plot=": "directory",
    "inspect translator plot=": "directory",
    f"{PREPARE} data.cache=": "directory",
    "prepare model=show_tell data=scenes data.directory=": "directory",
    "prepare data=multi30k data.download=true data.directory=": "directory",
    f"{TRANSLATE} output=": "file",
    f"{TRANSLATE} alignments=": "file",
}
TO_DIRECTORIES = [command for command, kind in WRITING.items() if kind == "directory"]


@pytest.mark.parametrize("command", TO_DIRECTORIES)
def test_a_file_is_refused_where_a_directory_is_written(command: str, directory: Path, capsys: Capture) -> None:
    (directory / "translator" / "metrics.jsonl").touch()  # makes it a run
    setting = command.split()[-1]
    for value in ("red.png", "red.png/new"):
        message = refusal(capsys, command + value)
        reason = "red.png is a file, not a directory; name a directory."
        if "scenes" not in command:
            assert message == f"{setting}{value} cannot be used: {reason}"
        elif value == "red.png":
            assert message == "red.png is a file: set data.directory to a directory for the built-in images."
        else:
            assert message == f"{setting}{directory}/{value} cannot be used: {directory}/{reason}"
    assert not (directory / "cache").exists()


@pytest.mark.parametrize(("command", "kind"), WRITING.items())
def test_places_that_are_read_only_are_refused(
    command: str, kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The message names the setting, or the file in full. chmod is no advice if the file system is read-only."""
    (directory / "translator" / "metrics.jsonl").touch()
    closed = directory / "closed"
    closed.mkdir()
    (closed / "old").touch()
    access, setting = os.access, command.split()[-1]
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and access(path, mode))
    for flags, reason in ((os.ST_RDONLY, "read-only file system"), (0, "permission denied (chmod u+w ")):
        monkeypatch.setattr(os, "statvfs", lambda _, flags=flags: SimpleNamespace(f_flag=flags))
        for name in ("new", "old") if kind == "file" else ("new",):
            message = refusal(capsys, f"{command}closed/{name}")
            subjects = (f"{closed}/{name}", f"{setting}closed/{name}", f"{setting}{closed}/{name}")
            assert message.startswith(tuple(f"{subject} cannot be written: {reason}" for subject in subjects))
            assert message.startswith(setting) == (kind == "directory") and message.endswith(f"; name another {kind}.")
    assert [path.name for path in closed.iterdir()] == ["old"] and not (directory / "cache").exists()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "permission denied; name another" in refusal(capsys, f"{command}closed/new")  # only its owner may chmod


def test_a_complete_cache_may_be_read_only(directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    command = ["prepare", "data.train=20", "data.valid=2", "data.test=2", "data.vocabulary.kind=char"]
    assert run(capsys, *command)[0] == 0
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run(capsys, *command)[0] == 0
    message = refusal(capsys, " ".join([*command, "seed=1", "data.seed=2"]))
    assert message.startswith("data.cache=cache cannot be written: permission denied (chmod u+w cache allows it)")


def test_an_error_of_a_temporary_file_names_the_file_itself(directory: Path) -> None:
    with pytest.raises(OSError, match="Read-only") as error, replacement_path(directory / "out") as temporary:
        raise OSError(errno.EROFS, "Read-only file system", temporary)
    assert error.value.filename == str(directory / "out")


@pytest.mark.parametrize(
    "settings",
    [
        "data=parallel data.train=lines,more data.valid=lines,lines data.test=lines,lines",
        "data=parallel data.train=lines,none data.valid=lines,lines data.test=lines,lines",
        "data.train=20 data.valid=2 data.test=2 data.vocabulary.size=100000",
        "data.train=20 data.valid=2 data.test=2 data.vocabulary.size=100000 data.cache=new/of/caches",
        "model=language_model data=text data.train=none",
        "model=language_model data=text data.train=lines data.vocabulary.kind=bpe data.vocabulary.size=100000",
        "model=show_tell data=photos data.directory=. data.train=photos.csv",
        "model=show_tell data=flickr8k data.directory=.",
        "data=multi30k",
    ],
)
@pytest.mark.parametrize("command", ["prepare", "train run=r"])
def test_refused_data_leave_nothing_behind(command: str, settings: str, directory: Path, capsys: Capture) -> None:
    (directory / "more").write_text("a cat\n" * 9)
    (directory / "photos.csv").write_text("file,caption\nred.png,a cat\n")
    for file in directory.iterdir():
        os.utime(file, (10**9, 10**9))  # the digests of files that have just been written are never stored
    before = sorted(directory.rglob("*"))
    refusal(capsys, f"{command} {settings}")
    assert sorted(directory.rglob("*")) == before
    if "data.cache" not in settings:
        (directory / "cache").mkdir()
        refusal(capsys, f"{command} {settings}")
        assert not any((directory / "cache").iterdir())


# Terminal control characters.

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202eabc\u2066"


def test_inspect_escapes_control_characters_of_a_checkpoint(directory: Path, capsys: Capture) -> None:
    """Control characters in the texts of an untrusted checkpoint are escaped, and its line ends add no lines."""

    def change(record: dict[str, Any]) -> None:
        record["versions"] = {f"seq{ESCAPES}": f"0\nbest of run  {ESCAPES}"}
        record["config"]["data"][ESCAPES] = ESCAPES
        record["config"]["optim"]["name"] = ESCAPES

    lines = run(capsys, "inspect", "translator")[1].count("\n")
    rewrite(directory / "translator", change)
    (directory / "translator").rename(directory / f"new{ESCAPES}")
    for path in (f"new{ESCAPES}", f"checkpoint=new{ESCAPES}"):
        status, output, _ = run(capsys, "inspect", path)
        assert status == 0 and "\\x1b[2J\\x7f\\x9b31m\\u202eabc\\u2066" in output
        assert not set(ESCAPES.translate(str.maketrans("", "", "]0;owned[2J31mabc"))) & set(output)
        assert output.count("\n") == lines


def test_error_messages_escape_control_characters(directory: Path, capsys: Capture) -> None:
    """A message that quotes file names or settings is a single line without control characters."""
    for command in (f"eval hypotheses={ESCAPES}\n references=lines", f"inspect {ESCAPES}", f"train {ESCAPES}=1"):
        assert cli.run(command.split(" "), config_directory()) == 2
        error = capsys.readouterr().err
        assert error.startswith("seqtool: ") and error.endswith("\n") and error.count("\n") == 1
        assert "\\x1b[2J\\x7f\\x9b31m\\u202eabc" in error
        assert not set("\x1b\x07\x7f\x9b\u202e\u2066") & set(error)


def test_a_run_outside_of_runs_is_refused(directory: Path, capsys: Capture) -> None:
    message = refusal(capsys, "train run=../escaped data.train=20 data.valid=5 data.test=5 data.vocabulary.kind=word")
    assert message == "Run name '../escaped' is not a plain directory name: a run lives directly in runs."


SEQTOOL_ONLY = "only classes of seqtool may be built from it."
TRUST_OS = f"{SEQTOOL_ONLY[:-1]} (trust=os would allow classes of os, and run the code of that module)."
BAD_MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "text for a number": ({"embedding": "six"}, "setting 'embedding' must be a whole number, not 'six'."),
    "a list for a number": ({"embedding": [6]}, "setting 'embedding' must be a whole number, not [6]."),
    "nothing for text": ({"cell": None}, "setting 'cell' must be text, not null."),
    "an unknown setting": (
        {"encoder_hiden": 3},
        "unknown setting 'encoder_hiden'; did you mean 'encoder_hidden'?",
    ),
    "more units than the weights have": (
        {"embedding": 10**6},
        "translator does not fit the model: "
        "'source_embedding.weight' is (11, 6) in the checkpoint and (11, 1000000) in the model.",
    ),
    "more units than any model has": (
        {"maxout": 10**12},
        "model.maxout must be at most 1,000,000, not 1,000,000,000,000.",
    ),
    "too many layers": ({"encoder_layers": 10**9}, "model.encoder_layers must be at most 100, not 1,000,000,000."),
    "a different shape": (
        {"maxout": 7},
        "translator does not fit the model: 'deep_state.weight' is (12, 8) in the checkpoint and (14, 8) in the model.",
    ),
    "a model without some of the weights": (
        {"bidirectional": False},
        "translator does not fit the model: the model has no 'encoder.back.0.cell.recurrent.bias'.",
    ),
    "a function of the standard library": (
        {"_target_": "os.system"},
        f"The configuration names 'os.system': {TRUST_OS}",
    ),
    "a function as a cell": ({"cell": "os.system"}, f"The configuration names 'os.system': {TRUST_OS}"),
    "a seqtool class of another kind of part": (
        {"score": "seqtool.models.cells.GRU"},
        "The configuration names 'seqtool.models.cells.GRU', which is not a concrete class derived "
        "from seqtool.models.attention.AttentionScore.",
    ),
    "a seqtool function": (
        {"_target_": "seqtool.cli.main.main"},
        f"The configuration names 'seqtool.cli.main.main': {SEQTOOL_ONLY}",
    ),
    "a class imported by seqtool": (
        {"_target_": "seqtool.cli.main.Path"},
        f"The configuration names 'seqtool.cli.main.Path': {SEQTOOL_ONLY}",
    ),
    "a module within a module": (
        {"_target_": "seqtool.cli.main.os.system"},
        "Unknown target 'seqtool.cli.main.os.system': there is no module 'seqtool.cli.main.os'.",
    ),
    "a seqtool class that is not a model": (
        {"_target_": "seqtool.data.preparation.ColumnsWriter"},
        "The configuration names 'seqtool.data.preparation.ColumnsWriter', which is not a concrete class derived "
        "from seqtool.models.contract.EncoderDecoder.",
    ),
    "an invalid class name": (
        {"_target_": "seqtool..cli\0"},
        "Setting '_target_' must name a class with its module, such as mine.Model.",
    ),
}


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the record of a checkpoint, and update its manifest."""
    record = json.loads((path / "checkpoint.json").read_bytes())
    change(record)
    (path / "checkpoint.json").write_bytes(dump_json(record))
    repair(path)


@pytest.mark.parametrize(("change", "message"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_bad_model_settings_in_a_checkpoint_are_refused(
    change: dict[str, Any], message: str, directory: Path, capsys: Capture
) -> None:
    rewrite(directory / "translator", lambda record: record["config"]["model"].update(change))
    assert refusal(capsys, TRANSLATE).lower() == message.lower()


def test_an_oversized_encoder_in_a_checkpoint_is_refused(directory: Path, capsys: Capture) -> None:
    rewrite(directory / "captioner", lambda record: record["config"]["model"]["encoder"].update(size=10**6))
    message = refusal(capsys, "caption checkpoint=captioner images=red.png device=cpu")
    assert message == "model.encoder.size must be at most 1,024 pixels, not 1,000,000."


def test_load_model_equals_building_and_filling_a_model(models: Path) -> None:
    """`load_model` builds without allocating memory; weights, trainability and tied weights must be the same."""
    for name, make in (
        ("translator", lambda: Bahdanau(**BAHDANAU)),
        ("captioner", lambda: ShowAttendTell(**SHOW_ATTEND_TELL)),
    ):
        stored, expected_model = checkpoint.find(models / name), make()
        stored.load_weights(expected_model)
        loaded, expected = weights(stored.load_model(make)), weights(expected_model)
        assert list(loaded) == list(expected)
        for key, parameter in loaded.items():
            assert torch.equal(parameter, expected[key])
            assert parameter.requires_grad == expected[key].requires_grad
    tied = BAHDANAU | {"tie": "all"}
    path = models / "tied"
    record = {"task": "translation", "config": {"model": {}}, "progress": {"step": 1}, "versions": {}, "data": {}}
    checkpoint.save(path, model=weights(Bahdanau(**tied)), training={}, record=record, vocabularies=[])
    model = checkpoint.find(path).load_model(lambda: Bahdanau(**tied))
    assert model.output.weight is model.target_embedding.weight is model.source_embedding.weight


# Checkpoints.

UNREADABLE = "its record cannot be read; use another one."


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "manifest.json", JOINT])
def test_a_checkpoint_with_a_truncated_file_is_refused(name: str, directory: Path, capsys: Capture) -> None:
    """The file is refused whether or not the manifest matches it; the message names it unless it is the record."""
    path = directory / "translator"
    content = (path / name).read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0] if name.endswith("safetensors") else content.find(b"\n") + 1
    for cut in sorted({0, 1, 8, 9, header // 2, header - 1, header, (header + len(content)) // 2, len(content) - 1}):
        if name == "manifest.json":
            (path / name).write_bytes(content[:cut])
            assert refusal(capsys, "inspect translator") == f"Checkpoint translator is damaged: {UNREADABLE}"
            continue
        (path / name).write_bytes(content[:cut])
        expected = f"Checkpoint translator is damaged: {name} does not match manifest.json; use another one."
        assert refusal(capsys, "inspect translator") == expected
        manifest = (path / "manifest.json").read_bytes()
        repair(path)
        message = refusal(capsys, "inspect translator")
        assert re.sub("has [0-9]+ of", "has N of", message) in (
            f"Checkpoint translator is damaged: {UNREADABLE}",
            "Checkpoint translator is damaged: model.safetensors cannot be read; use another one.",
            f"translator/{JOINT} is not a vocabulary file of seqtool.",
            f"translator/{JOINT} is cut short: it has N of 11 entries.",
        )
        (path / "manifest.json").write_bytes(manifest)


BAD_RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep nesting": lambda record: record.update(more="@deep@"),
    "a hundred levels of nesting": lambda record: record.update(more=json.loads("[" * 100 + "]" * 100)),
    "a long number": lambda record: record["progress"].update(step="@long@"),
    "steps that are text": lambda record: record["progress"].update(step="3"),
    "a negative number of steps": lambda record: record["progress"].update(step=-3),
    "progress that is a list": lambda record: record.update(progress=[]),
    "no model": lambda record: record["config"].pop("model"),
    "scores that are text": lambda record: record["progress"]["last"].update(bleu="high"),
    "half of a surrogate pair": lambda record: record["versions"].update(torch="\ud800"),
    "a best checkpoint elsewhere": lambda record: record["progress"]["best"].update(checkpoint="../../../other"),
    "a best checkpoint without its loss": lambda record: record["progress"]["best"].pop("loss"),
    "a best checkpoint without its step": lambda record: record["progress"]["best"].pop("step"),
    "a best checkpoint without its name": lambda record: record["progress"]["best"].pop("checkpoint"),
    "a measure of patience without a loss": lambda record: record["progress"].update(yardstick={"bleu": 2.5}),
    "an absolute best checkpoint": lambda record: record["progress"]["best"].update(checkpoint="/etc"),
}


@pytest.mark.parametrize("change", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_checkpoint_with_a_bad_record_is_refused(
    change: Callable[[dict[str, Any]], Any], directory: Path, capsys: Capture
) -> None:
    rewrite(directory / "translator", change)
    assert refusal(capsys, "inspect translator") == f"Checkpoint translator is damaged: {UNREADABLE}"


NOT_LISTED = "Checkpoint translator is damaged: manifest.json does not list"


def test_special_files_in_a_checkpoint_are_refused(directory: Path, capsys: Capture) -> None:
    """Commands do not wait for pipes or endless devices, and a manifest must not name files of other directories."""
    path = directory / "translator"
    weights = (path / "model.safetensors").read_bytes()
    for make in (
        lambda: os.mkfifo(path / "model.safetensors"),
        lambda: (path / "model.safetensors").symlink_to("/dev/zero"),
        lambda: (path / "model.safetensors").mkdir(),
    ):
        (path / "model.safetensors").unlink()
        make()
        repair(path)
        message = refusal(capsys, "inspect translator")
        assert message == f"{NOT_LISTED} model.safetensors; use another one."
        if (path / "model.safetensors").is_dir():
            (path / "model.safetensors").rmdir()
            (path / "model.safetensors").touch()
    (path / "model.safetensors").write_bytes(weights)
    repair(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["../lines"] = {"bytes": len(LINES), "sha256": hashlib.sha256(LINES).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    message = refusal(capsys, "inspect translator")
    assert message == "Checkpoint translator is incomplete: it has no lines; use another one."
    (path / JOINT).unlink()
    os.mkfifo(path / JOINT)
    repair(path)
    assert refusal(capsys, TRANSLATE) == f"{NOT_LISTED} {JOINT}; use another one."


def test_tensors_of_another_type_are_refused(directory: Path, capsys: Capture) -> None:
    path = directory / "translator" / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = json.loads(content[8 : 8 + length])
    tensors["output.weight"]["dtype"] = "I32"
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    repair(path.parent)
    message = refusal(capsys, TRANSLATE)
    assert (
        message
        == "translator does not fit the model: 'output.weight' is int32 in the checkpoint and float32 in the model."
    )


# Code.


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "checkpoint.json", "manifest.json", JOINT]
)
@pytest.mark.parametrize("repaired", [False, True])
def test_a_pickle_in_a_checkpoint_is_not_executed(name: str, repaired: bool, directory: Path, capsys: Capture) -> None:
    for seed in range(4):
        (directory / "translator" / name).write_bytes(bomb(directory / "canary", Random(seed)))
        if repaired and name != "manifest.json":
            repair(directory / "translator")
        if name != "training.safetensors" or not repaired:  # only `train` reads this file's content
            message = refusal(capsys, "inspect translator")
            assert "damaged" in message or "not a vocabulary" in message
            refusal(capsys, TRANSLATE)
    assert not (directory / "canary").exists()


def test_a_pickle_in_other_files_is_not_executed(directory: Path, capsys: Capture) -> None:
    """The pickle takes the place of an encoder's weights and of the files of a prepared corpus."""
    prepare = "prepare data.train=50 data.valid=5 data.test=5 data.vocabulary.kind=word data.processes=1"
    run(capsys, *prepare.split())
    cache = next(path for path in (directory / "cache").iterdir() if path.is_dir())
    for seed in range(4):
        hostile = bomb(directory / "canary", Random(seed))
        for name in ("weights.pt", "weights.safetensors"):
            (directory / name).write_bytes(hostile)
            (directory / "own.jsonl").write_text('{"file": "red.png", "caption": "a"}')
            frozen = "model.encoder.fine_tune_from=null model.encoder.augment=false"
            message = refusal(capsys, f"{PREPARE_PHOTOS} {frozen} model.encoder.weights={name}")
            assert message.startswith(f"{name} cannot be read as weights")
        for file in ("summary.json", "source.vocabulary", "train.source.tokens.bin"):
            content = (cache / file).read_bytes()
            (cache / file).write_bytes(hostile)
            refusal(capsys, f"inspect {cache}")
            (cache / file).write_bytes(content)
    assert not (directory / "canary").exists()


def test_unpickling_the_bomb_makes_the_canary(tmp_path: Path) -> None:
    """The tests above would notice if the pickle were executed. It is unpickled in a separate process."""
    (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb(tmp_path / "canary")))
    program = f"import pickle; pickle.load(open({str(tmp_path / 'bomb')!r}, 'rb'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert (tmp_path / "canary").exists()


def test_resuming_a_run_builds_only_seqtool_classes(directory: Path, capsys: Capture) -> None:
    settings = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
    sizes = ["model=sutskever", "model.hidden=4", "model.embedding=4", "train.steps=1", "device=cpu", "run=theirs"]
    assert run(capsys, "train", *settings, *sizes)[0] == 0
    (last,) = (directory / "runs" / "theirs" / "checkpoints").iterdir()
    config = json.loads((last / "checkpoint.json").read_bytes())["config"]
    for group, target in (("model", "os.mkdir"), ("data", "os.rmdir")):
        changed = {**config, group: {**config[group], "_target_": target}}
        rewrite(last, lambda record: record.update(config=changed))  # noqa: B023
        message = refusal(capsys, "train run=theirs train.resume=true device=cpu")
        assert message == f"The configuration names '{target}': {TRUST_OS}"


def test_the_fuzzer_finds_no_failures(tmp_path: Path) -> None:
    """A few cases of each kind are run; `python scripts/development/fuzz.py --help` explains how to run many."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = ["--seed", "0", "--checkpoints", "24", "--inputs", "12", "--place", str(tmp_path / "fuzz")]
    process = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "development" / "fuzz.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count("0 failed") == 5
