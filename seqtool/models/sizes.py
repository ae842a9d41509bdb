"""What every model checks when it is made: its sizes, and matrices that it ties."""

from collections.abc import Sequence
from typing import Any

from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.settings.declarations import between, choice

MAX_LAYERS, MAX_UNITS = 100, 1_000_000
TIES = {  # the choices where they are not all three, by task, and the model's name in the error message
    "captioning": (("none", "output"), " of a captioner"),
    "language_modelling": (("none", "output"), " of a language model"),
}


def check_sizes(*, dropout: float, **sizes: int) -> None:
    """Raise InputError unless every size lies between 1 and a generous limit, and dropout is a probability below 1."""
    limits = {name: between(1, MAX_LAYERS if name.endswith("layers") else MAX_UNITS) for name in sizes}
    problems = [limits[name].problem(f"model.{name}", size) for name, size in sizes.items()]
    if not 0 <= dropout < 1:
        problems.append(f"model.dropout must be at least 0 and below 1, not {dropout}")
    if any(problems):
        raise InputError(" ".join(f"{problem}." for problem in problems if problem))


def check_choice(setting: str, value: str, choices: Sequence[str]) -> None:
    if (problem := choice(*choices).problem(f"model.{setting}", value)) is not None:
        raise InputError(f"{problem}.")


def tie_matrices(model: EncoderDecoder[Any], tied: str) -> None:
    """Share matrices: `output` (the softmax is the target embedding, transposed) or `all` (the source's too)."""
    choices, owner = TIES.get(model.task, (("none", "output", "all"), ""))
    if tied not in choices:
        raise InputError(f"Unknown model.tie '{tied}'{owner}; choose from {', '.join(choices)}.")
    if tied == "none":
        return
    target, features = model.target_embedding, model.output.in_features
    if model.output.weight.shape != target.weight.shape:
        raise InputError(
            f"model.tie={tied} needs features as long as embeddings, but they are {features} and "
            f"{target.embedding_dim}: make the two sizes equal or use model.tie=none."
        )
    model.output.weight = target.weight
    if tied == "all":
        source = model.source_embedding
        if source.weight.shape != target.weight.shape:
            raise InputError(
                f"model.tie=all needs one vocabulary for both sides, but source and target have "
                f"{source.num_embeddings:,} and {target.num_embeddings:,} entries: "
                "use data.vocabulary.joint=true or model.tie=output."
            )
        source.weight = target.weight
