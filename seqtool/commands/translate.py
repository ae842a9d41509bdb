"""`seqtool translate`: lines in, lines out."""

from omegaconf import DictConfig

from seqtool import distributed
from seqtool.config import typed
from seqtool.generation import DECODING
from seqtool.translator import load_translator
from seqtool.writing import Writer, WriterSettings, windows


def translate(config: DictConfig) -> None:
    """Lines in, lines out; nothing but translations on standard output."""
    own = {str(name): value for name, value in config.items() if name not in {*DECODING, "checkpoint", "input"}}
    settings = typed(WriterSettings, own)
    settings.check()
    with distributed.group():
        translator = load_translator(config)
        with Writer(settings, translator) as writer:
            for lines in distributed.each_from_first(windows(config.input, 32 * translator.settings.at_once)):
                writer.write(lines)
