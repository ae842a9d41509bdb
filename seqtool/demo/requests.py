"""What a request may ask for: JSON objects, checked field by field before anything is computed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from seqtool.errors import InputError
from seqtool.runtime.files import check_plain, parse_json
from seqtool.settings import check_types, typed

SENTENCES = 1000  # of a request
CHARACTERS = 200_000  # of all its texts together
TEXT = 20_000  # characters of one text
TOKENS = 500  # of a side of a pair that is scored
STOPS, STOP = 10, 100  # texts before which a continuation ends, and characters of one
SEARCHED = 10_000  # sentences times beam, of a request
WRITTEN = 20_000  # texts that are written, times the tokens that are shown at each place
DRAWN = 50_000  # tokens of continuations
SECONDS = 60.0  # of work on a request
MOST: dict[str, float] = {
    **{"beam": 50, "n_best": 50, "n": 20, "likeliest": 50},
    **{"max_length": 500, "min_length": 500, "max_source_length": 500},
}


class Request:
    """A JSON object whose fields are taken one by one; `done` refuses those that are left."""

    def __init__(self, content: bytes) -> None:
        try:
            found = parse_json(content)
            check_plain(found)
        except ValueError as error:
            raise InputError(f"The request is not JSON that can be read ({error}): send an object.") from error
        if not isinstance(found, dict):
            raise InputError("The request must be a JSON object.")
        self._left: dict[str, Any] = dict(found)
        self._characters = 0

    def texts(self, name: str, count: int | None = None) -> list[str]:
        """A list of texts; with `count`, exactly so many."""
        found = self._left.pop(name, None)
        if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
            raise InputError(f"'{name}' must be a list of one or more texts.")
        if len(found) > SENTENCES:
            raise InputError(f"'{name}' has {len(found):,} texts: at most {SENTENCES:,} can be sent at once.")
        if count is not None and len(found) != count:
            raise InputError(f"'{name}' has {len(found):,} texts, but {count:,} are needed, one for each.")
        return [self._checked(name, one) for one in found]

    def optional_texts(self, name: str, count: int) -> list[str] | None:
        """The same, or None where the field is missing or null."""
        if self._left.get(name) is not None:
            return self.texts(name, count)
        self._left.pop(name, None)
        return None

    def beginnings(self, name: str, count: int) -> list[str | list[str]] | None:
        """How texts begin: each a text or a list of tokens, or None where the field is missing or null."""
        found = self._left.pop(name, None)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != count:
            raise InputError(f"'{name}' must be a list of {count:,} beginnings, one for each.")
        return [self._beginning(name, one) for one in found]

    def beginning(self, name: str) -> str | list[str]:
        return self._beginning(name, self._left.pop(name, ""))

    def text(self, name: str, default: str | None = None) -> str:
        found = self._left.pop(name, default)
        if not isinstance(found, str):
            raise InputError(f"'{name}' must be a text.")
        return self._checked(name, found)

    def number(self, name: str, default: int, most: int) -> int:
        found = self._left.pop(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
            raise InputError(f"'{name}' must be a whole number from 0 to {most:,}.")
        return found

    def flag(self, name: str) -> bool:
        found = self._left.pop(name, False)
        if not isinstance(found, bool):
            raise InputError(f"'{name}' must be true or false.")
        return found

    def written(self, *names: str) -> str:
        """These fields as they stand, to be compared with another request's; they are not taken."""
        return json.dumps([self._left.get(name) for name in names], sort_keys=True)

    def object(self, name: str) -> Mapping[str, Any] | None:
        found = self._left.pop(name, None)
        if found is not None and not isinstance(found, dict):
            raise InputError(f"'{name}' must be an object.")
        return found

    def predictor(self, models: Sequence[Any]) -> Any:
        """The model that `model` names by its place, with the request's own settings for decoding."""
        place = self.number("model", 0, len(models) - 1)
        model: Any = models[place]
        given = self.object("settings") or {}
        own = asdict(model.settings)
        fixed = {"precision", "batch_size"}
        if unknown := [name for name in given if name not in own or name in fixed]:
            known = ", ".join(name for name in own if name not in fixed)
            raise InputError(f"Unknown setting '{unknown[0][:40]}'; a request can set {known}.")
        check_types(type(model.settings), given)
        stops = given.get("stop") or []
        if len(stops) > STOPS or any(len(one) > STOP for one in stops):
            raise InputError(f"'stop' may have at most {STOPS} texts of {STOP} characters.")
        settings = typed(type(model.settings), {**own, **given})
        for name, most in MOST.items():
            if (getattr(settings, name, 0) or 0) > most:
                raise InputError(f"{name} must be at most {most:,} here, not {getattr(settings, name):,}.")
        return replace(model, settings=settings)

    def check_work(self, predictor: Any, texts: int, likeliest: int) -> None:
        """Raise InputError for a request that would hold the others up."""
        settings, shown = predictor.settings, max(1, likeliest)
        written = texts * getattr(settings, "n_best", 1) * shown
        work = {
            "sentences times beam": (texts * getattr(settings, "beam", 1), SEARCHED),
            "texts to write times the tokens shown at each place": (written, WRITTEN),
            "texts times n times max_length": (texts * getattr(settings, "n", 0) * settings.max_length, DRAWN),
        }
        for name, (asked, most) in work.items():
            if asked > most:
                raise InputError(
                    f"This is too much for one request: {name} is {asked:,}, and at most {most:,} is done."
                )

    def done(self) -> None:
        """Raise InputError for a field that nothing has taken."""
        if self._left:
            raise InputError(f"Unknown field '{next(iter(self._left))[:40]}'.")

    def _beginning(self, name: str, found: Any) -> str | list[str]:
        if isinstance(found, str):
            return self._checked(name, found)
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
            raise InputError(f"'{name}': a beginning is a text or a list of tokens.")
        return [self._checked(name, one) for one in found]

    def _checked(self, name: str, text: str) -> str:
        self._characters += len(text)
        if len(text) > TEXT or self._characters > CHARACTERS:
            raise InputError(
                f"'{name}' is too long: at most {TEXT:,} characters a text and {CHARACTERS:,} a request can be sent."
            )
        return text
