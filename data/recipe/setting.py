"""One field of a recipe: its default, unit, meaning, and what may happen when it changes between two starts of a run.

In: nothing. Out: dataclass fields with metadata that `--help`, the run's identity and the docs are made from.
"""

from collections.abc import Iterator
from dataclasses import MISSING, field, fields, is_dataclass
from enum import StrEnum
from typing import Any


class SettingClass(StrEnum):
    """What a field decides. Every field of every recipe has exactly one class."""

    IDENTITY = "identity"
    """What is learned: a run that is continued must have the same value."""
    SCHEDULE = "schedule"
    """How long and how fast it is learned: may change between two starts, when asked for by name."""
    OPERATIONAL = "operational"
    """Only how it is run and reported: may change freely, and no weight depends on it beyond rounding."""


IDENTITY, SCHEDULE, OPERATIONAL = SettingClass


def setting(setting_class: SettingClass, doc: str, *, unit: str = "", default: Any = MISSING) -> Any:
    """A dataclass field with its class, unit and one-line meaning; without a default it is required."""
    return field(default=default, metadata={"class": setting_class, "doc": doc, "unit": unit})


def require(holds: bool, name: str, got: object, allowed: str) -> None:
    """Refuse the value of a setting.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        raise ValueError(f"{name} is {got!r}; {allowed}")


def settings_of(recipe: Any, prefix: str = "") -> Iterator[tuple[str, SettingClass, Any]]:
    """(dotted name, class, value) of every field of a recipe, sections flattened and tables of a list numbered."""
    for f in fields(recipe):
        value = getattr(recipe, f.name)
        if is_dataclass(value):
            yield from settings_of(value, f"{prefix}{f.name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, item in enumerate(value):
                yield from settings_of(item, f"{prefix}{f.name}.{number}.")
        else:
            yield f"{prefix}{f.name}", f.metadata["class"], value
