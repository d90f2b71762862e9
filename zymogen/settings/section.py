"""One field of a recipe: its default, unit, bounds, meaning, and what may happen when it changes between two starts.

In: nothing. Out: dataclass fields with metadata that `--help`, the run's identity and the docs are made from, and a
base class that checks values against it. Kept: nothing.
"""

import difflib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from operator import ge, gt, le, lt
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from zymogen.console.safe_text import redact_later
from zymogen.settings.interval import TIME, UNIT, interval, seconds


class SettingClass(StrEnum):
    """What a field decides. Every field of every recipe has exactly one class."""

    IDENTITY = "identity"
    """What is learned: a run that is continued must have the same value."""
    SCHEDULE = "schedule"
    """How long and how fast it is learned, and what is left out: may change between two starts, when asked for by name.
    """
    OPERATIONAL = "operational"
    """Only how it is run and reported: may change freely, and no weight depends on it beyond rounding."""


IDENTITY, SCHEDULE, OPERATIONAL = SettingClass


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {"at_least": ge, "above": gt, "at_most": le, "below": lt}
"""Bounds by their names; a setting has at most one lower and one upper bound."""


def setting(
    setting_class: SettingClass,
    doc: str,
    default: Any = MISSING,
    unit: str = "",
    *,
    only: tuple[str, tuple[str, ...]] | None = None,
    extends: Literal[False, "class", "number"] = False,
    **bounds: float,
) -> Any:
    """A dataclass field with its class, one-line meaning, default, unit, the setting that it depends on, and bounds.

    Args:
        setting_class: what the field decides.
        doc: one line for --help.
        default: its value where a recipe does not name it; without one, it is required.
        unit: what its numbers count.
        only: another setting of its section, and the values with which this one is read (none listed: all but its
            default); with others this one must have its own default.
        extends: whether it may also name a class of the user's (`extension`), or a function that only shows a number,
            whose code is not recorded.
        bounds: what its number, or each number of its list, may be: at most one lower and one upper bound.
    """
    metadata = {"class": setting_class, "doc": doc, "unit": unit, "only": only, "extends": extends, "bounds": bounds}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def bounded(default: Any = MISSING, **bounds: float) -> Any:
    """A dataclass field that no recipe names, with its bounds; without a default it is required."""
    return field(default=default, metadata={"bounds": bounds})


def format_setting(bounds: Mapping[str, float]) -> str:
    """Bounds as --help and errors give them, such as "at least 1" or "in [0, 1)"; empty without any."""
    if len(bounds) == 2:
        first, last = (f"{limit:_}" for limit in bounds.values())
        return f"in {'[' if 'at_least' in bounds else '('}{first}, {last}{']' if 'at_most' in bounds else ')'}"
    return "".join(f"{name.replace('_', ' ')} {limit:_}" for name, limit in bounds.items())


def allowed_words(hint: Any) -> tuple[Any, ...]:
    """The values that a type consists of, or the items of a list if it is one; empty if they cannot be listed."""
    if get_origin(hint) is tuple:
        return allowed_words(get_args(hint)[0])
    return (False, True) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()


def is_union(hint: Any) -> bool:
    """Whether a type is one of several, however that is written."""
    return get_origin(hint) in (Union, UnionType)


def allowed_words_of_union(hint: Any) -> tuple[str, ...]:
    """The words that a whole number of that type may be replaced by, such as 'auto'; empty if there are none."""
    parts = get_args(hint) if is_union(hint) else ()
    return tuple(word for part in parts for word in allowed_words(part)) if int in parts else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A table of a recipe, or another dataclass with bounds, against which its values are checked when it is made."""

    section: ClassVar[str]
    """Its dotted name, for errors."""

    def __post_init__(self) -> None:
        """Refuse a value that its field does not allow; NaN lies within no bounds. URLs lose their secrets.

        Raises:
            ValueError: which setting, its value, what is allowed.
        """
        hints = get_type_hints(type(self))
        for f in fields(self):
            unit = f.metadata.get("unit")
            if unit == "path":
                object.__setattr__(self, f.name, expanded(getattr(self, f.name)))
            name, value, allowed = f"{self.dotted_name}.{f.name}", getattr(self, f.name), allowed_words(hints[f.name])
            items = value if isinstance(value, tuple) else () if value is None else (value,)
            if any(isinstance(item, str) and "://" in item for item in items):
                items = tuple(redact_later(item, name) for item in items)
                object.__setattr__(self, f.name, items if isinstance(value, tuple) else items[0])
            if unit in (UNIT, TIME):
                (interval if unit == UNIT else seconds)(name, getattr(self, f.name))
            for item in items if allowed else ():
                require_known(name, item, allowed)
            if (beside := allowed_words_of_union(hints[f.name])) and isinstance(value, str):
                if value not in beside:
                    raise ValueError(no_number(name, value, beside))
                continue
            bounds = f.metadata.get("bounds", {})
            holds = all(_HOLDS[side](item, limit) for item in items for side, limit in bounds.items())
            subject, verb = "each" if items is value else "it", "lie" if len(bounds) == 2 else "be"
            require(holds, name, value, f"{subject} must {verb} {format_setting(bounds)}{_or(beside)}")
        for f in fields(self):
            value, (decides, readers) = getattr(self, f.name), f.metadata.get("only") or ("", ())
            if decides and value != f.default:
                name, decisive = f"{self.dotted_name}.{f.name}", f"{self.dotted_name}.{decides}"
                got = getattr(self, decides)
                default = next(each.default for each in fields(self) if each.name == decides)
                said = f"only {required(decisive, readers)} reads it, and {decisive} is {got!r}"
                holds = got in readers if readers else got != default
                require(holds, name, value, f"{said}: take it out ({name}=none), or change {decisive}")

    @property
    def dotted_name(self) -> str:
        """Its name in errors: that of its section, or of one table of several."""
        return self.section

    @classmethod
    def resolved(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by field, with what follows from other fields written out: where these agree, two sections do.

        Args:
            values: of this section, by the names of its fields.
        """
        return dict(values)


def expanded(path: Any) -> Any:
    """A path, or each of several, with the home folder in place of ``~``; None stays None."""
    if isinstance(path, tuple):
        return tuple(map(expanded, path))
    return os.path.expanduser(path) if isinstance(path, str) else path


def require_known(name: str, got: object, allowed: Collection[object]) -> None:
    """Refuse a value that is not one of a list.

    Raises:
        ValueError: `got` is not in `allowed`; its text is that of `unknown_word`.
    """
    if got not in allowed:
        raise ValueError(unknown_word(name, got, allowed))


def unknown_word(name: str, got: object, allowed: Collection[object]) -> str:
    """Text of an error: which setting, its value, the nearest allowed one if it is similar, and all allowed ones."""
    near = difflib.get_close_matches(str(got), map(str, allowed), 1)
    nearest = f"the nearest is {near[0]!r}, " if near else ""
    return f"{name} is {got!r}; {nearest}allowed are {', '.join(map(repr, allowed))}"


def listed(texts: Sequence[str], most: int, others: str = "more") -> str:
    """The first of some texts, and how many others there are."""
    more = f" and {len(texts) - most:,} {others}" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def no_number(name: str, got: object, beside: Collection[str]) -> str:
    """Text of an error: which setting, its value, and that it may be a whole number or one of the words `beside`."""
    return f"{name} is {got!r}; it must be a whole number{_or(beside)}"


def required(decides: str, readers: Sequence[str]) -> str:
    """The setting that another one depends on, with the values that it may have, if only some may be."""
    return f"{decides} = {' or '.join(map(repr, readers))}" if readers else decides


def _or(beside: Collection[str]) -> str:
    return "".join(f", or {word!r}" for word in beside)


def require(holds: bool, name: str, got: object, allowed: str) -> None:
    """Refuse the value of a setting.

    Raises:
        ValueError: `holds` is false.
    """
    if not holds:
        raise ValueError(f"{name} is {got!r}; {allowed}")


def fields_of(recipe: Any, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """(dotted name, field, value) of every setting of a recipe, sections flattened and tables of a list numbered."""
    for f in fields(recipe):
        value = getattr(recipe, f.name)
        if is_dataclass(value):
            yield from fields_of(value, f"{prefix}{f.name}.")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for number, item in enumerate(value):
                yield from fields_of(item, f"{prefix}{f.name}.{number}.")
        else:
            yield f"{prefix}{f.name}", f, value


def settings_of(recipe: Any) -> Iterator[tuple[str, SettingClass, Any]]:
    """(dotted name, class, value) of every setting of a recipe, those of an own class's options one by one."""
    for name, f, value in fields_of(recipe):
        items = (flat({name: value}) or {name: None}) if isinstance(value, dict) else {name: value}
        yield from ((each, f.metadata["class"], item) for each, item in items.items())


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted name, tables of a list numbered, as by `settings_of`."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(number): item for number, item in enumerate(value)}
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def seed_setting() -> Any:
    """The field `run.seed`, which both a run and `python -m data digest` read."""
    return setting(IDENTITY, "keys every random draw", 0)
