"""JSON with one byte form per value, and strict reading of it.

So a hash of the value is a hash of the file, and a change of any byte of a file changes its value or is refused.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from zymogen.settings import json_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
_EDITED = "it was edited or damaged"
Count = Annotated[int, Field(ge=0)]
"""A whole number of a record, not below 0."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class InvalidCheckpointError(ValueError):
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
        InvalidCheckpointError: not JSON, or not its canonical form (which also refuses repeated keys).
    """
    try:
        value = json.loads(raw)
        same = canonical(value) == raw
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError("format", f"{what} is not JSON: {error}") from error
    if not same:
        raise InvalidCheckpointError("format", f"{what} is not canonical JSON; {_EDITED}")
    return value


def parsed(kind: type[R], raw: bytes, what: str) -> R:
    """The dataclass in canonical bytes: exactly its fields, each of its type.

    Args:
        kind: the dataclass.
        raw: the bytes.
        what: what they are, for errors.

    Raises:
        InvalidCheckpointError: with the first field that is missing, unknown or wrong; or the bytes are not those of
        the
            dataclass.
    """
    try:
        found = json_file.validate(kind, raw, exact=True)
        same = canonical(json_file.adapter(kind).dump_python(found, mode="json")) == raw  # C code, unlike `asdict`
    except ValueError as error:
        if isinstance(error.__cause__, InvalidCheckpointError):
            raise error.__cause__ from None
        raise InvalidCheckpointError("format", f"{what}: {error}") from None
    if not same:
        raise InvalidCheckpointError("format", f"{what} is not canonical JSON with each of its fields; {_EDITED}")
    return found
