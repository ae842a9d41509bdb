"""The time that a request may take."""

import time
from dataclasses import replace
from typing import Any

from seqtool.errors import InputError


class Timed:
    """A model that takes no further step of a search when its time is up: InputError."""

    def __init__(self, model: Any, seconds: float) -> None:
        self._model, self._seconds = model, seconds
        self._end = time.monotonic() + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any) -> Any:
        self._check()
        return self._model(*arguments)

    def step(self, *arguments: Any) -> Any:
        self._check()
        return self._model.step(*arguments)

    def _check(self) -> None:
        if time.monotonic() > self._end:
            raise InputError(
                f"The request took longer than {self._seconds:g} seconds: send less at once, or with a smaller beam or "
                "max_length."
            )


def timed(predictor: Any, seconds: float) -> Any:
    """The predictor with models that stop after so many seconds from now."""
    return replace(predictor, models=[Timed(one, seconds) for one in predictor.models])
