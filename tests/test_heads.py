"""Tests of a Transformer's heads: their figures, and their ranking by what the model loses without each."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

import seqtool
from seqtool.cli import main as cli
from seqtool.errors import InputError
from seqtool.models.transformer import CrossAttention, SelfAttention
from seqtool.predict.trace import Trace
from seqtool.runtime.files import config_directory
from seqtool.view import plots

MACHINE = ["device=cpu", "threads=1", "data.processes=1", "train.minutes=null"]
SIZES = ["model.width=32", "model.heads=2", "model.feed_forward=32", "model.dropout=0"]
KINDS = ["cross-attention", "decoder-self-attention", "encoder-self-attention"]


def run(*arguments: str) -> int:
    return cli.run(arguments, config_directory())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a translator that reverses its source, and an untrained language model."""
    generator = torch.Generator().manual_seed(0)
    pairs = ["".join("abcdefgh"[i] for i in torch.randint(8, (5,), generator=generator)) for _ in range(2000)]
    with contextlib.chdir(tmp_path_factory.mktemp("workspace")):
        lines = [(" ".join(word), " ".join(reversed(word))) for word in pairs]
        Path("train").write_text("".join(f"{source}\t{target}\n" for source, target in lines))
        Path("valid").write_text("".join(f"{source}\t{target}\n" for source, target in lines[:20]))
        for side, texts in zip(("sources", "targets"), zip(*lines[:40], strict=True), strict=True):
            Path(side).write_text("".join(f"{text}\n" for text in texts))
        data = ["data=parallel", "data.train=train", "data.valid=valid", "data.vocabulary.kind=word"]
        layers = ["model=transformer", "model.encoder_layers=1", "model.decoder_layers=1", "optim.lr=0.005"]
        assert run("train", *data, *layers, *SIZES, *MACHINE, "train.steps=100", "run=reverse") == 0
        Path("text").write_text("the cat sees the dog\n" * 50)
        text = ["data=text", "data.train=text", "model=transformer_language_model", "model.layers=2"]
        assert run("train", *text, *SIZES, *MACHINE, "train.steps=2", "run=text") == 0
        yield Path.cwd()


@pytest.fixture
def translator(workspace: Path) -> Any:
    return seqtool.load("runs/reverse", device="cpu", threads=1)


@pytest.fixture
def pairs(workspace: Path) -> list[list[str]]:
    return [Path(side).read_text().splitlines() for side in ("sources", "targets")]


@pytest.fixture(scope="module")
def ranking(workspace: Path) -> Any:
    pairs = [Path(side).read_text().splitlines() for side in ("sources", "targets")]
    return seqtool.load("runs/reverse", device="cpu", threads=1).head_ranking(*pairs)


def loss(translator: Any, pairs: list[list[str]]) -> float:
    log_p = [value for text in translator.forced(*pairs) for value in text.log_probabilities]
    return -sum(log_p) / len(log_p)


def test_removing_the_best_head_costs_more_than_the_median(
    translator: Any, pairs: list[list[str]], ranking: Any
) -> None:
    """The ranking leaves the model as it was."""
    before = loss(translator, pairs)
    rises = [head.rise for head in ranking]
    assert len(ranking) == 6 and rises == sorted(rises, reverse=True)
    assert {head[:3] for head in ranking} == {(kind, 1, head) for kind in KINDS for head in (1, 2)}
    assert rises[0] > 2 * median(rises) > 0 and rises[0] > 0.1
    assert translator.head_ranking(*pairs) == ranking and loss(translator, pairs) == before


def test_a_rise_is_that_without_the_output_of_the_head(translator: Any, pairs: list[list[str]], ranking: Any) -> None:
    """The output of the head is set to 0 before W^O, by a hook on the model that translates."""
    before = loss(translator, pairs)
    attention = translator.model.decoder.layers[0].source_attention

    def remove(_: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        return inputs[0].index_fill(-1, torch.arange(16, 32), 0)

    with attention.output.register_forward_pre_hook(remove):
        rise = loss(translator, pairs) - before
    (second,) = (head.rise for head in ranking if head[:3] == ("cross-attention", 1, 2))
    assert rise == pytest.approx(second, abs=1e-5)


def test_only_a_head_with_an_output_has_a_rise(translator: Any, pairs: list[list[str]]) -> None:
    """If the second head of the decoder alone has an output, the loss is the same without any other."""
    for name, module in translator.plain_model.named_modules():
        if isinstance(module, SelfAttention | CrossAttention):
            weight = module.output.weight.data
            weight[:, [i for i in range(32) if name != "decoder.layers.0.attention" or i < 16]] = 0
    assert [head[:3] for head in translator.head_ranking(*pairs) if head.rise] == [("decoder-self-attention", 1, 2)]


def test_the_command_prints_the_ranking(workspace: Path, ranking: Any, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("inspect", "runs/reverse", "heads=true", "input=sources,targets") == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in rows[0]] == ["attention", "layer", "head", "nats a token"]
    printed = [tuple(cell.strip() for cell in row) for row in rows[2:]]
    expected = [(*map(str, head[:3]), f"{head.rise:.4f}") for head in ranking]
    assert printed == expected
    assert run("inspect", "runs/text", "heads=true", "input=text") == 0
    out = capsys.readouterr().out
    assert out.count("decoder-self-attention") == 4 and "cross" not in out


@pytest.mark.parametrize(
    ("path", "setting", "message"),
    [
        ("runs/reverse", "input=sources", "input=sources must name a file of each side: source and target."),
        ("runs/text", "input=text output=a.json", "heads=true prints a table: leave output= and plot= out."),
        ("runs/text", "input=text plot=a", "heads=true prints a table: leave output= and plot= out."),
        ("runs/text", "input=text,text", "input=text,text must name a file of each side: target."),
        ("runs/reverse", "input=sources,valid", "Sources and targets must have the same length, not 40 and 20: give"),
        ("builtin/text", "input=text", "has no heads to rank: choose a Transformer."),
        ("builtin/soft", "input=text", "holds a captioner: give image= or image= and text=, not "),
    ],
)
def test_unsuitable_files_and_models_are_refused(
    workspace: Path, path: str, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("inspect", path, "heads=true", *setting.split()) == 2
    assert message in capsys.readouterr().err


def test_figures_of_a_pair_show_the_arrays_of_its_trace(
    workspace: Path, translator: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One figure for each kind of attention, with a row of heads for each layer."""
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "heads", lambda weights, *words: drawn.update({words[-1].name: (weights, *words)}))
    capsys.readouterr()
    assert run("inspect", "runs/reverse", "pair=a b c ||| c b a", "plot=figures") == 0
    files = [f"{kind}-0001.png" for kind in KINDS]
    assert sorted(drawn) == files
    printed = capsys.readouterr().out.splitlines()[-1].removeprefix("Figures: ")
    assert sorted(printed.split(", ")) == [f"figures/{file}" for file in files]
    trace = translator.trace("a b c", "c b a")
    source, target = trace.labels["source"], trace.labels["target"]
    assert source[-1] == "<end>" and target[0] == "<begin>"
    expected = {
        "encoder-self-attention": ("encoder.0.attention", source, source),
        "decoder-self-attention": ("decoder.layers.0.attention", target, target),
        "cross-attention": ("decoder.layers.0.source_attention", source, trace.written()),
    }
    for kind, (name, columns, rows) in expected.items():
        weights, *labels, _ = drawn[f"{kind}-0001.png"]
        assert np.allclose(weights[0], trace[name].transpose(1, 0, 2)) and labels == [columns, rows]
        assert weights.shape == (1, 2, len(rows), len(columns))


def test_figures_of_translations_and_texts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`translate plot=` draws the heads beside each alignment, `inspect text=` those of a language model."""
    Path("input").write_text("\na b c\n")
    Path("both").mkdir()
    for kind in ("heads", "heat_map"):
        monkeypatch.setattr(plots, kind, lambda *figure, **_: figure[3].touch())
    machine = ["device=cpu", "threads=1", "input=input", "output=output"]
    assert run("translate", "checkpoint=runs/reverse", *machine, "plot=both", "figures=svg") == 0
    files = {f"{kind}-0002.svg" for kind in ("alignment", *KINDS)}
    assert {file.name for file in Path("both").iterdir()} == files
    monkeypatch.undo()
    assert run("inspect", "runs/text", "text=the cat", "plot=text-figures") == 0
    (file,) = Path("text-figures").iterdir()
    assert file.name == "decoder-self-attention-0001.png" and file.read_bytes().startswith(b"\x89PNG")


def test_locations_of_an_image_have_no_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "heads", lambda *arguments: drawn.append(arguments))
    weights = np.zeros((2, 3, 4), np.float32)
    trace = Trace({"x": weights}, {"x": ("target", "head", "location")}, {"target": ["<begin>", "a"]}, (2, 2))
    assert trace.plot_heads(tmp_path, "pdf", number=7) == [tmp_path / "cross-attention-0007.pdf"]
    ((drawn_weights, columns, rows, _),) = drawn
    assert drawn_weights.shape == (1, 3, 2, 4) and columns == [""] * 4 and rows == ["<begin> → a", "a → …"]


def test_models_without_heads_have_no_figures(workspace: Path, tmp_path: Path) -> None:
    translator: Any = seqtool.load("builtin/words", device="cpu", threads=1)
    assert translator.trace("I have a cat.", "Tengo un gato.").plot_heads(tmp_path) == []
    with pytest.raises(InputError, match=r"has no heads to rank: choose a Transformer\.$"):
        translator.head_ranking(["I have a cat."], ["Tengo un gato."])
