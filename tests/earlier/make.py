"""Trains the runs of this folder again, and writes down what the code that trained them makes of them.

    git worktree add ../earlier 71ccf39
    python tests/earlier/make.py ../earlier

71ccf39 made what is kept here. `text/` is written by hand; `runs/` and `found.json` are replaced.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
MACHINE = "device=cpu threads=1"
TOY = "data=toy data.train=400 data.valid=20 data.test=20 data.processes=1"
FEW = "data=toy data.train=100 data.valid=20 data.test=20 data.processes=1"
LETTERS = "data=parallel data.train=text/train.tsv data.valid=text/valid.tsv data.test=text/test.tsv data.processes=1"
SCENES = "data=scenes data.train=16 data.valid=4 data.test=6 data.processes=1"
COMMON = f"{MACHINE} train.minutes=null train.batch_size=16 train.keep_last=1 train.validate_every=1000"
DATA = {"joint": TOY, "words": FEW, "letters": LETTERS, "fixed": SCENES, "hard": SCENES}
VOCABULARIES = {
    "joint": "data.vocabulary.kind=bpe data.vocabulary.size=120 data.vocabulary.joint=true",
    "words": "data.vocabulary.kind=word",
    "letters": "data.vocabulary.kind=char",
    "fixed": "data.vocabulary.minimum_count=2",
    "hard": "data.vocabulary.minimum_count=2",
}
MODELS = {
    "joint": "model=bahdanau model.embedding=16 model.encoder_hidden=8 model.decoder_hidden=16 model.alignment=8 "
    "model.maxout=16 model.tie=all model.dropout=0 optim.lr=0.02",
    "words": "model=sutskever model.embedding=8 model.hidden=16 model.layers=1 model.dropout=0 optim=sgd optim.lr=0.5 "
    "optim.momentum=0.9",
    "letters": "model=luong model.embedding=8 model.hidden=16 model.alignment=8 model.dropout=0 optim.lr=0.02",
    "fixed": "model=show_tell model.embedding=8 model.hidden=16 model.context=every_step model.dropout=0 "
    "model.encoder.fine_tune_from=null model.encoder.augment=false optim.lr=0.02",
    "hard": "model=show_attend_tell model.attention=hard model.embedding=8 model.hidden=16 model.alignment=8 "
    "model.dropout=0 model.doubly_stochastic=0.02 model.soft_share=0.8 model.encoder.fine_tune_from=100000 "
    "optim=rmsprop optim.lr=0.02 optim.momentum=0 optim.centered=false optim.eps=1e-8",
}
EPOCHS = {"joint": 20, "words": 60, "letters": 40, "fixed": 60, "hard": 60}


def main() -> None:
    checkout = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="seqtool-earlier-") as directory:
        place = Path(directory)
        shutil.copytree(HERE / "text", place / "text")
        for name in MODELS:
            settings = f"{DATA[name]} {VOCABULARIES[name]} {MODELS[name]} {COMMON} train.epochs={EPOCHS[name]}"
            seqtool(checkout, place, f"train run={name} {settings}")
        shutil.rmtree(HERE / "runs", ignore_errors=True)
        shutil.copytree(place / "runs", HERE / "runs", ignore=shutil.ignore_patterns("*.png", ".lock"))
        answers = {line: seqtool(checkout, place, line) for name in MODELS for line in uses(name)}
        continued = {}
        for name in MODELS:
            for run, line in continuations(name).items():
                seqtool(checkout, place, line)
                continued[line] = losses(place / "runs" / run)
    describe = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    found = {
        "commit": commit,
        "pictures": f"prepare {SCENES} model=show_tell",
        "answers": answers,
        "continued": continued,
    }
    (HERE / "found.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def uses(name: str) -> Iterator[str]:
    """Command lines, whose output is kept."""
    yield f"inspect runs/{name}"
    if DATA[name] == SCENES:
        command = f"caption checkpoint=runs/{name} images=data/scenes/train/0000*.png {MACHINE}"
    else:
        command = (
            f"translate checkpoint=runs/{name} input=text/{'letters' if name == 'letters' else 'toy'}.txt {MACHINE}"
        )
    yield f"{command} max_length=20"
    yield f"{command} max_length=20 beam=1 format=jsonl"
    yield f"{command} max_length=20 sample=true temperature=0.7"
    if name == "hard":
        yield f"{command} max_length=20 hard_attention=sample beam=2 format=jsonl"
    tokenize = " tokenize=13a" if name == "letters" else ""  # which was chosen for every text
    yield f"eval checkpoint=runs/{name} {MACHINE} max_length=20 format=json{tokenize}"


def continuations(name: str) -> dict[str, str]:
    """Of a run that begins with its weights, and then of the run that goes on: command lines, whose losses are kept."""
    settings = f"{DATA[name]} data.vocabulary.reuse=runs/{name} {MODELS[name]} {COMMON}"
    if name == "hard":
        settings += " model.encoder.fine_tune_from=0"
    noted = "train.log_every=1"
    return {
        f"{name}-tuned": f"train run={name}-tuned init_from=runs/{name} {settings} {noted} train.steps=3",
        name: f"train run={name} train.resume=true train.epochs={EPOCHS[name] + 1} {noted}",
    }


def losses(run: Path) -> list[float]:
    """Of the last three updates."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record][-3:]


def seqtool(checkout: Path, place: Path, line: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "seqtool", *shlex.split(line)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"seqtool {line}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
