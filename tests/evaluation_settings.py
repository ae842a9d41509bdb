"""The settings of `eval`, for tests that call its parts."""

from dataclasses import fields
from typing import Any

from seqtool.evaluation import EvaluationSettings
from seqtool.runtime.defaults import defaults


def evaluation_settings(**changed: Any) -> EvaluationSettings:
    """The defaults, but for those that are changed."""
    values = {setting.name: defaults("eval")[setting.name] for setting in fields(EvaluationSettings)}
    lists: dict[str, Any] = {"references": [], "scores": [], "beside": []}
    return EvaluationSettings(**{**values, **lists, **changed})
