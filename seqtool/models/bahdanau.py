"""RNNsearch: jointly learning to align and translate (Bahdanau, Cho & Bengio 2015, appendix A).

Letters of the paper: y embedded target word, s decoder state, h annotation vector, e score, alpha alignment, c context.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from seqtool.data.batches import Source
from seqtool.models import sharing
from seqtool.models.attention import Additive, Attention
from seqtool.models.attentive_gru import attentive_gru
from seqtool.models.cells import GRU, Recurrence, Stack, State, make_cell
from seqtool.models.encoder import Encoder
from seqtool.models.encoder_decoder import EncoderDecoder, Layers, Memory, Output, Step, check_sizes, tie_embeddings
from seqtool.models.sharing import StepLinear


class Advanced(NamedTuple):
    """One step of the decoder's recurrence: the new state, the context N×D and the alignment N×S it was made from."""

    state: Layers
    context: Tensor
    alpha: Tensor


class Bahdanau(EncoderDecoder[Layers]):
    """Bidirectional encoder, attention with the state before the update, maxout deep output.

    The paper: cell gru_cho, embeddings 620, 1000 units in each direction and in the decoder, alignment 1000,
    maxout 500, one layer each.
    """

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: int,
        cell: str,
        encoder_hidden: int,
        encoder_layers: int,
        bidirectional: bool,
        decoder_hidden: int,
        decoder_layers: int,
        score: str,
        alignment: int,
        maxout: int,
        dropout: float,
        tie: str,
    ) -> None:
        super().__init__()
        check_sizes(
            dropout=dropout,
            embedding=embedding,
            encoder_hidden=encoder_hidden,
            encoder_layers=encoder_layers,
            decoder_hidden=decoder_hidden,
            decoder_layers=decoder_layers,
            alignment=alignment,
            maxout=maxout,
        )
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.encoder = Encoder(
            cell=cell,
            inputs=embedding,
            hidden=encoder_hidden,
            layers=encoder_layers,
            bidirectional=bidirectional,
            dropout=dropout,
        )
        self.attention = Attention(score, query=decoder_hidden, value=self.encoder.size, size=alignment)
        self.cell = make_cell(cell, decoder_hidden)
        self.cell_word = nn.Linear(embedding, self.cell.gates * decoder_hidden)
        self.cell_context = StepLinear(self.encoder.size, self.cell.gates * decoder_hidden, bias=False)
        self.upper = Stack(Recurrence(cell, decoder_hidden, decoder_hidden) for _ in range(decoder_layers - 1))
        self.initial = nn.Linear(encoder_hidden, decoder_layers * self.cell.tensors * decoder_hidden)
        self.deep_state = nn.Linear(decoder_hidden, 2 * maxout)
        self.deep_word = nn.Linear(embedding, 2 * maxout, bias=False)
        self.deep_context = nn.Linear(self.encoder.size, 2 * maxout, bias=False)
        self.output = nn.Linear(maxout, target_vocabulary)
        tie_embeddings(self, tie)

    def encode(self, source: Source) -> tuple[Memory, Layers]:
        memory, state, _ = self._read(source)
        return memory, state

    def step(self, memory: Memory, state: Layers, token: Tensor) -> Step[Layers]:
        y = self.dropout(self.target_embedding(token))
        state, context, alpha = self._advance(memory, state, self.cell_word(y))
        return Step(self.project(self._deep_output(state.top, y, context)), state, alpha)

    def forward(self, source: Source, target: Tensor) -> Output:
        """What does not depend on the recurrence, the words' share of the gates and the deep output, is computed for
        all time steps at once.
        """
        memory, state, encoder_states = self._read(source)
        y = self.dropout(self.target_embedding(target))
        words = self.cell_word(y.transpose(0, 1))
        score = self.attention.score
        if sharing.is_on() and isinstance(self.cell, GRU) and isinstance(score, Additive) and not self.upper:
            decoded = attentive_gru(words, state.top, memory, score, self.cell_context, self.cell.recurrent)
            s, context, alpha = (one.transpose(0, 1) for one in decoded)
            return Output(self._deep_output(s, y, context), alpha, encoder_states, s.unbind(1))
        memory = memory.shared()
        states, contexts, alphas = [], [], []
        for word in words.unbind(0):
            state, context, alpha = self._advance(memory, state, word)
            states.append(state.top)
            contexts.append(context)
            alphas.append(alpha)
        features = self._deep_output(torch.stack(states, 1), y, torch.stack(contexts, 1))
        return Output(features, torch.stack(alphas, 1), encoder_states, tuple(states))

    def _read(self, source: Source) -> tuple[Memory, Layers, tuple[Tensor, ...]]:
        encoding = self.encoder(self.dropout(self.source_embedding(source.tokens)), source.lengths)
        h = encoding.annotations
        first = (encoding.backward or encoding.forward)[-1][0]  # ←h_1, or →h_S where there is no way back
        s = torch.tanh(self.initial(first)).chunk(len(self.upper) * self.cell.tensors + self.cell.tensors, -1)
        n = self.cell.tensors  # s_0 = tanh(W_s ←h_1) (A.2.2), for each layer and each tensor of its state
        layers = tuple(tuple(s[i : i + n]) for i in range(0, len(s), n))
        return Memory(h, self.attention.score.keys(h), source.mask), Layers(layers), encoding.states

    def _advance(self, memory: Memory, state: Layers, word: Tensor) -> Advanced:
        """`word` is the embedded word's share of the first cell's pre-activations, N×gates·H."""
        context, alpha = self.attention(state.top, memory)  # a(s_{i−1}, h_j), (6), (5): s is still the old state
        layers: list[State] = [self.cell(word + self.cell_context(context), state.layers[0])]  # s_i, A.2.2
        for recurrence, old in zip(self.upper, state.layers[1:], strict=True):
            layers.append(recurrence.step(self.dropout(layers[-1][0]), old))
        return Advanced(Layers(tuple(layers)), context, alpha)

    def _deep_output(self, s: Tensor, y: Tensor, context: Tensor) -> Tensor:
        """t̃_i = U_o s + V_o E y_{i−1} + C_o c_i, t_i = max over pairs (A.2.2).

        The paper prints s_{i−1}; this is s_i, as in most code: the word is chosen knowing its own context's state.
        """
        t = self.deep_state(s).add_(self.deep_word(y)).add_(self.deep_context(context))
        features: Tensor = self.dropout(maxout(t.unflatten(-1, (-1, 2))))
        return features


def maxout(pairs: Tensor) -> Tensor:
    """The higher of each pair, …×2 → … (Goodfellow et al. 2013). Of two that are equal the first gets the gradient."""
    if sharing.is_plain():
        return pairs.max(-1).values
    maxima: Tensor = _Maxout.apply(pairs)
    return maxima


class _Maxout(torch.autograd.Function):
    """`max` also writes which of each pair it took as a number of 64 bits, and its gradient scatters by these."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor) -> Tensor:
        first, second = pairs.unbind(-1)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(first >= second)
        return torch.maximum(first, second)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (is_first,) = ctx.saved_tensors
        both = gradient.new_empty(*gradient.shape, 2)
        first, second = both.unbind(-1)
        torch.sub(gradient, torch.mul(gradient, is_first, out=first), out=second)
        return both
