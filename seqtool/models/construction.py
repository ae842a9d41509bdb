"""What the models' constructors share: sizes that are possible, and matrices that are one."""

from typing import Any

from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder

MOST_LAYERS, MOST_UNITS = 100, 1_000_000


def check_sizes(*, dropout: float, **sizes: int) -> None:
    """Raise InputError unless every size is from 1 to what no model has, and dropout a probability below 1."""
    problems = [f"model.{name} must be at least 1, not {size}." for name, size in sizes.items() if size < 1]
    for name, size in sizes.items():
        most = MOST_LAYERS if name.endswith("layers") else MOST_UNITS
        if size > most:
            problems.append(f"model.{name} must be at most {most:,}, not {size:,}.")
    if not 0 <= dropout < 1:
        problems.append(f"model.dropout must be at least 0 and below 1, not {dropout}.")
    if problems:
        raise InputError(" ".join(problems))


def tie_embeddings(model: EncoderDecoder[Any], tied: str) -> None:
    """Share matrices: `output` (the softmax is the target embedding, transposed) or `all` (the source's as well)."""
    if tied not in ("none", "output", "all"):
        raise InputError(f"Unknown model.tie '{tied}'; choose from none, output, all.")
    if tied == "none":
        return
    embedding = model.target_embedding.weight
    if model.output.weight.shape != embedding.shape:
        raise InputError(
            f"model.tie={tied} needs features as long as embeddings, but they are {model.output.weight.shape[1]} and "
            f"{embedding.shape[1]}: make the two sizes equal or use model.tie=none."
        )
    model.output.weight = model.target_embedding.weight
    if tied == "all":
        if model.source_embedding.weight.shape != embedding.shape:
            raise InputError(
                f"model.tie=all needs one vocabulary for both sides, but source and target have "
                f"{model.source_embedding.num_embeddings:,} and {model.target_embedding.num_embeddings:,} entries: "
                "use data.vocabulary.joint=true or model.tie=output."
            )
        model.source_embedding.weight = model.target_embedding.weight
