"""`seqtool prepare`: a corpus, tokenised and encoded once."""

from omegaconf import DictConfig

from seqtool.data.preparation import prepare_cache


def prepare(config: DictConfig) -> None:
    """Make the cache of `config.data`, or find it made, and say what is in it."""
    cache = prepare_cache(config.data)
    print(cache.describe())
    print(f"Prepared in {cache.directory}")
