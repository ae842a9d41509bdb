"""What settings of models may be, and the matrices that a model ties."""

from typing import Annotated, Any

from seqtool.errors import InputError
from seqtool.models.contract import EncoderDecoder
from seqtool.settings.declarations import Setting, between

Size = Annotated[int, between(1, 1_000_000)]
LayerCount = Annotated[int, between(1, 100)]
DropoutRate = Annotated[float, Setting(at_least=0, below=1)]
TIES = {  # the choices where they are not all three, by task, and the model's name in the error message
    "captioning": (("none", "output"), " of a captioner"),
    "language_modelling": (("none", "output"), " of a language model"),
}


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
