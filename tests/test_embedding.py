"""Tests of the vectors of sentences, of their picture and of `seqtool embed`."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import make_model, random_sentences

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import make_source
from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.models.inputs import Source
from seqtool.models.tokens import BOS
from seqtool.models.tracing import embed, trace
from seqtool.models.transformer import Transformer
from seqtool.runtime.files import config_directory
from seqtool.view import plots

SENTENCES = ["I have a cat.", "", "The girl who sees the dogs eats a red apple.", "I have a dog.", "She has two cars."]
VECTORS = "last", "mean", "c"


def run(*arguments: str) -> int:
    return cli.run([*arguments], config_directory())


def test_vectors_are_what_the_model_computes(model: EncoderDecoder[Any]) -> None:
    """They equal the traced states of each sentence alone, so padding and the rest of the batch change nothing."""
    sentences, names = random_sentences(3, seed=3), VECTORS[:2] if isinstance(model, Transformer) else VECTORS
    batch = {name: embed(model, make_source(sentences), name) for name in names}
    for row, source in enumerate(make_source([sentence]) for sentence in sentences):
        alone = alone_vectors(model, source)
        for name in names:
            torch.testing.assert_close(batch[name][row], alone[name], rtol=1e-4, atol=1e-5)


def alone_vectors(model: Any, source: Source) -> dict[str, torch.Tensor]:
    """The vectors of one sentence, made of what `trace` records."""
    if isinstance(model, Transformer):
        h = model.annotate(source)[0][0]
        return {"last": h[-1], "mean": h.mean(0)}
    traced = trace(model, source, torch.tensor([BOS]))
    top = max(name for name in traced if name.startswith("encoder.ahead.") and name.endswith(".h"))
    forward, backward = traced[top].values, traced.get(top.replace("ahead", "back"))
    memory, state = model.encode(source)
    s_0 = torch.cat([tensor[0] for layer in state.layers for tensor in layer])
    c = s_0 if s_0.any() else memory.values[0, 0]  # with context=every_step, s_0 is zero
    if backward is not None:
        h = torch.cat([forward, backward.values], -1)
        return {"last": torch.cat([forward[-1], backward.values[0]]), "mean": h.mean(0), "c": c}
    return {"last": forward[model.reading_order(len(forward))[-1]], "mean": forward.mean(0), "c": c}


def test_a_vector_that_a_model_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="Transformer has no vector=c: choose last or mean"):
        embed(make_model("transformer"), make_source([[5]]), "c")
    with pytest.raises(InputError, match="Luong has no vector=first"):
        embed(make_model("luong"), make_source([[5]]), "first")
    own = make_model("luong")
    own.encoder = torch.nn.Identity()
    with pytest.raises(InputError, match="Luong has no vector=mean: it has no encoder that seqtool knows"):
        embed(own, make_source([[5]]), "mean")
    in_int8 = seqtool.load("builtin/words", device="cpu")
    in_int8.settings.precision = "int8"  # which few processors have
    with pytest.raises(InputError, match="embed takes no precision=int8"):
        in_int8.embed(["I have a cat."])
    with pytest.raises(InputError, match="an ensemble"):
        seqtool.load(["builtin/words"] * 2, device="cpu").embed(["I have a cat."])


def test_components_keep_distances_and_labels_do_not_overlap() -> None:
    """The components of points in a plane, wherever it lies, have the distances of the points. Labels that find
    no place are left out.
    """
    random = np.random.default_rng(0)
    plane, crowd = random.normal(size=(2, 30)), random.normal(size=(24, 2)) * [3, 0.01]
    vectors, labels = crowd @ plane + random.normal(size=30), [f"sentence number {i}" for i in range(24)]
    (axes,) = plots.principal_components(vectors, labels, None).axes
    points = axes.lines[0].get_xydata()
    for i, j in combinations(range(24), 2):
        assert np.linalg.norm(points[i] - points[j]) == pytest.approx(np.linalg.norm(vectors[i] - vectors[j]))
    boxes = [label.get_window_extent() for label in axes.texts]
    assert 6 < len(boxes) < 24 and not any(box.overlaps(other) for box, other in combinations(boxes, 2))
    spots = axes.transData.transform(points)
    assert not any(box.contains(*spot) for box in boxes for spot in spots)
    with pytest.raises(InputError, match="plot= needs at least three lines, not 2"):
        plots.principal_components(vectors[:2], labels[:2], None)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.en").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    common = "embed", "builtin/words", "input=in.en", "device=cpu"
    assert run(*common) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    vectors = seqtool.load("builtin/words", device="cpu").embed(SENTENCES)
    assert [record["text"] for record in records] == SENTENCES
    assert np.array_equal(np.array([record["vector"] for record in records], np.float32), vectors)
    assert run(*common, "vector=mean", "output=v.npy", "neighbours=9", "plot=v.svg") == 0
    output, message = capsys.readouterr()
    means = np.load("v.npy")
    assert means.shape == vectors.shape and not np.allclose(means, vectors) and means.dtype == np.float32
    assert "I have a dog." in Path("v.svg").read_text() and message == "Vectors: v.npy\nFigure: v.svg\n"
    blocks = [output.splitlines()[start : start + len(SENTENCES)] for start in range(0, 25, len(SENTENCES))]
    assert [block[0] for block in blocks] == SENTENCES
    for row, block in enumerate(blocks):
        cosines = [float(line.split()[0]) for line in block[1:]]
        others = [line[9:] for line in block[1:]]
        assert sorted([SENTENCES[row], *others]) == sorted(SENTENCES) and cosines == sorted(cosines, reverse=True)
        nearest = means[row] @ means[SENTENCES.index(others[0])]
        lengths = np.linalg.norm(means[row]) * np.linalg.norm(means[SENTENCES.index(others[0])])
        assert nearest / lengths == pytest.approx(cosines[0], abs=6e-4)
    assert blocks[0][1].endswith("I have a dog.")
    mistakes = {
        "vector=first": "Unknown vector 'first'; choose from last, mean, c.",
        "plot=in.en": "plot=in.en is the same file as the input, which is read",
        "output=v.jsonl": "output=v.jsonl must be the name of an .npy file.",
        "output=no/v.npy": "no/v.npy cannot be written: there is no directory",
        "neighbours=-1": "neighbours must be at least 0, not -1.",
        "checkpoint=builtin/soft": "holds a captioner: use seqtool caption.",
    }
    for setting, expected in mistakes.items():
        assert run("embed", *common[2:], *(["builtin/words"] if "checkpoint" not in setting else []), setting) == 2
        assert expected in capsys.readouterr().err


def test_gradients_can_follow_vectors() -> None:
    """The model is read without gradients for vectors, and has them afterwards."""
    translator: Any = seqtool.load("builtin/words", device="cpu", threads=1)
    assert translator.embed(["I see."]).shape == (1, 256)
    assert translator.attribute("I see.", "Veo.", method="gradient").source.any()
