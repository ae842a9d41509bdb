"""Small models of every kind, random sentences and random images."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from seqtool.models.backbone import EncoderSettings, ImageCaptioner
from seqtool.models.bahdanau import Bahdanau
from seqtool.models.contract import EncoderDecoder
from seqtool.models.fast.parts_for import parts_for
from seqtool.models.initialisation import initialise
from seqtool.models.inputs import Annotations
from seqtool.models.luong import Luong
from seqtool.models.show_attend_tell import ShowAttendTell
from seqtool.models.show_tell import ShowTell
from seqtool.models.sutskever import Sutskever
from seqtool.models.transformer import Transformer, TransformerCaptioner

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
SUTSKEVER: dict[str, Any] = {
    **COMMON,
    "hidden": 7,
    "layers": 2,
    "cell": "lstm",
    "reverse": True,
    "context": "initial_state",
    "summary": "last",
}

TRANSFORMER: dict[str, Any] = {
    "width": 8,
    "heads": 2,
    "feed_forward": 12,
    "norm": "pre",
    "positions": "sinusoids",
    "longest": 100,
    "attention_layer": None,
    "attention_head": None,
}
LAYERS: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2}
WORDS = {key: value for key, value in COMMON.items() if key != "embedding"}

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
    **{
        f"sutskever-{context}-{summary}": lambda context=context, summary=summary: Sutskever(
            **SUTSKEVER | {"context": context, "summary": summary}
        )
        for context, summary in (("every_step", "last"), ("both", "mean"), ("initial_state", "max"))
    },
    "sutskever-forward": lambda: Sutskever(**SUTSKEVER | {"reverse": False, "layers": 1}),
    "transformer": lambda: Transformer(**WORDS | TRANSFORMER | LAYERS),
    "transformer-post": lambda: Transformer(
        **WORDS
        | TRANSFORMER
        | LAYERS
        | {"norm": "post", "positions": "learnt", "attention_layer": 1, "attention_head": 2}
    ),
}

LOCATIONS, DIMENSION = 9, 96  # the output of the small backbone for 24×24 pixels
ENCODER: dict[str, Any] = {
    "backbone": "small",
    "layer": None,
    "weights": None,
    "size": 24,
    "fit": "squash",
    "fine_tune_from": None,
    "lr": 0.001,
    "augment": False,
}
CAPTIONER: dict[str, Any] = {
    "target_vocabulary": VOCABULARY,
    "pretrained": True,
    "encoder": EncoderSettings(**ENCODER),
    "embedding": 6,
    "hidden": 8,
    "dropout": 0.0,
    "tie": "none",
}
PICTURES = {key: value for key, value in CAPTIONER.items() if key not in ("embedding", "hidden")}
SHOW_TELL: dict[str, Any] = {**CAPTIONER, "layers": 2, "cell": "lstm", "context": "first_step", "summary": "mean"}
SHOW_ATTEND_TELL: dict[str, Any] = {
    **CAPTIONER,
    "cell": "lstm",
    "score": "additive",
    "alignment": 5,
    "gate": True,
    "embedding_dropout": 0.0,
    "attention": "soft",
    "samples": 1,
    "soft_share": 0.0,
    "doubly_stochastic": 1.0,
    "reward": 1.0,
    "entropy": 0.1,
    "baseline": "moving_average",
    "decay": 0.9,
    "credit": "caption",
}
CAPTIONERS: dict[str, Callable[[], ImageCaptioner[Any]]] = {
    **{
        f"show_tell-{context}": lambda context=context: ShowTell(**SHOW_TELL | {"context": context})
        for context in ("first_step", "with_start", "initial_state", "every_step")
    },
    "show_tell-both-max": lambda: ShowTell(**SHOW_TELL | {"context": "both", "summary": "max"}),
    "show_tell-gru": lambda: ShowTell(**SHOW_TELL | {"cell": "gru", "layers": 1, "context": "initial_state"}),
    "transformer-captioner": lambda: TransformerCaptioner(**PICTURES | TRANSFORMER | {"layers": 2}),
    "show_attend_tell-soft": lambda: ShowAttendTell(**SHOW_ATTEND_TELL),
    "show_attend_tell-gru-general": lambda: ShowAttendTell(**SHOW_ATTEND_TELL | {"cell": "gru", "score": "general"}),
    "show_attend_tell-no-gate": lambda: ShowAttendTell(**SHOW_ATTEND_TELL | {"gate": False, "tie": "output"}),
    "show_attend_tell-hard": lambda: ShowAttendTell(**SHOW_ATTEND_TELL | {"attention": "hard", "samples": 3}),
}


def make_model(name: str, seed: int = 0, scale: float = 2.0) -> EncoderDecoder[Any]:
    torch.manual_seed(seed)
    return _initialise(MODELS[name](), scale)


def make_captioner(name: str, seed: int = 0, scale: float = 2.0) -> ImageCaptioner[Any]:
    torch.manual_seed(seed)
    return _initialise(CAPTIONERS[name](), scale)


def copy_with_fast_parts(model: Any, device: str = "cpu") -> Any:
    """Return the same model built of the fast parts for a device; parts for a GPU also run on a CPU."""
    fast = type(model)(**model.built_with | {"parts": parts_for(torch.device(device))})
    fast.to(model.target_embedding.weight).load_state_dict(model.state_dict())
    return fast.train(model.training)


def small_vision_transformer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make torchvision/vit_b_16 small, with 4×4 patches of 32×32 pixels. Return one with a frozen one's weights."""

    import torchvision

    def get_model(name: str, weights: str | None = None) -> Any:
        sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
        model = torchvision.models.VisionTransformer(**sizes)
        torch.nn.init.normal_(model.heads.head.weight)  # torchvision's own initial weights of the head are zero
        return model

    monkeypatch.setattr(torchvision.models, "get_model", get_model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_model("vit_b_16")


def random_sentences(count: int, *, seed: int, longest: int = 9) -> list[list[int]]:
    """Random sentences of 1 to `longest` token ids, without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def random_images(count: int, *, seed: int) -> Annotations:
    """Random annotation vectors in half precision, as a cache holds them."""
    generator = torch.Generator().manual_seed(seed)
    return Annotations(torch.randn(count, LOCATIONS, DIMENSION, generator=generator).half())


def _initialise(model: Any, scale: float) -> Any:
    """Initialise a model with weights so large that its states differ."""
    initialise(model, "default")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # a frozen backbone keeps its weights
                parameter.mul_(scale).add_(0.1 * torch.randn_like(parameter))
    return model.eval()
