"""What the captioners share: images instead of words."""

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from seqtool.models.backbone import EncoderSettings, make_backbone
from seqtool.models.contract import EncoderDecoder
from seqtool.models.hard_attention import Choice
from seqtool.models.inputs import Annotations, Pixels
from seqtool.models.parts import PLAIN, Parts

S = TypeVar("S")
Images = Annotations | Pixels


class ImageCaptioner(EncoderDecoder[S]):
    """A model of the annotation vectors of an image: cached ones, or those its own `backbone` computes from pixels.

    `choices` are the ways, by name, in which attention may weight the locations in decoding; `hard` attention was
    trained by drawing locations.
    """

    task = "captioning"
    choices: Mapping[str, Choice] = {}
    hard = False

    def __init__(
        self,
        target_vocabulary: int,
        embedding: int,
        encoder: EncoderSettings,
        *,
        pretrained: bool,
        parts: Parts = PLAIN,
    ) -> None:
        super().__init__(parts)
        self.backbone = make_backbone(encoder, pretrained=pretrained)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)

    def annotations(self, source: Images) -> Tensor:
        """B×S×D annotation vectors a_i in the model's own precision."""
        annotations = self.backbone(source.values) if isinstance(source, Pixels) else source.values
        return annotations.to(self.target_embedding.weight.dtype)
