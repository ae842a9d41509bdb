"""Translate a file with CTranslate2, in its environment.

    python ctranslate2_translate.py MODEL COMPUTE WORKERS THREADS BATCH BEAM LENGTH SOURCE TARGET

COMPUTE: the type of the products, float32 or int8
WORKERS, THREADS: the number of workers, and of the threads of each
BATCH: the sentences of a batch
LENGTH: the number of words of every translation
"""

import sys
from pathlib import Path


def main() -> None:
    import ctranslate2  # which only the engine's environment has

    model, compute, *numbers, source, target = sys.argv[1:]
    workers, threads, batch, beam, length = map(int, numbers)
    translator = ctranslate2.Translator(model, compute_type=compute, inter_threads=workers, intra_threads=threads)
    results = translator.translate_batch(
        [line.split() for line in Path(source).read_text(encoding="utf-8").splitlines()],
        beam_size=beam,
        min_decoding_length=length,
        max_decoding_length=length,
        max_batch_size=batch,
    )
    lines = "".join(" ".join(result.hypotheses[0]) + "\n" for result in results)
    Path(target).write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
