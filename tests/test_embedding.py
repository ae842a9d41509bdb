"""Tests of the vectors of sentences, texts and images, of their picture and of `seqtool embed`."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from PIL import Image
from small_models import make_captioner, random_images, random_sentences

import seqtool
from seqtool.cli import main as cli
from seqtool.data.batches import make_source
from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.models.tokens import BOS
from seqtool.models.tracing import embed, trace
from seqtool.runtime.files import config_directory
from seqtool.view import plots

SENTENCES = ["I have a cat.", "", "The girl who sees the dogs eats a red apple.", "I have a dog.", "She has two cars."]
EXACT = {"rtol": 1e-4, "atol": 1e-5}


def run(*arguments: str) -> int:
    return cli.run([*arguments], config_directory())


def test_vectors_are_what_the_model_computes(model: EncoderDecoder[Any]) -> None:
    """They equal the traced states of each sentence alone, so padding and the rest of the batch change nothing."""
    sentences = random_sentences(5, seed=3)
    sources = [make_source([sentence]) for sentence in sentences]
    vectors = {name: embed(model, make_source(sentences), name) for name in ("last", "mean")}
    if not hasattr(model, "annotate"):
        vectors["c"] = embed(model, make_source(sentences), "c")
    for row, source in enumerate(sources):
        if hasattr(model, "annotate"):
            h = model.annotate(source)[0][0]
            last = h[-1]
        else:
            traced = trace(model, source, torch.tensor([BOS]))
            top = max(name for name in traced if name.startswith("encoder.ahead.") and name.endswith(".h"))
            forward, backward = traced[top].values, traced.get(top.replace("ahead", "back"))
            order = model.reading_order(len(forward))
            last = forward[order[-1]] if backward is None else torch.cat([forward[-1], backward.values[0]])
            h = forward if backward is None else torch.cat([forward, backward.values], -1)
            memory, state = model.encode(source)
            c = torch.cat([tensor for layer in state.layers for tensor in layer], -1)
            torch.testing.assert_close(vectors["c"][row], (c if c.any() else memory.values[:, 0])[0], **EXACT)
        torch.testing.assert_close(vectors["last"][row], last, **EXACT)
        torch.testing.assert_close(vectors["mean"][row], h.mean(0), **EXACT)


def test_a_vector_that_a_model_lacks_is_refused(model: EncoderDecoder[Any]) -> None:
    captioner, images = make_captioner("show_tell-gru"), random_images(3, seed=0)
    torch.testing.assert_close(embed(captioner, images, "mean"), images.values.float().mean(1))
    assert embed(captioner, images, "c").shape == (3, 8)
    with pytest.raises(InputError, match="ShowTell has no vector=last: choose another of last, mean and c"):
        embed(captioner, images, "last")
    if hasattr(model, "annotate"):
        with pytest.raises(InputError, match="Transformer has no vector=c"):
            embed(model, make_source([[5]]), "c")


def test_texts_of_a_language_model() -> None:
    """`last` is the state after the last word, and `mean` averages over <bos> and all words."""
    generator = seqtool.load("builtin/text", device="cpu")
    texts = ["to be", "or not to be, that is", ""]
    last, mean = (generator.embed(texts, vector) for vector in ("last", "mean"))
    for row, text in enumerate(texts):
        traced = generator.trace(text)
        top = max(name for name in traced if name.endswith(".h"))
        np.testing.assert_allclose(last[row], traced[top][-1], **EXACT)
        np.testing.assert_allclose(mean[row], traced[top].mean(0), **EXACT)
    with pytest.raises(InputError, match="LanguageModel has no vector=c"):
        generator.embed(texts, "c")
    with pytest.raises(InputError, match="Unknown vector 'first'; choose from last, mean, c"):
        generator.embed(texts, "first")


def test_components_keep_distances_and_labels_do_not_overlap() -> None:
    """The components of points in a plane, wherever it lies, have the distances of the points. Crowded labels are
    spread out.
    """
    random = np.random.default_rng(0)
    plane, crowd = random.normal(size=(2, 30)), random.normal(size=(24, 2)) * [3, 0.01]
    vectors, labels = crowd @ plane + random.normal(size=30), [f"sentence number {i}" for i in range(24)]
    (axes,) = plots.principal_components(vectors, labels, None).axes
    points = axes.lines[0].get_xydata()
    for i, j in combinations(range(24), 2):
        assert np.linalg.norm(points[i] - points[j]) == pytest.approx(np.linalg.norm(vectors[i] - vectors[j]))
    shown = [label for label in axes.texts if label.get_visible()]
    axes.figure.draw_without_rendering()  # moves the labels
    boxes = [Text.get_window_extent(label) for label in shown]
    assert len(shown) > 12 and len({label.get_text() for label in shown}) == len(shown)
    assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))
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
    assert run(*common, "vector=mean", "output=v.npy", "neighbours=9", "plot=figures", "figures=svg") == 0
    output, message = capsys.readouterr()
    means = np.load("v.npy")
    assert means.shape == vectors.shape and not np.allclose(means, vectors) and means.dtype == np.float32
    assert "Figure: figures/vectors.svg" in message and "I have a dog." in Path("figures/vectors.svg").read_text()
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
    assert run(*common, "vector=first") == 2 and run(*common, "output=in.en") == 2
    message = capsys.readouterr().err
    assert "Unknown vector 'first'; choose from last, mean, c." in message
    assert "output=in.en is the same file as the input, which is read" in message


def test_images_are_named_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "list.txt").write_text(f"{tmp_path}/a.png\n{tmp_path}/b.png\n")
    output = tmp_path / "vectors.jsonl"
    settings = f"input={tmp_path}/list.txt", "vector=mean", f"output={output}", "device=cpu"
    assert run("embed", "builtin/soft", *settings) == 0
    captioner = seqtool.load("builtin/soft", device="cpu")
    vectors = captioner.embed([Image.open(tmp_path / f"{name}.png") for name in "ab"], "mean")
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert np.array_equal(np.array([record["vector"] for record in records], np.float32), vectors)
    (tmp_path / "list.txt").write_text(f"{tmp_path}/c.png\n")
    assert run("embed", "builtin/soft", *settings) == 2
    assert "c.png" in capsys.readouterr().err
