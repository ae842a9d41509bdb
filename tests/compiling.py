"""Check that each kind of Transformer gives the same features under torch.compile, and that gradients can be computed.

tests/test_fp32_switches.py runs this script in a separate process, without the shape checks of tests/conftest.py.
"""

import torch
from small_models import TRANSFORMER, VOCABULARY, make_captioner, make_model, random_images, random_sentences

from seqtool.data.batches import make_source, make_target
from seqtool.models.transformer import TransformerLanguageModel

torch.manual_seed(0)
sizes = {name: TRANSFORMER[name] for name in ("width", "heads", "feed_forward", "norm", "positions")}
language_model = TransformerLanguageModel(
    target_vocabulary=VOCABULARY, layers=2, context=100, dropout=0.0, tie="none", **sizes
)
target = make_target(random_sentences(3, seed=2))[:, :-1]
for model, source in (
    (make_model("transformer"), make_source(random_sentences(3, seed=1))),
    (make_captioner("transformer-captioner"), random_images(3, seed=1)),
    (language_model, None),
):
    features = torch.compile(model, backend="aot_eager")(source, target).features
    features.sum().backward()
    assert torch.allclose(features, model(source, target).features, atol=1e-5)
