"""Show, Attend and Tell as plain loops, with which benchmark_captioning.py compares `seqtool`.

`Tutorial` is structured like the well-known PyTorch tutorial: captions are sorted by length, and the batch shrinks as
they end; an LSTMCell, the attention keys and the output layer are computed at every step; beam search takes one image
at a time. `Hoisted` computes the keys and the output layer once for all steps, and searches for a whole batch.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BOS, EOS = 1, 2


class Tutorial(nn.Module):
    """A captioner as a tutorial would write it.

    Methods take `a`, annotation vectors N×S×D, `captions`, ids N×(T+1) that start with BOS, and `lengths`, N numbers up
    to T, on the CPU.
    """

    def __init__(self, *, D: int, embedding: int, hidden: int, attention: int, vocabulary: int) -> None:  # noqa: N803
        super().__init__()
        self.image_attention = nn.Linear(D, attention)
        self.state_attention = nn.Linear(hidden, attention)
        self.score = nn.Linear(attention, 1)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.cell = nn.LSTMCell(embedding + D, hidden)
        self.h_0, self.c_0 = nn.Linear(D, hidden), nn.Linear(D, hidden)
        self.gate = nn.Linear(hidden, D)
        self.output = nn.Linear(hidden, vocabulary)

    def keys(self, a: Tensor) -> Tensor | None:
        """Return the attention keys; None if each step computes them."""
        return None

    def start(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Return the initial state (h, c)."""
        return self.h_0(a.mean(1)), self.c_0(a.mean(1))

    def step(
        self, a: Tensor, keys: Tensor | None, y: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Decode one word: return the new (h, c), and α."""
        keys = self.image_attention(a) if keys is None else keys
        e = self.score(torch.tanh(keys + self.state_attention(state[0])[:, None])).squeeze(2)
        alpha = e.softmax(1)
        context = torch.sigmoid(self.gate(state[0])) * (a * alpha[:, :, None]).sum(1)
        return self.cell(torch.cat([y, context], 1), state), alpha

    def loss(self, a: Tensor, captions: Tensor, lengths: Tensor) -> Tensor:
        """The cross-entropy per word plus the doubly stochastic penalty, as in the tutorial."""
        lengths, order = lengths.sort(descending=True)
        a, captions = a[order], captions[order]
        y, keys, state = self.embedding(captions), self.keys(a), self.start(a)
        logits, alphas, labels = [], [], []
        for t in range(int(lengths[0])):
            n = int((lengths > t).sum())
            live_keys = None if keys is None else keys[:n]
            state, alpha = self.step(a[:n], live_keys, y[:n, t], (state[0][:n], state[1][:n]))
            logits.append(self.output(state[0]))
            labels.append(captions[:n, t + 1])
            alphas.append(F.pad(alpha, (0, 0, 0, len(a) - n)))
        penalty = (1 - torch.stack(alphas, 1).sum(1)).square().sum() / len(a)
        return F.cross_entropy(torch.cat(logits), torch.cat(labels)) + penalty

    @torch.no_grad()
    def beam_search(self, a: Tensor, beam: int, steps: int) -> list[list[int]]:
        """Caption one image after another with `steps` words. EOS is never chosen, so all are equally long."""
        return [self._search(image[None], beam, steps)[0] for image in a]

    def _search(self, a: Tensor, beam: int, steps: int) -> list[list[int]]:
        B, S, D = a.shape  # noqa: N806
        a = a[:, None].expand(B, beam, S, D).reshape(B * beam, S, D)
        keys, state = self.keys(a), self.start(a)
        words = torch.full((B * beam, 1), BOS, device=a.device)
        scores = torch.full((B, beam), -torch.inf, device=a.device)
        scores[:, 0] = 0
        for _ in range(steps):
            state, _alpha = self.step(a, keys, self.embedding(words[:, -1]), state)
            log_p = F.log_softmax(self.output(state[0]), 1)
            log_p[:, : EOS + 1] = -torch.inf  # EOS, and padding, UNK and BOS, whose ids are lower
            scores, index = (scores[:, :, None] + log_p.view(B, beam, -1)).flatten(1).topk(beam)
            parents = (index // log_p.shape[1] + torch.arange(B, device=a.device)[:, None] * beam).flatten()
            words = torch.cat([words[parents], (index % log_p.shape[1]).flatten()[:, None]], 1)
            state = state[0][parents], state[1][parents]
        return words.view(B, beam, -1)[:, 0, 1:].tolist()


class Hoisted(Tutorial):
    """The captioner of `Tutorial`, which computes once everything that does not depend on the state."""

    def keys(self, a: Tensor) -> Tensor | None:
        return self.image_attention(a)

    def loss(self, a: Tensor, captions: Tensor, lengths: Tensor) -> Tensor:
        y, keys, state = self.embedding(captions), self.keys(a), self.start(a)
        states, alphas = [], []
        for t in range(captions.shape[1] - 1):
            state, alpha = self.step(a, keys, y[:, t], state)
            states.append(state[0])
            alphas.append(alpha)
        real = (torch.arange(len(alphas)) < lengths[:, None]).to(a.device)
        logits = self.output(torch.stack(states, 1)[real])
        penalty = (1 - (torch.stack(alphas, 1) * real[:, :, None]).sum(1)).square().sum() / len(a)
        return F.cross_entropy(logits, captions[:, 1:][real]) + penalty

    @torch.no_grad()
    def beam_search(self, a: Tensor, beam: int, steps: int) -> list[list[int]]:
        return self._search(a, beam, steps)
