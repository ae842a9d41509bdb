"""METEOR and SPICE: Java programs, called through pycocoevalcap if both it and Java are installed."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module

from seqtool.metrics.captions import tokenize_captions
from seqtool.runtime.files import printing_to_stderr

MAX_SPICE_JAVA_VERSION = 14  # its libraries use classes that later versions of Java removed or made inaccessible


def java_scores(
    hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]], *, tokenize: str
) -> tuple[dict[str, float], list[str]]:
    """The scores `meteor` and `spice` (0–1), and a message for each that is not available. References of further images
    are ignored. `tokenize` is one of `captions.TOKENIZERS`.
    """
    try:
        meteor = import_module("pycocoevalcap.meteor.meteor").Meteor
        spice = import_module("pycocoevalcap.spice.spice").Spice
    except ImportError:
        return {}, ["METEOR and SPICE need pycocoevalcap: pip install pycocoevalcap."]
    if shutil.which("java") is None:
        return {}, ["METEOR and SPICE need Java, which is not on the PATH."]
    hypothesis_lines = {image: _lines([caption], tokenize) for image, caption in hypotheses.items()}
    reference_lines = {image: _lines(references[image], tokenize) for image in hypotheses}
    scores: dict[str, float] = {}
    problems: list[str] = []
    output = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', output)  # 8 for 1.8.0, 17 for 17.0.15
    version = int(match[1]) if match else 0
    for name, scorer_class in (("meteor", meteor), ("spice", spice)):
        if name == "spice" and version > MAX_SPICE_JAVA_VERSION:
            problems.append(f"SPICE does not run on Java {version}: it needs Java {MAX_SPICE_JAVA_VERSION} or older.")
            continue
        scorer = None
        try:
            with printing_to_stderr(), redirect_stdout(sys.stderr):
                scorer = scorer_class()
                scores[name] = float(scorer.compute_score(reference_lines, hypothesis_lines)[0])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problems.append(f"{name.upper()} failed in Java: {str(error).rstrip('.')}.")
            lock = getattr(scorer, "lock", None)
            if lock is not None and lock.locked():  # METEOR waits for this lock when it is deleted, and would hang
                lock.release()
    return scores, problems


def _lines(captions: Sequence[str], tokenize: str) -> list[str]:
    """The tokenised captions, one line each, without |||, by which METEOR separates texts."""
    return [" ".join(caption.replace("|||", " ").split()) for caption in tokenize_captions(captions, tokenize)]
