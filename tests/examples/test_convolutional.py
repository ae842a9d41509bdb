"""Tests of the example of a convolutional language model: it keeps the rules of models, and learns and generates."""

import re
from collections import Counter
from collections.abc import Iterator
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from example_modules import imported, train_less

from seqtool.cli import main as cli
from seqtool.models.contract import EncoderDecoder
from seqtool.models.tree import map_tensors
from seqtool.runtime.files import config_directory

VOCABULARY = 11


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with imported("convolutional", tmp_path_factory.mktemp("convolutional")) as module:
        yield module


@pytest.fixture
def model(convolutional: Any) -> Any:
    """A model of three layers that see two symbols before their own each, so that a prediction depends on seven."""
    torch.manual_seed(0)
    model = convolutional.GatedConvolutions(target_vocabulary=VOCABULARY, size=6, layers=3, width=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return model.double().eval()


def logits(model: Any, tokens: torch.Tensor, state: Any = None) -> torch.Tensor:
    return model.project(model(None, tokens, state).features)


def test_forward_equals_stepping_and_prefilling(model: Any) -> None:
    tokens = torch.randint(4, VOCABULARY, (3, 12))
    memory, first = model.encode(None)
    first = map_tensors(lambda tensor: tensor.expand(3, -1, -1), first)
    expected, last = logits(model, tokens), model(None, tokens).state
    state, steps = first, []
    for token in tokens.unbind(1):
        step = model.step(memory, state, token)
        state = step.state
        steps.append(step.logits)
    torch.testing.assert_close(torch.stack(steps, 1), expected)
    torch.testing.assert_close(state.layers, last.layers)
    for start in (1, 5):  # a shorter and a longer prompt than a layer sees; its default steps through it
        prefilled = model.prefill(memory, first, tokens[:, :start]).state
        by_steps = EncoderDecoder.prefill(model, memory, first, tokens[:, :start]).state
        torch.testing.assert_close(prefilled.layers, by_steps.layers)
        torch.testing.assert_close(logits(model, tokens[:, start:], prefilled), expected[:, start:])


def test_a_prediction_depends_on_the_symbols_it_sees_and_no_others(model: Any) -> None:
    assert model.sees == 7
    tokens = torch.randint(4, VOCABULARY, (1, 20))
    for changed in range(20):
        others = tokens.clone()
        others[0, changed] = (tokens[0, changed] - 3) % (VOCABULARY - 4) + 4
        differs = (logits(model, others) != logits(model, tokens)).any(-1)[0]
        assert differs.nonzero().flatten().tolist() == list(range(changed, min(changed + 7, 20)))


def test_it_learns_and_generates(
    convolutional: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both models get below the entropy of single symbols, and only the convolutional one sees a number of symbols.

    The text and the batches are small; the figures of the whole example are in docs/examples.md.
    """
    train_less(monkeypatch, "train.batch_size=8", "optim.lr=0.01")
    convolutional.main(["--steps", "60", "--sentences", "400", "--directory", str(tmp_path)])
    table = capsys.readouterr().out.splitlines()[-2:]
    rows = {line.split()[0]: re.split(r"  +", line)[1:4] for line in table}
    text = (tmp_path / "text.txt").read_text(encoding="utf-8")
    entropy = -sum(count / len(text) * log2(count / len(text)) for count in Counter(text).values())
    assert [row[1] for row in rows.values()] == ["9", "all"]
    assert float(rows["convolutional"][2]) < 0.7 * entropy
    assert float(rows["LSTM"][2]) < entropy
    line = ["generate", f"checkpoint={tmp_path}/runs/convolutional", "prompt=I have ", "max_length=20", "device=cpu"]
    assert cli.run([*line, "trust=convolutional"], config_directory()) == 0
    assert len(capsys.readouterr().out.strip()) > 10
    assert cli.run(line, config_directory()) == 2
    assert "trust=convolutional" in capsys.readouterr().err
