"""JSON with one byte form per value, and strict reading of it.

So a hash of the value is a hash of the file, and a change of any byte of a file changes its value or is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

Kinds = Mapping[str, tuple[type, ...]]
"""Field -> its allowed types."""


class InvalidCheckpoint(ValueError):
    """A checkpoint that is not what it should be; `reason` is one word for its quarantine name."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def canonical(value: object) -> bytes:
    """The one byte form of a JSON value: sorted keys, ASCII, no NaN, one line, as only that is written by C code."""
    return (json.dumps(value, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def parse_canonical(raw: bytes, what: str) -> Any:
    """JSON value of canonical bytes.

    Raises:
        InvalidCheckpoint: not JSON, or not its canonical form (which also refuses repeated keys).
    """
    try:
        value = json.loads(raw)
        same = canonical(value) == raw
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint("format", f"{what} is not JSON: {error}") from error
    if not same:
        raise InvalidCheckpoint("format", f"{what} is not canonical JSON; it was edited or damaged")
    return value


def require_fields(what: str, value: object, kinds: Kinds) -> dict[str, Any]:
    """`value` as a dict with exactly the fields of `kinds`, each of an allowed type, no count below 0.

    Raises:
        InvalidCheckpoint: names what is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise InvalidCheckpoint("format", f"{what}: got {type(value).__name__}, allowed an object")
    missing, unknown = sorted(kinds.keys() - value.keys()), sorted(value.keys() - kinds.keys())
    if missing or unknown:
        lines = f"missing fields {missing[:5]}, unknown fields {unknown[:5]}"
        raise InvalidCheckpoint("format", f"{what}: {lines}, allowed {sorted(kinds)}")
    for key, allowed in kinds.items():
        got = value[key]
        if not isinstance(got, allowed) or isinstance(got, bool):  # a bool would pass for a count
            names = " or ".join(kind.__name__ for kind in allowed)
            raise InvalidCheckpoint("format", f"{what}.{key}: got {got!r}, allowed {names}")
        if isinstance(got, int) and got < 0:
            raise InvalidCheckpoint("format", f"{what}.{key}: got {got}, allowed 0 or more")
    return value
