"""Small models of every kind, and random sentences."""

from collections.abc import Callable
from typing import Any

import torch

from seqtool.models.bahdanau import Bahdanau
from seqtool.models.encoder_decoder import EncoderDecoder
from seqtool.models.initialisation import initialise
from seqtool.models.luong import Luong
from seqtool.models.sutskever import Sutskever

VOCABULARY = 11

COMMON: dict[str, Any] = {
    "source_vocabulary": VOCABULARY,
    "target_vocabulary": VOCABULARY,
    "dropout": 0.0,
    "tie": "none",
    "embedding": 6,
}
BAHDANAU: dict[str, Any] = {
    **COMMON,
    "cell": "gru",
    "encoder_hidden": 4,
    "encoder_layers": 1,
    "bidirectional": True,
    "decoder_hidden": 8,
    "decoder_layers": 1,
    "score": "additive",
    "alignment": 5,
    "maxout": 6,
}
LUONG: dict[str, Any] = {
    **COMMON,
    "cell": "lstm",
    "hidden": 8,
    "layers": 2,
    "bidirectional": True,
    "score": "general",
    "alignment": 5,
}
SUTSKEVER: dict[str, Any] = {**COMMON, "hidden": 7, "layers": 2, "cell": "lstm", "reverse": True}

MODELS: dict[str, Callable[[], EncoderDecoder[Any]]] = {
    **{
        f"bahdanau-{cell}": lambda cell=cell: Bahdanau(**BAHDANAU | {"cell": cell})
        for cell in ("rnn", "lstm", "gru", "gru_cho")
    },
    **{
        f"bahdanau-{score}": lambda score=score: Bahdanau(**BAHDANAU | {"score": score})
        for score in ("dot", "general", "scaled_dot")
    },
    "bahdanau-deep": lambda: Bahdanau(**BAHDANAU | {"encoder_layers": 2, "decoder_layers": 3, "cell": "lstm"}),
    "bahdanau-one-way": lambda: Bahdanau(**BAHDANAU | {"bidirectional": False}),
    "luong": lambda: Luong(**LUONG),
    "luong-one-way": lambda: Luong(**LUONG | {"bidirectional": False, "layers": 1, "cell": "gru"}),
    **{
        f"sutskever-{cell}": lambda cell=cell: Sutskever(**SUTSKEVER | {"cell": cell})
        for cell in ("rnn", "lstm", "gru", "gru_cho")
    },
    "sutskever-forward": lambda: Sutskever(**SUTSKEVER | {"reverse": False, "layers": 1}),
}


def make_model(name: str, seed: int = 0, scale: float = 2.0) -> EncoderDecoder[Any]:
    torch.manual_seed(seed)
    made = MODELS[name]()
    initialise(made, "default")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    return made.eval()


def random_sentences(count: int, *, seed: int, longest: int = 9) -> list[list[int]]:
    """Ids without the special ones, of 1 to `longest` tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
