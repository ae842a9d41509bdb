"""Bad and hostile input, by the text of what the command says about it. `fuzz.py` looks for what is not listed here."""

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
from typing import Any

import pytest
import torch
import yaml
from fuzz import repair
from mutations import RAW, Bomb, bomb, dumped
from PIL import Image
from small_models import BAHDANAU, ENCODER, SHOW_ATTEND_TELL

from seqtool.cli import main as cli
from seqtool.data.text.vocabulary import JOINT, TARGET, Form, WordVocabulary
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.runtime.files import config_directory
from seqtool.settings import declarations
from seqtool.training import checkpoint
from seqtool.training.checkpoint import weights

ROOT = Path(__file__).parent.parent
LINES = b"the cat\n\nthe dog\n"
SCORES = {"step": 3, "loss": 1.5, "bleu": 2.5}
PROGRESS = {"step": 3, "epoch": 1, "seconds": 6.0, "best": {**SCORES, "checkpoint": "step-0000003"}, "last": SCORES}
SPECIAL = ("source_vocabulary", "target_vocabulary", "pretrained", "encoder")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints that nobody trained: `translator` and `captioner`."""
    directory = tmp_path_factory.mktemp("models")
    words = WordVocabulary(["▁the", "▁cat", "▁dog", "▁a", "▁red", "▁thing", "."], Form("word", "nfc", lowercase=False))
    for name in (JOINT, TARGET):
        words.save(directory / name)
    toy = {"_target_": "seqtool.data.corpora.parallel.Toy", "seed": 1, "train": 5, "valid": 5, "test": 5, "longest": 25}
    for name, model, parts, target, vocabulary in (
        ("translator", Bahdanau(**BAHDANAU), BAHDANAU, "bahdanau.Bahdanau", JOINT),
        ("captioner", ShowAttendTell(**SHOW_ATTEND_TELL), SHOW_ATTEND_TELL, "show_attend_tell.ShowAttendTell", TARGET),
    ):
        settings: dict[str, Any] = {key: value for key, value in parts.items() if key not in SPECIAL}
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
def place(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a copy of the checkpoints in it, `translator` and `captioner`."""
    for name in ("translator", "captioner"):
        shutil.copytree(models / name, tmp_path / name)
    Image.new("RGB", (30, 20), "red").save(tmp_path / "red.png")
    (tmp_path / "lines").write_bytes(LINES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Status, standard output, and the last line of standard error."""
    capsys.readouterr()
    status = cli.run(arguments, config_directory())
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err.rstrip("\n").rpartition("\n")[2]


def refusal(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """The one sentence of a command that ends with status 2."""
    status, _, sentence = run(capsys, *command.split())
    assert status == 2 and sentence.startswith("seqtool: "), sentence
    return sentence.removeprefix("seqtool: ")


# Text.

TRANSLATE = "translate checkpoint=translator device=cpu beam=1 max_length=8 input=lines"
STRANGE = {
    "a byte order mark": b"\xef\xbb\xbfthe cat\nthe dog\n",
    "the line ends of Windows": b"the cat\r\nthe dog\r\n",
    "null characters": b"the\0 cat\nthe dog\0\n",
    "tabs": b"\tthe\tcat\nthe dog\t\t\n",
    "a line of a megabyte": b"the cat " * 131_072 + b"\nthe dog\n",
    "only spaces": " \u3000\u00a0 \n\t\t\n".encode(),
    "pictures, right to left, accents on accents": "👩‍🚀🇦🇶 \u202eשלום مرحبا\ne\u0301\u0336\u0300\u0489 ⁇▁\n".encode(),
    "line ends that are none": "the\u2028cat\u0085\x0b\x0c\n\x1c\rdog\n".encode(),
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_strange_text_is_text(content: bytes, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each line, from translate, and no complaint by eval either."""
    (place / "lines").write_bytes(content)
    status, output, _ = run(capsys, *TRANSLATE.split())
    assert status == 0 and output.count("\n") == 2
    if len(content) < 1000:  # edit rate and characters take long on a line of a megabyte
        status, _, sentence = run(capsys, "eval", "hypotheses=lines", "references=lines", "bootstrap=2")
        assert status == 0, sentence


def test_a_byte_order_mark_and_line_ends_change_no_translation(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for content in (b"the cat\nthe dog\n", STRANGE["a byte order mark"], STRANGE["the line ends of Windows"]):
        (place / "lines").write_bytes(content)
        outputs.append(run(capsys, *TRANSLATE.split())[1])
    assert len(set(outputs)) == 1


def test_a_long_line_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "lines").write_bytes(STRANGE["a line of a megabyte"])
    cli.run(TRANSLATE.split(), config_directory())
    expected = "Line 1 has 262,144 tokens: only the first 7 are translated (max_length=8)."
    assert expected in capsys.readouterr().err


PREPARE = "prepare data=parallel data.train=a,b data.valid=a,b data.processes=1"
TEXTS: dict[str, tuple[dict[str, bytes], str, str]] = {
    "no UTF-8": (
        {"lines": b"the cat\nK\xf6ln\n"},
        TRANSLATE,
        "lines line 2 is not valid UTF-8 (byte 2 of the line): convert the file to UTF-8.",
    ),
    "UTF-16": (
        {"lines": "the cat\n".encode("utf-16")},
        TRANSLATE,
        "lines line 1 is not valid UTF-8 (byte 1 of the line): convert the file to UTF-8.",
    ),
    "half of a surrogate pair": (
        {"lines": b"\xed\xa0\x80\n"},
        TRANSLATE,
        "lines line 1 is not valid UTF-8 (byte 1 of the line): convert the file to UTF-8.",
    ),
    "an empty file": ({"lines": b""}, "eval hypotheses=lines references=lines2", "lines is empty."),
    "no lines but ends": (
        {"a": b"\n", "b": b"\n"},
        PREPARE,
        "The training text has no words: nothing can be learnt from it.",
    ),
    "unequal files": (
        {"a": b"one\ntwo\n", "b": b"eins\n"},
        PREPARE,
        "a has 2 lines but b has 1: the files must be parallel.",
    ),
    "an empty file beside another": ({"a": b"one\n", "b": b""}, PREPARE, "b is empty."),
    "tabs": (
        {"a.tsv": b"one\teins\ntwo\tzwei\t!\n"},
        "prepare data=parallel data.train=a.tsv data.valid=a.tsv data.processes=1",
        "a.tsv line 2 has 2 tabs: each line must be the source, one tab, the target.",
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
    "a link number of any length": (
        {"links": b"0-0\n" + b"9" * 5000 + b"-1\n"},
        "eval hypotheses=lines2 references=lines2 sources=lines2 alignments=links gold=links bootstrap=2",
        f"links line 2: '{'9' * 5000}-1' is not an alignment link; expected i-j (sure) or i?j (possible), "
        "where i is the source word and j the target word, both counted from 0.",
    ),
}


for of, setting in (("gold", "alignments"), ("alignments", "gold")):
    TEXTS[f"a link beyond the words: {of}"] = (
        {"links": b"0-0\n0-1\n", "right": b"0-0\n0-0\n"},
        f"eval hypotheses=lines2 references=lines2 sources=lines2 {of}=links {setting}=right bootstrap=2",
        "links line 2 has the link 0-1, but its sentences have 1 and 1 words, counted from 0. White space separates "
        "words, unless words=marks or words=characters is set. Give the text that was aligned, tokenised in the same "
        "way.",
    )


@pytest.mark.parametrize(("files", "command", "message"), TEXTS.values(), ids=TEXTS)
def test_bad_text(
    files: dict[str, bytes], command: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in {"lines2": b"a\nb\n", **files}.items():
        (place / name).write_bytes(content)
    assert re.sub(r"after line \d+", "after line N", refusal(capsys, command)) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "lines").chmod(0)
    assert refusal(capsys, TRANSLATE) == "'lines' cannot be used: permission denied."
    (place / "red.png").chmod(0)
    refusal(capsys, "caption checkpoint=captioner images=red.png device=cpu")
    (place / "translator" / "model.safetensors").chmod(0)
    assert "cannot be used: permission denied." in refusal(capsys, "inspect translator")


# JSON.

DEEP, LONG = RAW["@deep@"], RAW["@long@"]
SCORE = "eval task=captioning references=coco.json hypotheses=results.json tokenize=none"
LEARN = "prepare model=show_tell data=photos data.directory=. data.train=own.jsonl data.processes=1 device=cpu"
LEARN += " data.valid=own.jsonl data.test=own.jsonl data.vocabulary.minimum_count=1"
JSON: dict[str, tuple[str, str, str, str]] = {
    "brackets in brackets: references": (
        "coco.json",
        DEEP,
        SCORE,
        r"^coco\.json cannot be read as JSON \(too many nested brackets",
    ),
    "brackets in brackets: results": ("results.json", DEEP, SCORE, r"^results\.json cannot be read as JSON \(too many"),
    "brackets in brackets: captions": (
        "own.jsonl",
        f'{{"file": "red.png", "caption": {DEEP}}}',
        LEARN,
        r"^own\.jsonl line 1 cannot be read as JSON \(too many nested brackets\)\.$",
    ),
    "brackets in brackets: document frequencies": (
        "df.json",
        f'{{"images": 1, "tokenize": "none", "document_frequencies": {DEEP}}}',
        f"{SCORE} document_frequencies=df.json",
        r"^df\.json holds no document frequencies: expected a JSON object",
    ),
    "digits: references": ("coco.json", f"[{LONG}]", SCORE, r"^coco\.json cannot be read as JSON \(Exceeds the limit"),
    "digits: captions": (
        "own.jsonl",
        f'{{"file": "red.png", "caption": {LONG}}}',
        LEARN,
        r"^own\.jsonl line 1 cannot be read as JSON \(Exceeds the limit",
    ),
    "no number: document frequencies": (
        "df.json",
        '{"images": 1e999, "tokenize": "none", "document_frequencies": {}}',
        f"{SCORE} document_frequencies=df.json",
        r"^df\.json holds no document frequencies",
    ),
    "not UTF-8": (
        "coco.json",
        "\xff",
        SCORE,
        r"^coco\.json line 1 is not valid UTF-8 \(byte 1 of the line\): convert the file to UTF-8\.$",
    ),
    "empty": ("coco.json", "", SCORE, r"^coco\.json is empty\.$"),
    "a way out of the folder": (
        "own.jsonl",
        '{"file": "../red.png", "caption": "a"}',
        LEARN,
        r"^own\.jsonl line 1 names the image '\.\./red\.png': it must be the name of a file in \.\.$",
    ),
}


@pytest.mark.parametrize(("file", "content", "command", "message"), JSON.values(), ids=JSON)
def test_bad_json(
    file: str, content: str, command: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "coco.json").write_text('{"1": ["the cat"]}')
    (place / "results.json").write_text('{"1": "the dog"}')
    (place / file).write_bytes(content.encode("latin-1"))
    found = refusal(capsys, command)
    assert re.search(message, found), found


# Settings, on the command line and in a checkpoint.

LARGE = 10**30
SETTINGS = {
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
    "prepare data.test=1000000": "data.test is 1,000,000: it must be at most 100,000 pairs.",
    "prepare data.processes=99999": "data.processes must be at most 1,024, not 99,999.",
}


@pytest.mark.parametrize("command", SETTINGS)
def test_settings_of_wrong_types_and_sizes(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, command).lower() == SETTINGS[command].lower()


CONFIGS = config_directory()


def taken(file: Path, prefix: str = "") -> dict[str, Any]:
    """The settings in a YAML file and in what its defaults list takes in, whatever is chosen, with their defaults.

    A group's value is the list of its choices.
    """
    found, content = {}, yaml.safe_load(file.read_text("utf-8"))
    for entry in content.pop("defaults", []):
        if isinstance(entry, dict):
            (group,) = entry
            files = sorted((CONFIGS / group).glob("*.yaml"))
            found[group] = [one.stem for one in files]
            for one in files if group != "experiment" else ():
                found |= taken(one, f"{group}.")
        elif entry != "_self_":
            name, _, place = entry.lstrip("/").partition("@")
            found |= taken(CONFIGS / f"{name}.yaml", prefix + ("" if place in ("", "_here_") else f"{place}."))
    return found | flat(content, prefix)


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


TAKEN = {
    command: taken(CONFIGS / f"{command}.yaml") for command in ("prepare", "train", "translate", "caption", "eval")
}
GROUPS = {key: value for key, value in TAKEN["train"].items() if "." not in key and isinstance(value, list)}


@pytest.mark.parametrize("command", TAKEN)
def test_settings_of_other_commands(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once, each in a clause that names it and the command; nothing is made."""
    others = sorted({key for one in TAKEN.values() for key in one} - TAKEN[command].keys() - GROUPS.keys())
    status, output, error = run(capsys, command, *(f"{key}=1" for key in others))
    assert (status, output) == (2, "")
    clauses = error.removeprefix("seqtool: ").removesuffix(".").split("; ")
    assert [clause.partition(", but of ")[0] for clause in clauses] == [
        f"'{key}' is not a setting of {command}" for key in others
    ]
    assert all(" but of " in clause for clause in clauses)
    added = others[0].partition(".")[0]
    required = {"translate": ["checkpoint=c"], "caption": ["checkpoint=c", "images=i"]}.get(command, [])
    for sign in ("+", "++"):
        error = run(capsys, command, *required, f"{sign}{others[0]}=1")[2]
        assert error.startswith(f"seqtool: '{added}' is not a setting of {command}, but of ")
    assert not (place / "cache").exists() and not (place / "runs").exists()


@pytest.mark.parametrize("command", TAKEN)
@pytest.mark.parametrize("group", GROUPS)
def test_groups_of_other_commands(command: str, group: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if group in TAKEN[command]:
        sentence = refusal(capsys, f"{command} {group}=none")
        assert sentence.startswith(f"Unknown {group} 'none'")
        return
    for choice in [*GROUPS[group], "null", "[a]"]:
        sentence = refusal(capsys, f"{command} {group}={choice}")
        assert re.fullmatch(
            rf"'{group}' is not a setting of {command}, but of prepare(,| and) train( and eval)?\.", sentence
        )


def sections() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Settings that are checked together: what chooses them, and their defaults."""
    train = yaml.safe_load((CONFIGS / "train.yaml").read_text("utf-8"))
    found: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for name in ("train", "validation"):
        found[name] = ([], flat(train.pop(name), f"{name}."))
    found["a run"] = ([], {key: value for key, value in train.items() if not isinstance(value, dict | list)})
    for group in ("optim", "schedule", "model", "data"):
        for file in sorted((CONFIGS / group).glob("*.yaml")):
            content = yaml.safe_load(file.read_text("utf-8"))
            settings = [f"{group}={file.stem}", "train.epochs=1"]
            images = any("caption" in str(one) or "encoder" in str(one) for one in content.pop("defaults", []))
            settings += {"model": ["data=scenes"], "data": ["model=show_tell"]}.get(group, []) if images else []
            for key in (
                "vocabulary",
                "processes",
                *(("train", "valid", "test") if isinstance(content.get("train"), int) else ()),
            ):
                content.pop(key, None)  # tested by themselves
            settings += ["data=text"] if file.stem.endswith("language_model") else []
            settings += ["model=language_model"] if file.stem == "text" else []
            settings += [f"data.{key}=lines" for key in ("train", "valid") if content.get(key) == "???"]
            found[" ".join(settings)] = settings, flat(content, f"{group}.")
    found["data.vocabulary"] = ([], flat(yaml.safe_load((CONFIGS / "preparation.yaml").read_text("utf-8")), "data."))
    encoder = flat(yaml.safe_load((CONFIGS / "encoder.yaml").read_text("utf-8")), "model.encoder.")
    found["model.encoder"] = (["model=show_tell", "data=scenes"], encoder)
    return found


def wrong(settings: dict[str, Any]) -> dict[str, str]:
    """A value that each setting cannot have; the names of files and runs may be anything."""
    commands = (declarations.command_settings(command).items() for command in declarations.COMMANDS)
    any_text = {name for settings in commands for name, setting in settings if setting.is_literal}
    any_text |= {"train.resume", "initialisation"}
    values = ("word", "[word]", "{a: 1}")
    found = {}
    for number, (key, value) in enumerate(settings.items()):
        if isinstance(value, int | float) and key not in any_text:
            found[key] = values[number % 3]
        elif key not in any_text and "_target_" not in key:
            found[key] = (
                "word" if isinstance(value, list) else values[1 + number % 2] if value is not None else "{a: 1}"
            )
    return found


@pytest.mark.parametrize("section", sections())
def test_values_of_wrong_types(section: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All settings of a section at once: one sentence names them all, before anything is prepared."""
    chosen, settings = sections()[section]
    for key, value in wrong({key: value for key, value in settings.items() if key.endswith(".name")}).items():
        assert refusal(capsys, f"train {' '.join(chosen)} {key}={value.replace(' ', '')}").startswith(
            f"Setting '{key}' must be text, not "
        )
    values = wrong({key: value for key, value in settings.items() if not key.endswith(".name")})
    if not values:  # only names of files
        return
    status, output, sentence = run(capsys, "train", *chosen, *(f"{key}={value}" for key, value in values.items()))
    assert (status, output) == (2, "")
    assert {key for key in values if f"etting '{key}' must be " not in sentence} == set(), sentence
    assert not any((place / name).exists() for name in ("cache", "runs", "data"))


OF_FILES = "eval hypotheses=lines references=lines"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (TRANSLATE, "decoding"),
        ("caption checkpoint=captioner images=red.png device=cpu", "decoding"),
        ("eval checkpoint=translator sources=lines references=lines", "decoding"),
        (TRANSLATE, "translate"),
        ("caption checkpoint=captioner images=red.png device=cpu", "caption"),
        (OF_FILES, "eval"),
    ],
)
def test_values_of_wrong_types_when_decoding(
    command: str, settings: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once; but those of the machine, of `eval` and of `caption` one by one, as they are looked at."""
    own = yaml.safe_load((CONFIGS / f"{settings}.yaml").read_text("utf-8"))
    values = wrong({key: value for key, value in own.items() if key != "defaults"})
    apart = set(values) if settings in ("eval", "caption") else {"device", "threads"} & values.keys()
    for keys in [[key] for key in sorted(apart)] + [[key for key in values if key not in apart]]:
        line = [word for word in command.split() if word.partition("=")[0] not in keys]
        status, output, sentence = run(capsys, *line, *(f"{key}={values[key]}" for key in keys))
        assert (status, output) == (2, "") or not keys
        assert {key for key in keys if key not in sentence} == set(), sentence


@pytest.mark.parametrize("group", ["train", "validation", "embeddings", "data.vocabulary", "data.limits"])
def test_a_value_for_a_group_of_settings(group: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("3", "[1]", "null"):
        assert f"etting '{group}' " in refusal(capsys, f"train {group}={value}")


@pytest.mark.parametrize("group", ["data", "model", "optim", "schedule"])
def test_what_is_no_choice(group: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("3", "[1]", "{a:1}", "null", "", f"[{GROUPS[group][0]},3]"):
        assert refusal(capsys, f"train {group}={value}").startswith(f"Unknown {group} '")


def test_files_as_the_data_of_a_built_in_corpus(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("lines,lines", "[lines,lines]", "lines", "lines.tsv"):
        sentence = refusal(capsys, f"train data.train={value}")
        assert sentence.startswith("data.train is a number with data=toy, not ")
        assert sentence.endswith(": for files of your own add data=parallel or photos.")
    sentence = refusal(capsys, "prepare data=multi30k data.train=lines,lines")
    assert sentence == "Setting 'data.train' of prepare exists only with data=parallel, photos, scenes, text or toy."


@pytest.mark.parametrize("resume", ["train.resume=True", "train.resume='true'", "++train.resume=true"])
def test_data_of_a_run_that_goes_on(resume: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever train.resume=true looks like, the data's settings are those of the run, not of the built-in corpus."""
    for data in ("data.train=lines,lines", "data.directory=moved"):
        sentence = refusal(capsys, f"train run=r {resume} {data}")
        assert (
            sentence == "There is no run to resume at runs/r: "
            "start it without train.resume, or change to the directory it is in."
        )


def test_data_of_a_run_that_may_go_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under auto a run that does not exist is new."""
    for name in ("new", "new_${seed}"):
        sentence = refusal(capsys, f"train run={name} train.resume=auto data.train=lines,lines")
        assert sentence.endswith(": for files of your own add data=parallel or photos.")
    assert not (place / "runs").exists()


def test_several_values_without_m(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ("seed=1,2", "model=luong,bahdanau", "seed=range(1,3)", "seed=choice(1,2)"):
        sentence = refusal(capsys, f"train {setting}")
        assert sentence.startswith(f"Setting {setting} has several values: add -m to run a job with each of them")
    sentence = refusal(capsys, "eval hypotheses=lines references=lines length_bins=2,4")
    assert sentence.endswith("(a list is written length_bins=[2,4]).")


# What a terminal would obey.

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x7f\x9b31m\u202eabc\u2066"


def test_a_strangers_checkpoint_cannot_command_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its texts are shown with their control characters escaped, and no text makes a line of its own."""

    def change(record: dict[str, Any]) -> None:
        record["versions"] = {f"seq{ESCAPES}": f"0\nbest of run  {ESCAPES}"}
        record["config"]["data"][ESCAPES] = ESCAPES
        record["config"]["optim"]["name"] = ESCAPES

    lines = run(capsys, "inspect", "translator")[1].count("\n")
    rewrite(place / "translator", change)
    (place / "translator").rename(place / f"new{ESCAPES}")
    for path in (f"new{ESCAPES}", f"checkpoint=new{ESCAPES}"):
        status, output, _ = run(capsys, "inspect", path)
        assert status == 0 and "\\x1b[2J\\x7f\\x9b31m\\u202eabc\\u2066" in output
        assert not set(ESCAPES.translate(str.maketrans("", "", "]0;owned[2J31mabc"))) & set(output)
        assert output.count("\n") == lines


def test_a_sentence_cannot_command_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever names of files and texts in them it holds, it is one line of harmless characters."""
    for command in (f"eval hypotheses={ESCAPES}\n references=lines", f"inspect {ESCAPES}", f"train {ESCAPES}=1"):
        assert cli.run(command.split(" "), config_directory()) == 2
        error = capsys.readouterr().err
        assert error.startswith("seqtool: ") and error.endswith("\n") and error.count("\n") == 1
        assert "\\x1b[2J\\x7f\\x9b31m\\u202eabc" in error
        assert not set("\x1b\x07\x7f\x9b\u202e\u2066") & set(error)


def test_a_run_cannot_be_outside_of_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refusal(capsys, "train run=../escaped data.train=20 data.valid=5 data.test=5 data.vocabulary.kind=word")
    assert sentence == "Run name '../escaped' is not a plain directory name: a run lives directly in runs."


OURS = "only classes of seqtool may be built from it."
OS = f"{OURS[:-1]} (trust=os would allow classes of os, and run the code of that module)."
MODEL: dict[str, tuple[dict[str, Any], str]] = {
    "text for a number": ({"embedding": "six"}, "setting 'embedding' must be a whole number, not 'six'."),
    "a list for a number": ({"embedding": [6]}, "setting 'embedding' must be a whole number, not [6]."),
    "nothing for text": ({"cell": None}, "setting 'cell' must be text, not null."),
    "a setting that is none": (
        {"encoder_hiden": 3},
        "unknown setting 'encoder_hiden'; did you mean 'encoder_hidden'?",
    ),
    "more units than memory": (
        {"embedding": 10**6},
        "translator does not fit the model: 'source_embedding.weight' is (11, 6) there and (11, 1000000) here.",
    ),
    "more units than any model has": (
        {"maxout": 10**12},
        "model.maxout must be at most 1,000,000, not 1,000,000,000,000.",
    ),
    "layers without end": ({"encoder_layers": 10**9}, "model.encoder_layers must be at most 100, not 1,000,000,000."),
    "another shape": (
        {"maxout": 7},
        "translator does not fit the model: 'deep_state.weight' is (12, 8) there and (14, 8) here.",
    ),
    "another model": (
        {"bidirectional": False},
        "translator does not fit the model: the model has no 'encoder.back.0.cell.recurrent.bias'.",
    ),
    "a function of Python's": ({"_target_": "os.system"}, f"The configuration names 'os.system': {OS}"),
    "a function as a part": ({"cell": "os.system"}, f"The configuration names 'os.system': {OS}"),
    "a class of ours that is another part": (
        {"score": "seqtool.models.cells.GRU"},
        "The configuration names 'seqtool.models.cells.GRU', which is not a concrete class derived "
        "from seqtool.models.attention.AttentionScore.",
    ),
    "a function of ours": (
        {"_target_": "seqtool.cli.main.main"},
        f"The configuration names 'seqtool.cli.main.main': {OURS}",
    ),
    "a class that ours import": (
        {"_target_": "seqtool.cli.main.Path"},
        f"The configuration names 'seqtool.cli.main.Path': {OURS}",
    ),
    "a module within a module": (
        {"_target_": "seqtool.cli.main.os.system"},
        "Unknown target 'seqtool.cli.main.os.system': there is no module 'seqtool.cli.main.os'.",
    ),
    "a class of ours that is no model": (
        {"_target_": "seqtool.data.preparation.ColumnsWriter"},
        "The configuration names 'seqtool.data.preparation.ColumnsWriter', which is not a concrete class derived "
        "from seqtool.models.contract.EncoderDecoder.",
    ),
    "no class at all": (
        {"_target_": "seqtool..cli\0"},
        "Setting '_target_' must name a class with its module, such as mine.Model.",
    ),
}


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the record of a checkpoint, and its manifest with it."""
    record = json.loads((path / "checkpoint.json").read_bytes())
    change(record)
    (path / "checkpoint.json").write_bytes(dumped(record))
    repair(path)


@pytest.mark.parametrize(("change", "message"), MODEL.values(), ids=MODEL)
def test_a_strangers_settings(
    change: dict[str, Any], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(place / "translator", lambda record: record["config"]["model"].update(change))
    assert refusal(capsys, TRANSLATE).lower() == message.lower()


def test_a_strangers_encoder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(place / "captioner", lambda record: record["config"]["model"]["encoder"].update(size=10**6))
    sentence = refusal(capsys, "caption checkpoint=captioner images=red.png device=cpu")
    assert sentence == "model.encoder.size must be at most 1,024 pixels, not 1,000,000."


def test_a_model_that_is_built_without_memory_is_the_same(models: Path) -> None:
    """`load_model` gives what building it and filling it gives, what is tied and what is trained included."""
    for name, make in (
        ("translator", lambda: Bahdanau(**BAHDANAU)),
        ("captioner", lambda: ShowAttendTell(**SHOW_ATTEND_TELL)),
    ):
        found, filled = checkpoint.find(models / name), make()
        found.load_weights(filled)
        loaded = found.load_model(make)
        for (key, ours), (other, theirs) in zip(weights(loaded).items(), weights(filled).items(), strict=True):
            assert key == other and torch.equal(ours, theirs) and ours.requires_grad == theirs.requires_grad
    tied = BAHDANAU | {"tie": "all"}
    path = models / "tied"
    record = {"task": "translation", "config": {"model": {}}, "progress": {"step": 1}, "versions": {}, "data": {}}
    checkpoint.save(path, model=weights(Bahdanau(**tied)), training={}, record=record, vocabularies=[])
    model = checkpoint.find(path).load_model(lambda: Bahdanau(**tied))
    assert model.output.weight is model.target_embedding.weight is model.source_embedding.weight


# Checkpoints.

UNREADABLE = "its record cannot be read; use another one."


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json", "manifest.json", JOINT])
def test_a_checkpoint_that_is_cut_anywhere(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the manifest agrees or not: what is left is refused, with the name of the file where it is no record."""
    path = place / "translator"
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
        sentence = refusal(capsys, "inspect translator")
        assert re.sub("has [0-9]+ of", "has N of", sentence) in (
            f"Checkpoint translator is damaged: {UNREADABLE}",
            "Checkpoint translator is damaged: model.safetensors cannot be read; use another one.",
            f"translator/{JOINT} is not a vocabulary file of seqtool.",
            f"translator/{JOINT} is cut short: it has N of 11 entries.",
        )
        (path / "manifest.json").write_bytes(manifest)


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "brackets in brackets": lambda record: record.update(more="@deep@"),
    "deeper than any": lambda record: record.update(more=json.loads("[" * 100 + "]" * 100)),
    "digits": lambda record: record["progress"].update(step="@long@"),
    "steps that are text": lambda record: record["progress"].update(step="3"),
    "steps below none": lambda record: record["progress"].update(step=-3),
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


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_records_of_checkpoints(
    change: Callable[[dict[str, Any]], Any], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(place / "translator", change)
    assert refusal(capsys, "inspect translator") == f"Checkpoint translator is damaged: {UNREADABLE}"


LEFT_OUT = "Checkpoint translator is damaged: manifest.json does not list"


def test_what_is_no_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe or a device that never ends is not waited for, and a manifest names nothing elsewhere."""
    path = place / "translator"
    weights = (path / "model.safetensors").read_bytes()
    for make in (
        lambda: os.mkfifo(path / "model.safetensors"),
        lambda: (path / "model.safetensors").symlink_to("/dev/zero"),
        lambda: (path / "model.safetensors").mkdir(),
    ):
        (path / "model.safetensors").unlink()
        make()
        repair(path)
        sentence = refusal(capsys, "inspect translator")
        assert sentence == f"{LEFT_OUT} model.safetensors; use another one."
        if (path / "model.safetensors").is_dir():
            (path / "model.safetensors").rmdir()
            (path / "model.safetensors").touch()
    (path / "model.safetensors").write_bytes(weights)
    repair(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["../lines"] = {"bytes": len(LINES), "sha256": hashlib.sha256(LINES).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    sentence = refusal(capsys, "inspect translator")
    assert sentence == "Checkpoint translator is incomplete: it has no lines; use another one."
    (path / JOINT).unlink()
    os.mkfifo(path / JOINT)
    repair(path)
    assert refusal(capsys, TRANSLATE) == f"{LEFT_OUT} {JOINT}; use another one."


def test_tensors_of_another_kind(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "translator" / "model.safetensors"
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tensors = json.loads(content[8 : 8 + length])
    tensors["output.weight"]["dtype"] = "I32"
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])
    repair(path.parent)
    sentence = refusal(capsys, TRANSLATE)
    assert sentence == "translator does not fit the model: 'output.weight' is int32 there and float32 here."


# Code.


@pytest.mark.parametrize(
    "name", ["model.safetensors", "training.safetensors", "checkpoint.json", "manifest.json", JOINT]
)
@pytest.mark.parametrize("repaired", [False, True])
def test_a_pickle_in_a_checkpoint_is_not_executed(
    name: str, repaired: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(4):
        (place / "translator" / name).write_bytes(bomb(place / "canary", Random(seed)))
        if repaired and name != "manifest.json":
            repair(place / "translator")
        if name != "training.safetensors" or not repaired:  # which only `train` reads
            assert "damaged" in (sentence := refusal(capsys, "inspect translator")) or "not a vocabulary" in sentence
            refusal(capsys, TRANSLATE)
    assert not (place / "canary").exists()


def test_a_pickle_as_anything_else_is_not_executed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the weights of an encoder, as a run's configuration, as a prepared corpus and in place of its parts."""
    prepare = "prepare data.train=50 data.valid=5 data.test=5 data.vocabulary.kind=word data.processes=1"
    run(capsys, *prepare.split())
    cache = next(path for path in (place / "cache").iterdir() if path.is_dir())
    for seed in range(4):
        hostile = bomb(place / "canary", Random(seed))
        for name in ("weights.pt", "weights.safetensors"):
            (place / name).write_bytes(hostile)
            (place / "own.jsonl").write_text('{"file": "red.png", "caption": "a"}')
            frozen = "model.encoder.fine_tune_from=null model.encoder.augment=false"
            sentence = refusal(capsys, f"{LEARN} {frozen} model.encoder.weights={name}")
            assert sentence.startswith(f"{name} cannot be read as weights")
        for file in ("summary.json", "source.vocabulary", "train.source.tokens.bin"):
            content = (cache / file).read_bytes()
            (cache / file).write_bytes(hostile)
            refusal(capsys, f"inspect {cache}")
            (cache / file).write_bytes(content)
    assert not (place / "canary").exists()


def test_the_bomb_is_a_bomb(tmp_path: Path) -> None:
    """Unpickled, it would make the canary: in a process of its own."""
    (tmp_path / "bomb").write_bytes(pickle.dumps(Bomb(tmp_path / "canary")))
    program = f"import pickle; pickle.load(open({str(tmp_path / 'bomb')!r}, 'rb'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert (tmp_path / "canary").exists()


def test_a_strangers_run_names_only_our_classes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["data.train=20", "data.valid=5", "data.test=5", "data.vocabulary.kind=word", "data.processes=1"]
    sizes = ["model=sutskever", "model.hidden=4", "model.embedding=4", "train.steps=1", "device=cpu", "run=theirs"]
    assert run(capsys, "train", *settings, *sizes)[0] == 0
    (last,) = (place / "runs" / "theirs" / "checkpoints").iterdir()
    ours = json.loads((last / "checkpoint.json").read_bytes())["config"]
    for group, new in (("model", "os.mkdir"), ("data", "os.rmdir")):
        rewrite(last, lambda record: record.update(config={**ours, group: {**ours[group], "_target_": new}}))  # noqa: B023
        sentence = refusal(capsys, "train run=theirs train.resume=true device=cpu")
        assert sentence == f"The configuration names '{new}': {OS}"


def test_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    """A few cases of each kind; `python scripts/development/fuzz.py --help` says how to run many."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    arguments = ["--seed", "0", "--checkpoints", "24", "--inputs", "12", "--place", str(tmp_path / "fuzz")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "development" / "fuzz.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("0 failed") == 5
