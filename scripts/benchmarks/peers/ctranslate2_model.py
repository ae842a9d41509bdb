"""Make an untrained CTranslate2 Transformer of the sizes of benchmark_training.py's, in CTranslate2's environment.

    python ctranslate2_model.py VOCABULARY MODEL

VOCABULARY: a file with an entry of both vocabularies on each line
MODEL: the directory of the model
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

LAYERS, HEADS, WIDTH, FEED_FORWARD = 4, 4, 256, 1024
GENERATOR = np.random.default_rng(1)


def main() -> None:
    from ctranslate2 import specs  # which only the engine's environment has

    vocabulary = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    spec = specs.TransformerSpec.from_config(
        (LAYERS, LAYERS), HEADS, pre_norm=True, activation=specs.common_spec.Activation.RELU
    )
    spec.encoder.embeddings[0].weight = uniform(len(vocabulary), WIDTH)
    spec.decoder.embeddings.weight = uniform(len(vocabulary), WIDTH)
    linear(spec.decoder.projection, len(vocabulary), WIDTH)
    for side in (spec.encoder, spec.decoder):
        norm(side.layer_norm)
        for layer in side.layer:
            attention(layer.self_attention, [3 * WIDTH, WIDTH])  # queries, keys and values in one product
            if side is spec.decoder:
                attention(layer.attention, [WIDTH, 2 * WIDTH, WIDTH])
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, FEED_FORWARD, WIDTH)
            linear(layer.ffn.linear_1, WIDTH, FEED_FORWARD)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = True  # as in seqtool
    spec.validate()
    spec.optimize()
    Path(sys.argv[2]).mkdir()
    spec.save(sys.argv[2])


def uniform(rows: int, columns: int) -> Any:
    return GENERATOR.uniform(-1, 1, (rows, columns)).astype(np.float32) / np.float32(columns**0.5)


def linear(spec: Any, outputs: int, inputs: int) -> None:
    spec.weight = uniform(outputs, inputs)
    spec.bias = uniform(1, outputs)[0]


def norm(spec: Any) -> None:
    spec.gamma, spec.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)


def attention(spec: Any, outputs: list[int]) -> None:
    norm(spec.layer_norm)
    for part, size in zip(spec.linear, outputs, strict=True):
        linear(part, size, WIDTH)


if __name__ == "__main__":
    main()
