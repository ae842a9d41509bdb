"""Install, configure and run JoeyNMT and OpenNMT-py for the benchmarks, each in a virtual environment of its own, and
install two engines that only decode.

The configuration of each has two parts beside this file, of which the second is the model (`recurrent` or
`transformer`). The configurations and the functions here contain workarounds for the current versions.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from seqtool.runtime.precision import onednn

PEERS: dict[str, list[list[str]]] = {
    "joeynmt": [["torch==2.13.0", "joeynmt==2.3.0", "importlib_metadata"]],
    "opennmt": [
        ["torch==2.13.0"],
        ["--no-deps", "OpenNMT-py==3.5.1"],
        [
            *("numpy<2", "configargparse", "pyyaml", "sacrebleu", "rapidfuzz", "six", "flask", "waitress"),
            *("pyonmttok", "ctranslate2", "tensorboard", "pyahocorasick", "spacy", "fasttext-wheel"),
        ],
    ],
}
ENGINES = {"ctranslate2": [["ctranslate2==4.8.5"]], "pymarian": [["pymarian==1.12.42"]]}  # for benchmark_engines.py
WITH_ONEDNN = "joeynmt with oneDNN"
RUN_WITH_ONEDNN = (  # the code that runs JoeyNMT with oneDNN's products
    "import runpy, torch; torch.backends.mkldnn.matmul.fp32_precision = 'bf16'; "
    "runpy.run_module('joeynmt', run_name='__main__', alter_sys=True)"
)
SPECIAL_TOKENS = ["<unk>", "<pad>", "<s>", "</s>"]
MARIAN_TOKENS = ["</s>", "<unk>", "<pad>", "<s>"]  # EOS and UNK have to come first; the others fill up


def choose(names: str) -> list[str]:
    """The peers in a comma-separated list."""
    peers = [name for name in names.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        sys.exit(f"Unknown peers {', '.join(sorted(unknown))}; choose from {', '.join(PEERS)}.")
    return peers


def systems(peers: Sequence[str], device: str) -> list[str]:
    """The systems to measure: the peers, and JoeyNMT with oneDNN where seqtool multiplies fp32 matrices with it."""
    with onednn() as used:
        extra = [WITH_ONEDNN] if used and device == "cpu" and "joeynmt" in peers else []
    return [*peers, *extra]


def install(name: str, environments: Path) -> None:
    """Install a peer or an engine, unless its environment exists."""
    python = environments / name / "bin" / "python"
    if python.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", environments / name], check=True)
    for packages in (PEERS | ENGINES)[name]:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)


def write_vocabularies(directory: Path, words: dict[str, Sequence[str]]) -> None:
    """Write the words of `source` and `target`, in their order, in the format of each peer and of Marian."""
    for side, entries in words.items():
        (directory / f"joeynmt.{side}").write_text("\n".join([*SPECIAL_TOKENS, *entries]) + "\n", encoding="utf-8")
        (directory / f"marian.{side}").write_text("\n".join([*MARIAN_TOKENS, *entries]) + "\n", encoding="utf-8")
        (directory / f"opennmt.{side}").write_text("".join(f"{word}\t1\n" for word in entries), encoding="utf-8")


def configure(name: str, run: Path, family: str = "recurrent", **values: object) -> Path:
    """Write a peer's configuration to the directory of its run, and return the file.

    family: the model, `recurrent` or `transformer`
    values: DATA, STEPS, EVERY, VALIDATE, RATE, BATCH; for decoding BEAM, SENTENCES, SHORTEST, LONGEST; for JoeyNMT also
        CUDA, EMBEDDING, ENCODER (per direction), DECODER
    """
    peer = name.split()[0]
    search = {"BEAM": 1, "SENTENCES": 64, "SHORTEST": 1, "LONGEST": 60}
    sizes = {"BATCH": 64, "EMBEDDING": 256, "ENCODER": 256, "DECODER": 512, "CUDA": False}
    values = {"VALIDATE": 1_000_000, "RATE": 0.001, **search, **sizes, **values}
    parts = [Path(__file__).parent / f"{part}.yaml" for part in (peer, f"{peer}_{family}")]
    template = Template("".join(part.read_text(encoding="utf-8") for part in parts))
    path = run / "config.yaml"
    path.write_text(template.substitute(RUN=run, **values), encoding="utf-8")
    return path


def train_command(name: str, environments: Path, config: Path) -> list[object]:
    """The command that trains a system's model."""
    if name == "opennmt":
        return [environments.absolute() / name / "bin" / "onmt_train", "-config", config]
    return [*_joeynmt_command(name, environments), "train", config, "--skip-test"]


def translate_command(
    name: str, environments: Path, config: Path, run: Path, source: Path, *, beam: int, sentences: int, length: int
) -> list[object]:
    """The command that translates a file into sentences of exactly `length` words, `sentences` at once. JoeyNMT reads
    standard input instead, and has the other arguments in its configuration.
    """
    if name != "opennmt":
        return [*_joeynmt_command(name, environments), "translate", config]
    model = sorted(run.glob("model_step_*.pt"))[-1]
    sizes = ["-beam_size", beam, "-batch_size", sentences, "-max_length", length, "-max_length_ratio", 100]
    binary = environments.absolute() / name / "bin" / "onmt_translate"
    return [binary, "-model", model, "-src", source, "-output", run / "output", *sizes]


def _joeynmt_command(name: str, environments: Path) -> list[object]:
    python = environments.absolute() / "joeynmt" / "bin" / "python"
    return [python, "-c", RUN_WITH_ONEDNN] if name == WITH_ONEDNN else [python, "-m", "joeynmt"]


def read_translations(name: str, run: Path, output: str) -> list[str]:
    """Read the translations of the command of `translate_command`, which JoeyNMT prints and OpenNMT-py writes."""
    text = (run / "output").read_text(encoding="utf-8") if name == "opennmt" else output
    return text.splitlines()


def run(command: Sequence[object], *, directory: Path, threads: int, source: Path | None = None) -> str:
    """Run a command, with `source` as standard input. Return its standard output and error, or exit if it fails."""
    arguments = [str(argument) for argument in command]
    environment = {
        **{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")},
        "PATH": f"{Path(arguments[0]).parent}:/usr/bin:/bin",
        "HOME": str(directory),
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",  # otherwise OpenNMT-py cannot read its own checkpoints
    }
    with (source or Path("/dev/null")).open() as stream:
        process = subprocess.run(
            arguments, cwd=directory, env=environment, stdin=stream, capture_output=True, text=True
        )
    output = process.stdout + process.stderr
    if process.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{output[-3000:]}")
    return output
