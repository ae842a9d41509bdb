"""`seqtool prepare`: a corpus, tokenised and encoded once; images turned into annotation vectors once."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seqtool import tasks


def prepare(config: DictConfig) -> None:
    """Make the cache of `config.data`, or find an existing one, and describe it."""
    task = tasks.of(config)
    if any(one.startswith("model=") for one in HydraConfig.get().overrides.task):
        task.check_model(config)
    cache = task.prepare(config)
    print(cache.describe())
    print("\n".join([f"Prepared in {cache.directory}", *cache.unknown_warning()]))
