"""Tests that defaults in the code are those that Hydra composes from the same files."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from seqtool.predict.captioner import Captioner
from seqtool.predict.predictor import Predictor
from seqtool.predict.translator import Translator
from seqtool.runtime.configs import defaults
from seqtool.runtime.files import config_directory


@pytest.mark.parametrize("command", ["decoding", "translate", "caption", "eval"])
def test_defaults_equal_hydras_composition(command: str) -> None:
    with initialize_config_dir(str(config_directory()), version_base=None):
        composed: Any = OmegaConf.to_container(compose(command))
    assert dict(defaults(command)) == composed


@pytest.mark.parametrize(("predictor", "max_length", "sources_per_batch"), [(Translator, 200, 64), (Captioner, 50, 64)])
def test_predictors_have_the_default_decoding_settings(
    predictor: type[Predictor], max_length: int, sources_per_batch: int
) -> None:
    defaults_of_class = predictor.default_settings()
    assert defaults_of_class.pop("device") == "auto" and defaults_of_class.pop("threads") is None
    settings = predictor.schema(**defaults_of_class)
    assert (settings.max_length, settings.sources_per_batch, settings.beam) == (max_length, sources_per_batch, 5)
    with pytest.raises(TypeError):
        predictor.schema()  # the class states no defaults
