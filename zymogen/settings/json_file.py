"""JSON files that hold one dataclass each, read with one error for whatever is wrong.

In: a dataclass with a field ``format``, or the bytes of a file, which nobody vouches for. Out: JSON, or the dataclass.
Kept: nothing.
"""

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import GetPydanticSchema, TypeAdapter

R = TypeVar("R", bound="DataclassInstance")


def as_json(record: "DataclassInstance", **more: Any) -> str:
    """The text of a file: the fields of `record`, and `more` after them; null for numbers that are not finite."""
    return json.dumps(plain({**asdict(record), **more}), indent=1, allow_nan=False) + "\n"


def read(kind: type[R], path: Path, what: str, remedy: str) -> R:
    """The dataclass that a file holds; arguments and errors as of `parse`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}; {remedy}") from None
    return parse(kind, content, str(path), what, remedy)


def read_bytes(kind: type[R], path: Path) -> R | None:
    """The dataclass that a file holds; None where that is not there, or does not hold one."""
    try:
        return read(kind, path, "whole file", "write it again")
    except ValueError:
        return None


def parse(kind: type[R], content: bytes, where: str, what: str, remedy: str) -> R:
    """The dataclass that the bytes of a file hold; fields that it does not have are left out.

    Args:
        kind: the dataclass; the default of its field ``format`` is what the file must have there.
        content: of the file.
        where: the file, for errors.
        what: what the file should be, for errors.
        remedy: what to do with a damaged one, for errors.

    Raises:
        ValueError: it is no JSON object, or of another format; a field is missing, or has a value of another type.
    """
    expected = next(field.default for field in fields(kind) if field.name == "format")
    try:
        found = json.loads(content)["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{where} is no {what}: {type(error).__name__}: {error}") from None
    if found != expected:
        raise ValueError(
            f"{where} has the format {found!r}; {expected!r} is read: open it with the version that wrote it"
        )
    try:
        return validate(kind, content)
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}; {remedy}") from None


def validate(kind: type[R], content: bytes, *, exact: bool = False) -> R:
    """The dataclass in the bytes of JSON, each value of its field's type.

    Args:
        kind: the dataclass.
        content: of the file.
        exact: whether an unknown field is an error, and not left out.

    Raises:
        ValueError: the first field that is wrong, and its value; its cause is the error that the dataclass raised.
    """
    from pydantic import ValidationError

    try:
        found: R = adapter(kind).validate_json(content, strict=True, extra="forbid" if exact else None)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its content"
        cause = first.get("ctx", {}).get("error")
        raise ValueError(f"{place}: {first['msg']}, got {reprlib.repr(first['input'])}") from cause
    return found


@cache  # a schema takes longer to make than a file to read
def adapter(kind: type[R]) -> "TypeAdapter[R]":
    """What checks and writes a dataclass."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def array(items: Any, dtype: Any) -> "GetPydanticSchema":
    """Annotation of a field that is an array of `dtype`, and in a file a list: of `items`, such as ``list[float]``."""
    import numpy as np
    from pydantic import GetPydanticSchema
    from pydantic_core.core_schema import no_info_after_validator_function as then

    return GetPydanticSchema(lambda _, handler: then(lambda found: np.array(found, dtype), handler(items)))


def plain(value: Any, of_text: Callable[[str], str] = str) -> Any:
    """The same with lists for arrays, None for numbers that JSON does not have, and `of_text` of each text."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {str(name): plain(each, of_text) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, of_text) for each in value]
    if isinstance(value, str):
        return of_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
