"""What the captioners share: images instead of words."""

from typing import TypeVar

from torch import Tensor, nn

from seqtool.data.batches import Annotations, Pixels
from seqtool.errors import InputError
from seqtool.models.backbone import EncoderSettings, make_backbone
from seqtool.models.encoder_decoder import EncoderDecoder, tie_embeddings

S = TypeVar("S")
Images = Annotations | Pixels


class Captioner(EncoderDecoder[S]):
    """A decoder over the annotation vectors of an image: cached ones, or those its own `backbone` makes of pixels."""

    def __init__(self, *, target_vocabulary: int, pretrained: bool, encoder: EncoderSettings, embedding: int) -> None:
        super().__init__()
        self.backbone = make_backbone(encoder, pretrained=pretrained)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)

    def annotations(self, source: Images) -> Tensor:
        """B×S×D annotation vectors a_i in the model's own precision."""
        if isinstance(source, Pixels):
            annotations: Tensor = self.backbone(source.values)
        else:
            annotations = source.values
        return annotations.to(self.target_embedding.weight.dtype)

    def tie(self, tied: str) -> None:
        """Share the output matrix with the embedding (`output`) or not (`none`)."""
        if tied not in ("none", "output"):
            raise InputError(f"Unknown model.tie '{tied}' of a captioner; choose from none, output.")
        tie_embeddings(self, tied)
