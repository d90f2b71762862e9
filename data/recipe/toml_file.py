"""Recipes from TOML and the command line, checked once, with one error for whatever is wrong.

pydantic checks the types, because its strict mode covers every type a recipe can have and names the field; argparse
parses the command line. A generator of one flag per field (tyro, jsonargparse) is not used: file and command line would
then be read by two parsers with two kinds of errors. Only commands import this module.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from data.recipe.setting import in_words, no_such_word, words

R = TypeVar("R")


def read(recipe_class: type[R], path: Path, overrides: Sequence[str] = ()) -> R:
    """The recipe in a TOML file, with ``section.field=value`` overrides on top.

    Values are written as in TOML; a bare word is a string, and ``none`` takes the field out of the file.

    Raises:
        ValueError: no such file, not TOML, an unknown key (the nearest valid one is named), a value of the wrong
            type, a value out of range, a required field that is missing.
    """
    return check(recipe_class, sections(path, overrides), str(path))


def sections(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a recipe with overrides on top, unchecked, for a caller that needs only some of them.

    Raises:
        ValueError: no such file, not TOML, or an override that cannot be read.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"recipe {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe {path}: not TOML: {error}") from None
    for override in overrides:
        _set(content, override)
    return content


def check(recipe_class: type[R], content: dict[str, Any], origin: str) -> R:
    """The recipe that a nested dictionary (TOML or JSON) describes; `origin` is named in errors."""
    valid = {name: hint for name, _, hint in _declared(recipe_class)}
    sections = {name.rpartition(".")[0] for name in valid}
    for name, value in _leaves(content):
        if name in sections and value in ({}, []):
            continue
        if name not in valid:
            close = difflib.get_close_matches(name, valid, 1, 0.0)
            raise ValueError(f"{origin}: there is no setting {name!r}; the nearest is {close[0]!r} (--help lists all)")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{origin}: {name} is {value}; it must be a finite number")
    try:
        return TypeAdapter(recipe_class).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise ValueError(f"{origin}: {first['msg'].removeprefix('Value error, ')}") from None
        parts = {part for name in valid for part in name.split(".")}
        name = ".".join(str(part) for part in first["loc"] if str(part) in parts)
        if first["type"] == "literal_error":
            raise ValueError(f"{origin}: {no_such_word(name, first['input'], words(valid[name]))}") from None
        if first["type"] == "missing" and isinstance(first["loc"][-1], int):
            raise ValueError(
                f"{origin}: {name} is {first['input']!r}: item {first['loc'][-1] + 1} is missing"
            ) from None
        if first["type"] == "missing":
            raise ValueError(f"{origin}: {name} is required, and has no default") from None
        raise ValueError(f"{origin}: {name} is {first['input']!r}: {first['msg']}") from None


def documented(recipe_class: type) -> Iterator[tuple[str, str]]:
    """(dotted name, text for --help) of every setting, in order."""
    for name, f, hint in _declared(recipe_class):
        default = "required" if f.default is MISSING else f"default {json.dumps(f.default)}"
        unit = f", in {f.metadata['unit']}" if f.metadata["unit"] else ""
        kind = " ".join(filter(None, (_type_name(hint), in_words(f.metadata["bounds"]))))
        yield name, f"{f.metadata['doc']} [{kind}{unit}; {default}; {f.metadata['class']}]"


def _declared(recipe_class: type, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """(dotted name, field, type) of every setting, in order."""
    hints = get_type_hints(recipe_class)
    for f in fields(recipe_class):
        inner = _section(hints[f.name])
        if inner:
            yield from _declared(inner, f"{prefix}{f.name}.")
        else:
            yield f"{prefix}{f.name}", f, hints[f.name]


def _set(content: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"override {override!r} has no '='; write section.field=value, for example run.seed=1")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string, so that a shell needs no second pair of quotes
    *sections, last = name.split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ValueError(f"override {override!r}: {section!r} is a setting, not a section")
    if value == "none":
        content.pop(last, None)
    else:
        content[last] = value


def _section(hint: Any) -> type | None:
    """The dataclass that a type is, or that a list of tables holds (``[[section]]``)."""
    if getattr(hint, "__origin__", None) is tuple:
        hint = get_args(hint)[0]
    return hint if is_dataclass(hint) and isinstance(hint, type) else None


def _leaves(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for item in value:
                yield from _leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _type_name(hint: Any) -> str:
    if isinstance(hint, UnionType):
        return " or ".join("none" if arg is type(None) else _type_name(arg) for arg in get_args(hint))
    if getattr(hint, "__origin__", None) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if get_args(hint):
        return " or ".join(repr(arg) for arg in get_args(hint))
    return str(hint.__name__)
