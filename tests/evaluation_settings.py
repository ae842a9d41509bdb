"""The settings of `eval`, for tests that call its parts."""

from dataclasses import fields
from typing import Any

from seqtool.evaluation import EvaluationSettings
from seqtool.runtime.configs import defaults


def evaluation_settings(**changes: Any) -> EvaluationSettings:
    """Return the default settings of `eval` with these changes."""
    default_values = {setting.name: defaults("eval")[setting.name] for setting in fields(EvaluationSettings)}
    lists: dict[str, Any] = {"references": [], "scores": [], "beside": []}
    return EvaluationSettings(**{**default_values, **lists, **changes})
