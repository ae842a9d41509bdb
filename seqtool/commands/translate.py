"""`seqtool translate`: lines in, lines out."""

from omegaconf import DictConfig

from seqtool.errors import InputError
from seqtool.translator import load_translator
from seqtool.writing import Writer, windows


def translate(config: DictConfig) -> None:
    """Lines in, lines out; nothing but translations on standard output."""
    if config.format not in ("text", "jsonl"):
        raise InputError(f"Unknown format '{config.format}'; choose from text, jsonl.")
    translator = load_translator(config)
    with Writer(config, translator) as writer:
        for lines in windows(config.input, 32 * config.batch_size):
            writer.write(lines)
