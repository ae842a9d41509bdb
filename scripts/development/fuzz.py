"""Run seqtool's commands on damaged and hostile checkpoints, texts, images, JSON and settings.

    python scripts/development/fuzz.py --checkpoints 10000 --inputs 2500 --command 200

A case passes if the command

- ends within 10 s, with status 0, or with status 2 and an error message of one line,
- uses less than 1 GB of memory,
- and does not create the canary file, which would show that code from a damaged file has run.

Half of the damaged checkpoints get a correct manifest, so that the damage reaches the code that reads their contents. A
case depends only on the seed, its kind and its number, and can be repeated:

    python scripts/development/fuzz.py --seed 0 --only json:17
"""

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import mutations
from mutations import HOSTILE, INTEGERS

from seqtool.cli import main as cli
from seqtool.runtime.files import config_directory

MAX_SECONDS, MAX_BYTES = 10, 1 << 30  # of a case
STARTUP_SECONDS = 30  # that a separate process may take in addition
WORKER_SECONDS = 1800  # within which a worker must report, even on a busy machine
# A case is measured against a process that has just started, as a command is. Within some thousand cases oneDNN's cache
# of kernels (one for each shape) and fragmentation take hundreds of megabytes, without growing when cases are repeated.
CASES_PER_WORKER = 500
TINY = ["device=cpu", "data.processes=1", "train.minutes=null", "train.epochs=1", "threads=1"]
SIZES = ["validation.sentences=4", "model.embedding=8", "validation.max_length=8"]  # for models with a source
RUNS = {
    "attend": [
        *("data.train=300", "data.valid=8", "data.test=8", "data.vocabulary.size=120", "model.encoder_hidden=8"),
        *("model.decoder_hidden=8", "model.alignment=8", "model.maxout=8"),
    ],
    "fixed": [
        *("model=sutskever", "model.hidden=8", "data.train=300", "data.valid=8", "data.test=8"),
        *("data.vocabulary.kind=word", "data.vocabulary.joint=true"),
    ],
    "soft": [
        *("model=show_attend_tell", "model.hidden=8", "model.alignment=8", "model.encoder.size=32", "data=photos"),
        *("data.train=data/photos/captions.jsonl", "data.vocabulary.minimum_count=1"),
    ],
    "tell": [
        *("model=show_tell", "model.hidden=8", "model.encoder.size=32", "data=photos", "data.vocabulary.kind=bpe"),
        *("data.train=data/photos/captions.jsonl", "data.vocabulary.size=50", "model.encoder.fine_tune_from=null"),
        "model.encoder.augment=false",
    ],
    "writes": [
        *("model=language_model", "model.embedding=8", "model.hidden=8", "data=text", "data.train=data/text.txt"),
        *("train.bptt=10", "data.vocabulary.minimum_count=1"),
    ],
}
CAPTIONERS = ("soft", "tell")


class Case(NamedTuple):
    """A command line and its standard input. It runs in the directory of the case."""

    arguments: list[str]
    stdin: bytes = b""


class Hang(BaseException):
    """A case ran out of time."""


# Undamaged files, which the cases mutate


def make_workspace(workspace: Path) -> None:
    """Make corpora of every kind, and train five tiny models on them."""
    random = Random(0)
    os.chdir(workspace)
    photos = workspace / "data" / "photos"
    photos.mkdir(parents=True)
    rows = []
    for number in range(12):
        picture(random).resize((40, 40)).convert("RGB").save(photos / f"{number}.png")
        rows.append({"file": f"{number}.png", "captions": [f"A {word} thing." for word in ("red", "blue", "small")]})
    (photos / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (workspace / "data" / "text.txt").write_text("the cat sees the dog.\n  the dog sees the sun!\n\n" * 20)
    for name in RUNS:
        best = ["train.best_by=cider"] if name in CAPTIONERS else []
        if cli.run(["train", *_run_settings(name), *best, f"run={name}"], config_directory()) != 0:
            raise SystemExit(f"Cannot make the checkpoint '{name}'.")


def _run_settings(name: str) -> list[str]:
    """The settings with which a run is trained."""
    return [*TINY, *(SIZES if name != "writes" else []), *RUNS[name]]


def checkpoint_of(workspace: Path, name: str) -> Path:
    """The last checkpoint of a run."""
    return max((workspace / "runs" / name / "checkpoints").iterdir())


def picture(random: Random) -> Any:
    """A picture of random pixels."""
    from PIL import Image

    size = random.randint(1, 40), random.randint(1, 40)
    return Image.frombytes("RGB", size, random.randbytes(3 * size[0] * size[1]))


# The kinds of cases. Each function writes mutated files to the empty `directory`, and returns the command that reads
# these files. `workspace` has the undamaged corpora and models; hostile files try to create `canary`.


def checkpoints(random: Random, workspace: Path, directory: Path, canary: Path) -> Case:
    """Damage a file of a checkpoint; half of the checkpoints get a manifest that matches the damaged file."""
    name = random.choice(list(RUNS))
    copy = directory / "model"
    shutil.copytree(checkpoint_of(workspace, name), copy)
    files = sorted(file.name for file in copy.iterdir())
    weights = [4 if name in ("checkpoint.json", "model.safetensors") else 2 for name in files]
    file = copy / random.choices(files, weights)[0]
    content = file.read_bytes()
    match random.randrange(12):
        case 0:
            content = mutations.bomb(canary, random)
        case 1 | 2:
            content = mutations.damage(content, random)
        case _ if file.suffix == ".safetensors":
            content = mutations.safetensors(content, random)
        case _ if file.suffix == ".json":
            content = mutations.json_bytes(json.loads(content), random)
        case _:
            content = mutations.vocabulary(content, random)
    file.write_bytes(content)
    match random.randrange(40):
        case 0:
            file.unlink()
        case 1:
            file.unlink()
            file.mkdir()
        case 2:
            file.unlink()
            file.symlink_to(random.choice(("/dev/zero", "/dev/null", "nowhere", "checkpoint.json", ".")))
        case 3:
            file.unlink()
            os.mkfifo(file)
        case 4:
            shutil.copy(copy / random.choice([name for name in files if name != file.name]), file)
    if random.random() < 0.5 and file.name != "manifest.json":
        repair(copy)
    return _command_for(name, random, workspace, directory)


def configs(random: Random, workspace: Path, directory: Path, canary: Path) -> Case:
    """Mutate the configuration of a checkpoint or a run, the files of a cache, or settings on the command line."""
    name = random.choice(list(RUNS))
    match random.randrange(6):
        case 0 | 1:
            copy = directory / "model"
            shutil.copytree(checkpoint_of(workspace, name), copy)
            record = json.loads((copy / "checkpoint.json").read_bytes())
            part = random.choice(("model", "model", "model", "data"))
            config = mutations.change({part: record["config"][part]}, random)
            record["config"] = {**record["config"], **config} if isinstance(config, dict) else config
            (copy / "checkpoint.json").write_bytes(mutations.dump_json(record))
            repair(copy)
            return _command_for(name, random, workspace, directory)
        case 2:
            shutil.copytree(workspace / "runs" / name, directory / "runs" / name)
            shutil.copytree(workspace / "data", directory / "data")
            shutil.copytree(workspace / "cache", directory / "cache")
            last = checkpoint_of(directory, name)
            record = json.loads((last / "checkpoint.json").read_bytes())
            record["config"] = mutations.change(record["config"], random)
            (last / "checkpoint.json").write_bytes(mutations.dump_json(record))
            repair(last)
            limit = "train.minutes=0.05"  # the mutation may have removed its limits
            return Case(["train", f"run={name}", "train.resume=true", "device=cpu", limit])
        case 3:
            cache = random.choice([path for path in (workspace / "cache").iterdir() if path.is_dir()])
            shutil.copytree(cache, directory / "cache")
            files = [path for path in (directory / "cache").iterdir() if path.suffix not in (".bin", ".txt")]
            file = random.choice(files)
            content = file.read_bytes()
            if file.name == "summary.json":
                content = mutations.json_bytes(json.loads(content), random)
            else:
                content = mutations.damage(content, random)
            file.write_bytes(mutations.bomb(canary, random) if random.random() < 0.05 else content)
            return Case(["inspect", "cache"])
    return Case(_settings(random, name, workspace, directory))


def text(random: Random, workspace: Path, directory: Path, canary: Path) -> Case:
    """Mutate text for translate, generate, eval and prepare."""
    sources = [b"the big cat sees a small house .", b"my friend eats", b"", b"a red car and two dogs"] * 2
    targets = ["el gato grande ve una casa pequeña .".encode(), b"mi amigo come", b"x", b"un coche y dos perros"] * 2
    for name, lines in (("a.en", sources), ("a.es", targets), ("b.en", sources), ("b.es", targets)):
        (directory / name).write_bytes(b"\n".join(lines) + b"\n")
    (directory / "a.tsv").write_bytes(b"".join(s + b"\t" + t + b"\n" for s, t in zip(sources, targets, strict=True)))
    (directory / "links").write_text("0-0 1-1\n" * 8)
    (directory / "gold").write_text("0-0 1?1\n" * 8)
    victim = directory / random.choice(("a.en", "a.en", "a.es", "b.en", "a.tsv", "links", "gold"))
    content = victim.read_bytes()
    for _ in range(random.choice((1, 1, 2))):
        content = mutations.text(content, random)
    if random.random() < 0.1:
        import gzip

        content = mutations.damage(gzip.compress(content), random)
        victim = victim.rename(victim.with_name(victim.name + ".gz"))
    victim.write_bytes(content)
    name = {victim.name.removesuffix(".gz"): victim.name}
    en, es, tsv, links, gold = (name.get(file, file) for file in ("a.en", "a.es", "a.tsv", "links", "gold"))
    attend = f"checkpoint={workspace / 'runs' / 'attend'}"
    plain = ["device=cpu", "max_length=20", "beam=2"]
    prepare = ["prepare", "data=parallel", "data.valid=b.en,b.es", "data.processes=1"]
    prepare.append(random.choice(("data.vocabulary.kind=word", "data.vocabulary.kind=char", "data.vocabulary.size=40")))
    language_model = f"checkpoint={workspace / 'runs' / 'writes'}"
    match random.randrange(11):
        case 0:
            return Case(["translate", attend, *plain], content)
        case 1:
            more = random.choice((["format=jsonl"], ["replace_unknown=true"], ["alignments=out"], ["n_best=2"]))
            return Case(["translate", attend, *plain, f"input={victim.name}", *more])
        case 2:
            return Case(["eval", f"hypotheses={es}", "references=b.es", "bootstrap=10"])
        case 3:
            files = ["hypotheses=b.es", f"references={es},b.es", f"sources={en}", f"alignments={links}", f"gold={gold}"]
            return Case(["eval", *files, "bootstrap=10", "format=json"])
        case 4:
            return Case(["eval", attend, f"sources={en}", f"references={es}", "bootstrap=10", *plain])
        case 5:
            return Case(["caption", f"checkpoint={workspace / 'runs' / 'soft'}", f"images={victim.name}", *plain])
        case 6:
            return Case([*prepare, f"data.train={tsv}"])
        case 7:
            more = random.choice((["format=jsonl"], ["n=2"], ['stop=["."]'], ["top_k=3"]))
            return Case(["generate", language_model, f"input={victim.name}", "device=cpu", "max_length=8", *more])
        case 8:
            return Case(["eval", language_model, f"text={victim.name}", "device=cpu"])
        case 9:
            options = [option for option in prepare if not option.startswith(("data=", "data.valid="))]
            return Case([*options, "data=text", f"data.train={victim.name}", "data.valid_share=0.3"])
    return Case([*prepare, f"data.train={en},{es}"])


def images(random: Random, workspace: Path, directory: Path, canary: Path) -> Case:
    """Mutate images for caption and prepare."""
    for number in range(random.choice((1, 1, 2))):
        name, content = _image(random)
        chance = random.random()
        if chance < 0.01:
            content = mutations.bomb(canary, random)
        elif chance < 0.97:
            content = mutations.damage(content, random)
        (directory / f"{number}.{name}").write_bytes(content)
    if random.random() < 0.3:
        files = sorted(file.name for file in directory.iterdir())
        rows = (json.dumps({"file": file, "caption": "a b"}) for file in files)
        (directory / "captions.jsonl").write_text("".join(f"{row}\n" for row in rows))
        split = ["data.valid=captions.jsonl", "data.test=captions.jsonl", "data.vocabulary.minimum_count=1"]
        data = ["data=photos", "data.directory=.", "data.train=captions.jsonl", *split, "data.processes=1"]
        return Case(["prepare", "model=show_tell", "device=cpu", "model.encoder.size=32", *data])
    more = random.choice(([], ["format=jsonl"], ["n_best=2"]))
    run = workspace / "runs" / random.choice(CAPTIONERS)
    return Case(["caption", f"checkpoint={run}", "images=.", "device=cpu", "beam=2", "max_length=8", *more])


def json_files(random: Random, workspace: Path, directory: Path, canary: Path) -> Case:
    """Mutate JSON and CSV: captions to train on, captions to score, and document frequencies."""
    photos = workspace / "data" / "photos"
    rows = [{"file": f"{i}.png", "captions": ["a red thing", "it is blue"]} for i in range(6)]
    karpathy = {
        "dataset": "coco",
        "images": [
            {
                "filename": f"{i}.png", "filepath": ".", "imgid": i, "cocoid": i, "sentids": [i],
                "split": ("train", "train", "restval", "val", "test", "test")[i],
                "sentences": [{"raw": "a red thing", "tokens": ["a", "red", "thing"], "imgid": i, "sentid": i}],
            }
            for i in range(6)
        ],
    }  # fmt: skip
    results = [{"image_id": i, "caption": "a red thing"} for i in range(3)]
    coco = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(3)],
        "annotations": [{"id": i, "image_id": i % 3, "caption": "a red thing is here"} for i in range(6)],
    }
    by_name = {str(i): ["a red thing", "something"] for i in range(3)}
    frequencies = {"images": 3, "tokenize": "ptb", "document_frequencies": {"a": 3, "a red": 2}}
    prepare = ["prepare", "model=show_tell", "device=cpu", "model.encoder.size=32", "data.processes=1"]
    prepare += ["data.vocabulary.minimum_count=1", f"data.directory={photos}"]
    score = ["eval", "task=captioning", "references=coco.json"]
    (directory / "results.json").write_text(json.dumps(results))
    (directory / "coco.json").write_text(json.dumps(coco))
    match random.randrange(8):
        case 0 | 1:
            index = random.randrange(len(rows))
            lines = [json.dumps(row).encode() for row in rows]
            lines[index] = mutations.json_bytes(rows[index], random)
            content = b"\n".join(lines)
            (directory / "own.jsonl").write_bytes(mutations.text(content, random) if random.random() < 0.2 else content)
            return Case([*prepare, "data=photos", "data.train=own.jsonl"])
        case 2:
            content = "file,caption\n" + "".join(f'{i}.png,"a red, thing"\n' for i in range(6))
            (directory / "own.csv").write_bytes(mutations.text(content.encode(), random))
            return Case([*prepare, "data=photos", "data.train=own.csv"])
        case 3:
            (directory / "split.json").write_bytes(mutations.json_bytes(karpathy, random))
            return Case([*prepare, "data=karpathy", "data.annotations=split.json"])
        case 4 if random.random() < 0.5:
            (directory / "results.json").write_bytes(mutations.json_bytes(results, random))
            return Case([*score, "hypotheses=results.json", "tokenize=none", "format=jsonl"])
        case 4:
            written = {"image": "photos/0.png", "captions": [{"text": "a red thing"}, {"text": "a thing"}]}
            (directory / "out.jsonl").write_bytes(mutations.json_bytes(written, random) + b"\n")
            (directory / "own.jsonl").write_text('{"file": "0.png", "caption": "a red, thing"}\n')
            return Case(["eval", "task=captioning", "hypotheses=out.jsonl", "references=own.jsonl", "bootstrap=10"])
        case 5:
            (directory / "coco.json").write_bytes(mutations.json_bytes(random.choice((coco, coco, by_name)), random))
            return Case([*score, "hypotheses=results.json"])
        case 6:
            (directory / "df.json").write_bytes(mutations.json_bytes(frequencies, random))
            return Case([*score, "hypotheses=results.json", "document_frequencies=df.json"])
    (directory / "coco.json").write_bytes(mutations.json_bytes(random.choice((coco, by_name)), random))
    return Case(["eval", "task=captioning", "references=coco.json", "save_document_frequencies=out.json"])


KINDS: dict[str, Callable[[Random, Path, Path, Path], Case]] = {
    "checkpoints": checkpoints,
    "text": text,
    "images": images,
    "json": json_files,
    "configs": configs,
}


def repair(path: Path) -> None:
    """Write a manifest that matches the checkpoint's files."""
    manifest = {}
    for file in path.iterdir():
        if file.name != "manifest.json" and file.is_file():
            content = b"" if file.is_symlink() else file.read_bytes()
            manifest[file.name] = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))


def _command_for(name: str, random: Random, workspace: Path, directory: Path) -> Case:
    """A random command that uses `directory / "model"`, a checkpoint of the run `name`."""
    plain = ["device=cpu"] if name == "writes" else ["device=cpu", "max_length=8", "beam=2"]
    match random.randrange(10):
        case 0 | 1:
            return Case(["inspect", "model"])
        case 2 if name == "attend":
            return Case(["prepare", "data.train=20", "data.valid=2", "data.test=2", "data.vocabulary.reuse=model"])
        case 3:
            shutil.copytree(workspace / "cache", directory / "cache")
            shutil.copytree(workspace / "data", directory / "data")
            return Case(["train", *_run_settings(name), "init_from=model", "train.steps=1", "run=new"])
        case 4:
            (directory / "runs" / name / "checkpoints").mkdir(parents=True)
            (directory / "model").rename(directory / "runs" / name / "checkpoints" / "step-0000900")
            shutil.copytree(workspace / "cache", directory / "cache")
            shutil.copytree(workspace / "data", directory / "data")
            shutil.copy(workspace / "runs" / name / "config.yaml", directory / "runs" / name)
            return Case(["train", f"run={name}", "train.resume=true", "train.steps=1", "device=cpu"])
        case 5 | 6:
            return Case(["eval", "checkpoint=model", "bootstrap=2", *plain])
    if name == "writes":
        return Case(["generate", "checkpoint=model", "prompt=the c", "max_length=8", *plain])
    if name in CAPTIONERS:
        return Case(["caption", "checkpoint=model", f"images={workspace / 'data' / 'photos' / '3.png'}", *plain])
    return Case(["translate", "checkpoint=model", *plain], b"a big cat\n\nthe house is small\n")


def _settings(random: Random, name: str, workspace: Path, directory: Path) -> list[str]:
    """A random command line with one to three nonsensical settings."""
    from omegaconf import OmegaConf

    run = f"checkpoint={workspace / 'runs' / name}"
    (directory / "lines").write_text("a cat\na dog\n")
    if name in CAPTIONERS:
        decode = ["caption", run, f"images={workspace / 'data' / 'photos' / '3.png'}", "max_length=8"]
    elif name == "writes":
        decode = ["generate", run, "prompt=the", "max_length=8"]
    else:
        decode = ["translate", run, "input=lines", "max_length=8"]
    train = ["train", *_run_settings(name), "train.steps=1", "run=new"]
    arguments = random.choice(
        (
            decode,
            decode,
            [*decode, "n=2" if name == "writes" else "sample=true"],
            ["eval", "hypotheses=lines", "references=lines", "bootstrap=2"],
            ["prepare", "data.train=20", "data.valid=2", "data.test=2", "data.vocabulary.size=60"],
            [*train, "--cfg=job"],
            train,
        )
    )
    if arguments[0] == "train":
        shutil.copytree(workspace / "cache", directory / "cache")
        shutil.copytree(workspace / "data", directory / "data")
    command = arguments[0]
    if command in ("train", "prepare"):
        stored = OmegaConf.load(workspace / "runs" / name / "config.yaml")
        keys = [key for key in _keys(stored) if command == "train" or key.startswith("data.")]
    else:
        files = (command,) if command == "generate" else (command, "decoding")
        configs = [OmegaConf.load(config_directory() / f"{name}.yaml") for name in files]
        keys = [key for config in configs for key in _keys(config) if not key.startswith("defaults")]
    keys = [key for key in keys if not key.endswith("_target_") and key != "testset"]
    for _ in range(random.randint(1, 3)):
        key = random.choice(keys)
        arguments.append(f"{random.choice(('', '', '', '', '+', '++', '~'))}{key}={_setting(random)}")
    return arguments


def _setting(random: Random) -> str:
    """A value for a setting, nearly always an invalid one."""
    hostile = ("[1,2", "(", "'", '"', "{a:1}", "a,b", "1,2", "${", "${beam}", "${oc.env:X}", "\\", "0x10", "1e999")
    integers = [str(number) for number in (*INTEGERS[:6], 10**12, 2**63, 2**64, 10**40, -1, -(10**12))]
    texts = [value for value in HOSTILE if isinstance(value, str) and value not in mutations.RAW]
    return random.choice((*hostile, *integers, *integers, "0.5", "1.5", "nan", "[]", "{}", "[[1],{a:b}]", *texts))


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Yield the full names of all settings in a configuration."""
    for key in config:
        value = config._get_node(key)
        if hasattr(value, "keys") and not value._is_none():
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _image(random: Random) -> tuple[str, bytes]:
    """The suffix and the bytes of a valid image file of any format and mode, rarely of a very large one."""
    from PIL import Image

    image, stream = picture(random), BytesIO()
    if random.random() < 0.02:
        size = random.choice(((9_000, 9_000), (60_000, 1)))
        image = Image.new(random.choice(("1", "L", "RGB", "RGBA", "I;16")), size)
        image.save(stream, "PNG")
        return "png", stream.getvalue()
    match random.randrange(14):
        case 0 | 1:
            image.convert(random.choice(("L", "RGB", "RGBA", "LA", "P", "1", "I;16"))).save(stream, "PNG")
            return "png", stream.getvalue()
        case 2 | 3 | 4:
            exif = Image.Exif()
            exif[0x0112] = random.randrange(10)
            image = image.convert(random.choice(("L", "RGB", "CMYK")))
            image.save(stream, "JPEG", quality=random.randint(5, 95), progressive=random.random() < 0.5, exif=exif)
            return "jpg", stream.getvalue()
        case 5 | 6:
            frames = [picture(random).resize(image.size) for _ in range(random.randrange(3))]
            image.save(stream, "GIF", save_all=True, append_images=frames, transparency=3)
            return "gif", stream.getvalue()
        case 7 | 8:
            image.save(stream, "WEBP", lossless=random.random() < 0.5)
            return "webp", stream.getvalue()
        case 9:
            image.convert(random.choice(("L", "RGB", "P", "1"))).save(stream, "BMP")
            return "bmp", stream.getvalue()
        case 10 | 11 | 12:
            compression = random.choice((None, "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4"))
            mode = "1" if compression == "group4" else random.choice(("L", "RGB", "CMYK")) if compression else "F"
            image.convert(mode).save(stream, "TIFF", compression=compression)
            return "tif", stream.getvalue()
    image.convert(random.choice(("L", "RGB", "1"))).save(stream, "PPM")
    return "ppm", stream.getvalue()


# Running the cases


class Worker:
    """Runs cases one after another, and checks the outcome of each."""

    def __init__(self, seed: int, workspace: Path, canary: Path) -> None:
        self.seed, self.workspace, self.canary = seed, workspace, canary
        self.directory = Path(tempfile.mkdtemp(prefix="case-", dir=workspace))
        self.output = Path(tempfile.mkstemp(prefix="output-", dir=workspace)[1]).open("w+b")  # noqa: SIM115
        for descriptor in (1, 2):
            os.dup2(self.output.fileno(), descriptor)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGALRM, _deadline.check)
        limit = 8 << 30  # bytes of new memory, so that the machine does not run out of memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        self.start = _resident("VmRSS")

    def make(self, kind: str, number: int) -> Case:
        """Write the files of a case into the empty directory, and change to it."""
        os.chdir(self.workspace)
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        case = KINDS[kind](Random(f"{self.seed}/{kind}/{number}"), self.workspace, self.directory, self.canary)
        os.chdir(self.directory)
        return case

    def run_in_process(self, kind: str, number: int) -> tuple[str, list[str]]:
        """Run a case in this process. Return its outcome in one word, and its problems, none if it passes."""
        case = self.make(kind, number)
        self.output.seek(0)
        self.output.truncate()
        _release_freed_memory()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak memory, VmHWM
        problem, status = None, None
        with _stdin(case.stdin):
            _deadline.start()
            try:
                status = cli.run(case.arguments, config_directory())
            except Hang:
                problem = f"more than {MAX_SECONDS} s\n{traceback.format_exc()}"
            except BaseException:
                problem = traceback.format_exc()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        memory = _resident("VmHWM") - self.start
        self.output.seek(0)
        return self._result(case, status, self.output.read().decode("utf-8", "replace"), memory, problem)

    def run_as_command(self, kind: str, number: int) -> tuple[str, list[str]]:
        """Run a case in a separate process; the results are as for `run_in_process`."""
        case = self.make(kind, number)
        arguments = [argument.replace("\0", "0").encode("utf-8", "replace") for argument in case.arguments]
        with tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as stdin:
            stdin.write(case.stdin)
            stdin.seek(0)
            command = [sys.executable, "-m", "seqtool", *arguments]
            process = subprocess.Popen(command, stdin=stdin, stdout=written, stderr=written)
            deadline, problem, finished = time.monotonic() + MAX_SECONDS + STARTUP_SECONDS, None, 0
            while not finished:
                finished, code, usage = os.wait4(process.pid, os.WNOHANG)
                if not finished and time.monotonic() > deadline:
                    process.kill()
                    problem = f"more than {MAX_SECONDS} s"
                time.sleep(0.02)
            process.returncode = os.waitstatus_to_exitcode(code)
            written.seek(0)
            output = written.read().decode("utf-8", "replace")
        return self._result(case, process.returncode, output, (usage.ru_maxrss << 10) - self.start, problem)

    def _result(
        self, case: Case, status: int | None, output: str, memory: int, problem: str | None
    ) -> tuple[str, list[str]]:
        """The outcome and the problems of a case, from its exit status, output, memory in bytes, and first problem."""
        problems = [problem] if problem else []
        if problem is None and status not in (0, 2):
            problems.append(f"status {status}")
        last = output.rstrip("\n").rpartition("\n")[2]
        if status == 2 and not (last.startswith("seqtool: ") and last.endswith((".", "?"))):
            problems.append("no error message in the last line")
        if "Traceback (most recent call last)" in output:
            problems.append("a traceback")
        if memory > MAX_BYTES:
            problems.append(f"{memory / 1e6:,.0f} MB of memory")
        if self.canary.exists():
            problems.append("code from a damaged file has run")
            self.canary.unlink()
        if problems:
            line = " ".join(argument if len(argument) < 200 else f"{argument[:200]}…" for argument in case.arguments)
            problems += [f"seqtool {line!r}", output[-3000:]]
        return {0: "done", 2: "refused"}.get(-1 if status is None else status, "failed"), problems


@contextmanager
def _stdin(content: bytes) -> Iterator[None]:
    """Make the content standard input within the context: as a pipe if it fits into one, otherwise as a file."""
    original = sys.stdin
    if len(content) < 60_000:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        stream: Any = os.fdopen(read, encoding="utf-8")
    else:
        stream = tempfile.TemporaryFile("w+")  # noqa: SIM115
        stream.buffer.write(content)
        stream.seek(0)
    sys.stdin = stream
    try:
        yield
    finally:
        sys.stdin = original
        stream.close()


class Deadline:
    """Raises Hang in the main thread after MAX_SECONDS. The time in which threads waited for a CPU does not count."""

    def start(self) -> None:
        self.end = self._now() + MAX_SECONDS
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS, 1.0)  # repeatedly, since some callbacks ignore exceptions

    def check(self, *_: object) -> None:
        """The handler of the timer's signal."""
        left = self.end - self._now()
        if left <= 0:
            raise Hang
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.1), 1.0)

    def _now(self) -> float:
        threads = Path("/proc/self/task").glob("*/schedstat")
        waited = sum(int(file.read_text().split()[1]) for file in threads)  # nanoseconds, ready to run
        return time.monotonic() - waited / 1e9


_deadline = Deadline()


def _release_freed_memory() -> None:
    """Return freed memory to the system, so that it does not count as memory of the next case (see keep_memory)."""
    ctypes.CDLL(None).malloc_trim(0)


def _resident(name: str) -> int:
    """The memory of this process in bytes: VmRSS now, or its peak, VmHWM."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def work(pipe: Connection, seed: int, workspace: Path, canary: Path, jobs: list[tuple[str, str, int]]) -> None:
    """Run jobs (mode, kind, number) here. Send each job and then its result through the pipe, and None at the end."""
    worker = Worker(seed, workspace, canary)
    for mode, kind, number in jobs:
        pipe.send((mode, kind, number))
        pipe.send(worker.run_as_command(kind, number) if mode == "command" else worker.run_in_process(kind, number))
    shutil.rmtree(worker.directory)
    pipe.send(None)


def warm_up() -> None:
    """Import the modules that commands import, so that they do not count as memory of a case."""
    import torch

    modules = (
        "matplotlib.pyplot",
        "timm",
        "torchvision.models.feature_extraction",
        "seqtool.cli.train",
        "seqtool.evaluation.captions",
        "seqtool.predict.captioner",
        "seqtool.predict.generator",
        "seqtool.predict.translator",
    )
    for module in modules:
        import_module(module)
    torch.set_num_threads(1)


def supervise(seed: int, workspace: Path, jobs: list[tuple[str, str, int]], report: Callable[..., None]) -> None:
    """Run all jobs in a process. If it dies or stops answering, a new process continues with the next job."""
    context = get_context("fork")
    canary = workspace / "canary"
    while jobs:
        receiver, sender = context.Pipe()
        process = context.Process(target=work, args=(sender, seed, workspace, canary, jobs))
        process.start()
        sender.close()
        current = None
        while True:
            problem = None
            try:
                if not receiver.poll(WORKER_SECONDS):
                    process.kill()
                    problem = "no answer"
                message = receiver.recv()
            except EOFError:
                process.join()
                problem = problem or f"the process died ({process.exitcode})"
                if current is None:
                    raise SystemExit(f"The worker cannot start: {problem}.") from None
                report(*current, "failed", [problem])
                jobs = jobs[jobs.index(current) + 1 :]
                break
            if message is None:
                process.join()
                return
            if len(message) == 3:
                current = message
            elif current is not None:
                report(*current, *message)


def run(
    *, seed: int, counts: dict[str, int], command: int, workspace: Path, only: tuple[str, int] | None = None
) -> dict[tuple[str, str], Counter[str]]:
    """Run the cases, and print every failure and a line for each kind. Return the outcomes' counts by (mode, kind)."""
    warm_up()
    if not (workspace / "runs").exists():
        process = get_context("fork").Process(target=make_workspace, args=(workspace,))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit("The tiny models cannot be trained.")
    jobs = [("in process", kind, number) for kind, count in counts.items() for number in range(count)]
    jobs += [("command", kind, number) for kind in counts for number in range(command)]
    if only is not None:
        jobs = [("in process", *only)]
    outcomes: dict[tuple[str, str], Counter[str]] = {(mode, kind): Counter() for mode, kind, _ in jobs}
    start = time.monotonic()

    def report(mode: str, kind: str, number: int, outcome: str, problems: list[str]) -> None:
        counts_of_kind = outcomes[mode, kind]
        counts_of_kind["failed" if problems else outcome] += 1
        if problems:
            print(f"FAILED {mode}: --seed {seed} --only {kind}:{number}")
            print("\n".join(f"    {line}" for problem in problems for line in problem.splitlines()), flush=True)
        if counts_of_kind.total() == sum(1 for job in jobs if job[:2] == (mode, kind)):
            summary = ", ".join(f"{counts_of_kind[outcome]:,} {outcome}" for outcome in ("done", "refused", "failed"))
            seconds = time.monotonic() - start
            print(f"{kind} ({mode}): {counts_of_kind.total():,} cases, {summary}; {seconds:,.0f} s", flush=True)

    for first in range(0, len(jobs), CASES_PER_WORKER):
        supervise(seed, workspace, jobs[first : first + CASES_PER_WORKER], report)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=int, default=1000, help="mutated checkpoints")
    parser.add_argument("--inputs", type=int, default=250, help="mutated inputs of each other kind")
    parser.add_argument(
        "--command", type=int, default=0, help="cases of each kind that also run as `python -m seqtool`"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", metavar="KIND:NUMBER", help="run a single case")
    parser.add_argument("--place", type=Path, help="a directory in which the tiny models are kept")
    arguments = parser.parse_args()
    only = None
    if arguments.only:
        kind, _, number = arguments.only.partition(":")
        only = (kind, int(number))
    counts = {kind: arguments.checkpoints if kind == "checkpoints" else arguments.inputs for kind in arguments.kinds}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        workspace = arguments.place or Path(scratch)
        workspace.mkdir(parents=True, exist_ok=True)
        results = run(
            seed=arguments.seed, counts=counts, command=arguments.command, workspace=workspace.resolve(), only=only
        )
    sys.exit(1 if any(counts["failed"] for counts in results.values()) else 0)


if __name__ == "__main__":
    main()
