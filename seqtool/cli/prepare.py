"""`seqtool prepare`: tokenise and encode a corpus, or encode its images, once for all runs."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seqtool import tasks


def prepare(config: DictConfig) -> None:
    """Make the cache of `config.data`, or find the existing one, and describe it."""
    task = tasks.task_of_data(config)
    if any(override.startswith("model=") for override in HydraConfig.get().overrides.task):
        task.check_model(config)
    cache = task.prepare(config)
    print("\n".join([cache.describe(), f"Prepared in {cache.directory}", *cache.unknown_warning()]))
