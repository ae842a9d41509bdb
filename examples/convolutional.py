"""A language model of gated causal convolutions, beside a recurrent one (Dauphin et al. 2017).

    x_0 = the embedded symbols
    x_l = x_{l-1} + (x_{l-1} * W + b) ⊗ σ(x_{l-1} * V + c)     l = 1, …, layers          their equation (1), residual
    p(y_{t+1} | y_1 … y_t) = softmax(U x_layers[t] + d)

* is a convolution over the current symbol and the `width` − 1 before it, so that no symbol sees a later one. An output
depends on the last layers · (width − 1) + 1 symbols and on no earlier one, whereas an RNN's state may keep any of them.
In exchange, all positions of a text are computed at once. To generate, a layer needs only its last `width` − 1 inputs,
which are the model's state.

The class is used by its dotted name, from the folder of this file or with the folder on PYTHONPATH:

    seqtool train run=convolutional data=text model=convolutional.GatedConvolutions
    seqtool generate checkpoint=runs/convolutional trust=convolutional prompt="I have "

Source: Dauphin, Fan, Auli and Grangier (2017), "Language modeling with gated convolutional networks". Their weight
normalisation and adaptive softmax are left out.

    python examples/convolutional.py
"""

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import seqtool
from seqtool.data.corpora import toy
from seqtool.models.contract import DropoutRate, EncoderDecoder, LayerCount, Output, Prefilled, Size, Step
from seqtool.models.parts import PLAIN, Parts

MODELS = {  # the settings of the two models, which have about as many parameters
    "convolutional": "model=convolutional.GatedConvolutions",
    "LSTM": "model=language_model model.embedding=64 model.hidden=128 model.layers=1 model.dropout=0",
}


@dataclass(frozen=True)
class Windows:
    """The state: for each layer its last `width` − 1 inputs, N × (width − 1) × H; zeros before the text begins."""

    layers: tuple[Tensor, ...]


class GatedConvolutions(EncoderDecoder[Windows]):
    """`layers` gated convolutions of `size` channels over `width` symbols each."""

    task = "language_modelling"
    attends = False

    def __init__(
        self,
        *,
        target_vocabulary: int,
        size: Size = 64,
        layers: LayerCount = 4,
        width: Size = 3,
        dropout: DropoutRate = 0.0,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.target_embedding = nn.Embedding(target_vocabulary, size)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, 2 * size, width) for _ in range(layers))
        self.dropout = parts.dropout(dropout)
        self.output = parts.linear(size, target_vocabulary)

    def encode(self, source: Any) -> tuple[tuple[()], Windows]:
        """Return an empty memory, and the state of one row before its first symbol."""
        return (), self._empty(1)

    def forward(self, source: Any, target: Tensor, state: Windows | None = None) -> Output:
        return self._read(self._empty(len(target)) if state is None else state, target)

    def prefill(self, memory: Any, state: Windows, tokens: Tensor) -> Prefilled[Windows]:
        return Prefilled(self._read(state, tokens).state, None)

    def step(self, memory: Any, state: Windows, token: Tensor) -> Step[Windows]:
        output = self._read(state, token[:, None])
        return Step(self.project(output.features[:, 0]), output.state, None)

    def _read(self, state: Windows, tokens: Tensor) -> Output:
        """Read t symbols after those of the state."""
        x, windows = self.target_embedding(tokens), []
        for convolution, window in zip(self.convolutions, state.layers, strict=True):
            inputs = torch.cat([window.to(x.dtype), x], 1)
            windows.append(inputs[:, x.shape[1] :].to(window.dtype))
            values, gates = convolution(self.dropout(inputs).transpose(1, 2)).transpose(1, 2).chunk(2, -1)
            x = x + values * torch.sigmoid(gates)  # (1)
        return Output(x, None, Windows(tuple(windows)))

    def _empty(self, rows: int) -> Windows:
        weight = self.target_embedding.weight
        before = [convolution.kernel_size[0] - 1 for convolution in self.convolutions]
        return Windows(tuple(weight.new_zeros(rows, length, weight.shape[1]) for length in before))

    @property
    def sees(self) -> int:
        """How many symbols a prediction depends on."""
        return 1 + sum(convolution.kernel_size[0] - 1 for convolution in self.convolutions)


class Row(NamedTuple):
    """A model's number of parameters, the symbols that it sees, its bits per character and speed, and a text by it."""

    name: str
    parameters: int
    sees: str
    bits: float
    speed: float
    text: str


def train(name: str, steps: int, sentences: int) -> Row:
    """Train a model on sentences of the built-in grammar."""
    pairs = toy.generate(seed=1, train=sentences, valid=0, test=0)["train"]
    Path("text.txt").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    data = "data=text data.train=text.txt data.processes=1 device=cpu threads=1"
    training = f"train.batch_size=32 train.bptt=48 train.minutes=null train.steps={steps} optim.lr=0.004"
    run = seqtool.train(*f"{data} {MODELS[name]} {training}".split(), run=name)
    generator: Any = run.load(trust="convolutional", device="cpu", max_length=60, seed=1)
    bits = [record["valid_bits"] for record in run.metrics if "valid_bits" in record][-1]
    speed = [record["tokens_per_second"] for record in run.metrics if "tokens_per_second" in record][-1]
    model = generator.plain_model
    parameters, sees = sum(map(Tensor.numel, model.parameters())), f"{getattr(model, 'sees', 'all')}"
    return Row(name, parameters, sees, bits, speed, *generator.generate(["I have "]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a convolutional and a recurrent language model.")
    parser.add_argument("--steps", type=int, default=600, help="updates of each model (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=6000, help="sentences of text (default: %(default)s)")
    parser.add_argument("--directory", help="where the runs are written; by default one that is removed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(options.directory or temporary):
        rows = [train(name, options.steps, options.sentences) for name in MODELS]
    print("\nmodel          parameters  symbols seen  bits/character  symbols/s in training  a continued text")
    for name, parameters, sees, bits, speed, text in rows:
        print(f"{name:13}  {parameters:10,}  {sees:>12}  {bits:14.3f}  {speed:21,.0f}  {'I have ' + text!r}")


if __name__ == "__main__":
    main()
