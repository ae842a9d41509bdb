#!/usr/bin/env python
"""Score the models of seqtool/builtin, and record in record.json how they were made and what they score.

    python scripts/development/record_builtin.py [DIRECTORY]

tests/test_builtin.py compares the models with this record, which has for each model

sha256     of its manifest.json, which has the digests of its other files, without its card
bytes      the size of its files, without its card, which says how long its training took
steps      the updates of the checkpoint that was exported
threads    the CPU threads that trained it
versions   of seqtool, torch and Python
scores     bleu: BLEU of the first 200 test sentences of the built-in corpus; true: the share of true captions of the
           first 100 test pictures; bits: bits per character of 100 new sentences of the built-in grammar
"""

import hashlib
import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import sacrebleu

import seqtool
from seqtool.data.corpora import scenes, toy
from seqtool.data.corpora.scene_drawing import render
from seqtool.training import checkpoint

sys.path.append(str(Path(__file__).resolve().parent.parent))
from scene_captions import is_true

RECORD = "record.json"
BUILT_IN = Path(seqtool.__file__).parent / "builtin"


def translations(model: Any) -> dict[str, float]:
    pairs = toy.generate(seed=1, train=0, valid=0, test=200)["test"]
    hypotheses = model.translate([pair.source for pair in pairs])
    return {"bleu": sacrebleu.corpus_bleu(hypotheses, [[pair.target for pair in pairs]]).score}


def captions(model: Any) -> dict[str, float]:
    test_scenes = [scene for scene, _ in scenes.generate(seed=1, train=0, valid=0, test=100)["test"]]
    texts = model.caption(list(map(render, test_scenes)))
    return {"true": sum(map(is_true, texts, test_scenes)) / len(test_scenes)}


def texts(model: Any) -> dict[str, float]:
    pairs = toy.generate(seed=2, train=0, valid=0, test=100)["test"]  # a model of texts is trained on seed 1
    text = "".join(f"{pair.source}\n" for pair in pairs)
    return {"bits": -model.forced(None, [text])[0].log_probability / math.log(2) / len(text)}


SCORES = {"words": translations, "soft": captions, "hard": captions, "text": texts}


def scores(name: str, directory: Path) -> dict[str, float]:
    """The scores of the model called `name` in this directory."""
    model = seqtool.load(directory / name, device="cpu", threads=1)
    return {score: round(value, 4) for score, value in SCORES[name](model).items()}


def facts(directory: Path) -> dict[str, Any]:
    """Return what the record says about a model, without its scores."""
    saved = checkpoint.find(directory)
    return {
        "sha256": hashlib.sha256((directory / checkpoint.MANIFEST).read_bytes()).hexdigest(),
        "bytes": sum(file.stat().st_size for file in directory.iterdir() if file.suffix != ".md"),
        "steps": saved.progress["step"],
        "threads": saved.config["threads"],
        "versions": saved.versions,
    }


def processor() -> str:
    """The name of the processor or, if it is not known, its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILT_IN
    models = {name: {**facts(directory / name), "scores": scores(name, directory)} for name in SCORES}
    record = json.dumps({"processor": processor(), "models": models}, indent=1)
    (directory / RECORD).write_text(f"{record}\n", encoding="utf-8")
    print(record)


if __name__ == "__main__":
    main()
