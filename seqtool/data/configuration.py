"""The settings under `data`: those of the cache, and the corpus's own, from which it is built."""

from dataclasses import dataclass, field, fields
from typing import TypeVar, cast

from omegaconf import DictConfig

from seqtool.data.corpora.corpus import Corpus
from seqtool.data.text.encoding import LimitSettings
from seqtool.data.text.vocabulary import VocabularySettings
from seqtool.errors import InputError
from seqtool.settings import Config, declarations, plain, resolved, typed
from seqtool.settings.classes import Trust, build

C = TypeVar("C", bound=Corpus)


@dataclass
class CacheSettings(declarations.Cache):
    """The settings of `data` that are not the corpus's own.

    cache: the directory that holds caches. processes: how many encode; null is one per CPU, up to 8. limits: for
    training pairs and captions; a text has none.
    """

    vocabulary: VocabularySettings
    limits: LimitSettings = field(default_factory=LimitSettings)

    def check(self) -> None:
        """Raise InputError on values that cannot be used."""
        self.vocabulary.check()
        self.limits.check()
        declarations.check_values(self, "data.")


OWN = frozenset(setting.name for setting in fields(CacheSettings))


def cache_settings(config: Config) -> CacheSettings:
    """The settings of the cache itself among `config`, the settings under `data`, checked."""
    settings = typed(CacheSettings, _part(config, own=True))
    settings.check()
    return settings


def corpus_settings(config: Config) -> Config:
    """The other settings: the corpus's."""
    return _part(config, own=False)


def make_corpus(config: Config, kind: type[C], *, trusted: Trust) -> C:
    """The corpus of this kind that `config`, the settings under `data`, describes; its files are not yet checked.

    `trusted`: for a configuration from a checkpoint, the modules, besides this package, whose corpora it may name.
    """
    corpus = build(corpus_settings(config), trusted=trusted, base=Corpus)
    if not isinstance(corpus, kind):
        name, wanted = type(corpus).__name__, f"{kind.contents} are wanted here, such as {kind.example}"
        raise InputError(f"{name} has {corpus.contents}, but {wanted}.")
    return corpus


def _part(config: Config, *, own: bool) -> Config:
    part = {name: value for name, value in plain(config).items() if (name in OWN) == own}
    if not isinstance(config, DictConfig):
        return part
    return cast(DictConfig, resolved({"data": part}).data)  # it knows its full name, for messages
