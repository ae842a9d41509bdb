"""RNNsearch, which learns jointly to align and translate (Bahdanau, Cho & Bengio 2015, appendix A).

Letters of the paper: y embedded target word, s decoder state, h annotation vector, e score, alpha alignment, c context.
"""

import torch
from torch import Tensor, nn

from seqtool.models.attention import Attention, AttentionScore
from seqtool.models.cells import Cell, Encoder, Layers, Stack, State, make_cell
from seqtool.models.contract import DropoutRate, LayerCount, Memory, Size, tie_matrices
from seqtool.models.inputs import Source
from seqtool.models.parts import PLAIN, Parts, at_least_single, for_products
from seqtool.models.recurrent_decoder import RecurrentDecoder, StepOutput


class Bahdanau(RecurrentDecoder[Layers]):
    """A bidirectional encoder, attention with the state before its update, and a deep output with maxout.

    The paper's model: cell gru_cho, embeddings 620, 1000 units in each direction and in the decoder, alignment 1000,
    maxout 500, one layer in the encoder and one in the decoder.
    """

    task = "translation"
    attends = True

    def __init__(
        self,
        *,
        source_vocabulary: int,
        target_vocabulary: int,
        embedding: Size,
        cell: str | type[Cell],
        encoder_hidden: Size,
        encoder_layers: LayerCount,
        bidirectional: bool,
        decoder_hidden: Size,
        decoder_layers: LayerCount,
        score: str | type[AttentionScore],
        alignment: Size,
        maxout: Size,
        dropout: DropoutRate,
        tie: str,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.dropout = parts.dropout(dropout)
        self.encoder = Encoder(
            cell, embedding, encoder_hidden, encoder_layers, bidirectional=bidirectional, dropout=dropout, parts=parts
        )
        self.attention = Attention(score, query=decoder_hidden, value=self.encoder.size, size=alignment, parts=parts)
        self.cell = make_cell(cell, decoder_hidden, parts)
        self.cell_word = parts.linear(embedding, self.cell.gates * decoder_hidden)
        self.cell_context = parts.linear(self.encoder.size, self.cell.gates * decoder_hidden, bias=False)
        self.upper = Stack(cell, decoder_hidden, decoder_hidden, decoder_layers - 1, parts)
        self.initial = parts.linear(encoder_hidden, decoder_layers * self.cell.tensors * decoder_hidden)
        self.deep_state = parts.linear(decoder_hidden, 2 * maxout)
        self.deep_word = parts.linear(embedding, 2 * maxout, bias=False)
        self.deep_context = parts.linear(self.encoder.size, 2 * maxout, bias=False)
        self.output = parts.linear(maxout, target_vocabulary)
        tie_matrices(self, tie)

    def encode(self, source: Source) -> tuple[Memory, Layers]:
        x = self.dropout(self.source_embedding(source.tokens))
        encoding = self.encoder(x, source.lengths)
        h = for_products(encoding.annotations)
        # ←h_1, or →h_S if there is no backward direction
        final_output = (encoding.backward or encoding.forward)[-1][0]
        # tanh(W_s ←h_1) (A.2.2), for each layer and tensor
        s_0 = torch.tanh(at_least_single(self.initial(final_output)))
        layers = Layers.split(s_0, 1 + len(self.upper), self.cell.tensors)
        return Memory(h, self.attention.score.keys(h), source.mask), layers

    def input_projection(self, memory: Memory, y: Tensor) -> Tensor:
        """Return W E y_{i−1} plus the biases of the lowest cell's gates, …×gates·H."""
        return self.cell_word(y)

    def decoder_step(self, memory: Memory, state: Layers, projected: Tensor) -> StepOutput[Layers]:
        c, alpha = self.attention(state.top, memory)  # a(s_{i−1}, h_j), (6), (5): s is still the old state
        layers: list[State] = [self.cell(projected + self.cell_context(c), state.layers[0])]  # s_i, A.2.2
        for recurrence, old_state in zip(self.upper, state.layers[1:], strict=True):
            layers.append(recurrence.step(self.dropout(layers[-1][0]), old_state))
        new_state = Layers(tuple(layers))
        return StepOutput(new_state, (new_state.top, c), alpha)

    def features(self, y: Tensor, *feature_inputs: Tensor) -> Tensor:
        """Return t_i, the maximum over pairs of t̃_i = U_o s + V_o E y_{i−1} + C_o c_i (A.2.2).

        The paper prints s_{i−1}; here s is s_i, as in most code; it already depends on y_{i−1} and c_i.
        """
        s, c = feature_inputs
        t = self.deep_state(s) + self.deep_word(y) + self.deep_context(c)
        return self.dropout(torch.maximum(*t.unflatten(-1, (-1, 2)).unbind(-1)))
