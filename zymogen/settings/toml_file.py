"""Recipes from TOML and the command line, checked once, with one error for whatever is wrong.

pydantic checks the types, because its strict mode covers every type a recipe can have and names the field; argparse
parses the command line. A generator of one flag per field (tyro, jsonargparse) is not used: file and command line would
then be read by two parsers with two kinds of errors. Only commands import this module.
"""

import difflib
import json
import math
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from zymogen.files.suggestions import did_you_mean
from zymogen.settings.extension import external_names, search_in
from zymogen.settings.interval import Every, no_interval
from zymogen.settings.json_file import R, adapter
from zymogen.settings.origin import COMMAND_LINE, SettingOrigin, origin_of_options, use_origin
from zymogen.settings.section import (
    Section,
    allowed_words,
    allowed_words_of_union,
    format_setting,
    is_union,
    no_number,
    required,
    unknown_word,
)


def read(recipe_class: type[R], path: Path, overrides: Sequence[str] = ()) -> R:
    """The recipe in a TOML file, with ``section.field=value`` overrides on top.

    Values are written as in TOML; a bare word is a string, and ``none`` takes the field out of the file. One string
    is a list of one where a list of strings is expected. Of tables in a list that have names, such as ``[[tasks]]``,
    ``tasks.NAME.field=value`` changes one.

    Raises:
        ValueError: no such file, not TOML, an unknown key (the nearest valid one is named), a value of the wrong
            type, a value out of range, a required field that is missing. Its text begins with where the mistake is:
            the path, or which word of the command line.
    """
    recipe = check(recipe_class, sections(path, overrides), SettingOrigin(str(path), overrides))
    if external_names(recipe):
        search_in(path.parent)
    return recipe


def sections(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a recipe with overrides on top, unchecked, for a caller that needs only some of them.

    Raises:
        ValueError: no such file, not TOML, or an override that cannot be read.
    """
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise ValueError(f"{COMMAND_LINE}: recipe {path}: {error.strerror}{did_you_mean(path)}") from None
    except OSError as error:
        raise ValueError(f"recipe {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"recipe {path}: not UTF-8, but perhaps UTF-16; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"recipe {path}: not TOML: {error}") from None
    return overridden(content, overrides)


def overridden(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`content` with ``section.field=value`` overrides on top, in place; unchecked.

    Raises:
        ValueError: an override cannot be read.
    """
    for override in overrides:
        _set(content, override)
    return content


def check(recipe_class: type[R], content: dict[str, Any], origin: str | SettingOrigin) -> R:
    """The recipe that a nested dictionary (TOML or JSON) describes; `origin` is named in errors."""
    if isinstance(origin, str):
        origin = SettingOrigin(origin)
    else:
        use_origin(origin)
    valid = {name: hint for name, _, hint in _declared(recipe_class)}
    sections = {name.rpartition(".")[0] for name in valid}
    for name, value in _leaves(content):
        if name in sections and value in ({}, []):
            continue
        if any(name.startswith(f"{table}.") for table, hint in valid.items() if get_origin(hint) is dict):
            continue  # the options of a class of the user's, which are checked when it is loaded
        if name not in valid:
            close = difflib.get_close_matches(name, valid, 1, 0.0)
            nearest = f"; the nearest is {close[0]!r} (--help-settings lists all)" if close else ", and there is none"
            raise ValueError(origin.error(f"there is no setting {name!r}{nearest}", name))
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(origin.error(f"{name} is {value}; it must be a finite number", name))
        if isinstance(value, str) and _is_list_of_strings(valid[name]):
            origin.require_quotes(name, value)
    try:
        found: R = adapter(recipe_class).validate_json(json.dumps(_listed(content, valid), default=str), strict=True)
    except ValidationError as error:
        raise ValueError(_in_one_line(error, valid, origin)) from None
    return found


def check_options(kind: Any, values: Mapping[str, Any]) -> Any:
    """The options of an own class, checked as the settings of its `section`, such as "optimizer.options".

    Raises:
        ValueError: as of `read`.
    """
    if not values and not fields(kind):
        return kind()
    table, _, field = kind.section.rpartition(".")
    recipe = check(_recipe_of(kind), {table: {field: dict(values)}}, origin_of_options())
    return getattr(getattr(recipe, table), field)


@cache
def _recipe_of(kind: type[Section]) -> Any:
    """A recipe that has nothing but the options of an own class."""
    table, _, field = kind.section.rpartition(".")
    return make_dataclass("Recipe", [(table, make_dataclass("Table", [(field, kind)]))])


def _in_one_line(error: ValidationError, valid: Mapping[str, Any], origin: SettingOrigin) -> str:
    """The first mistake that pydantic found, in a recipe whose settings and their types are `valid`."""
    first = error.errors()[0]
    parts = {part for name in valid for part in name.split(".")}
    name = ".".join(str(part) for part in first["loc"] if str(part) in parts)
    if first["type"] == "value_error":
        fields_of_it = (each for each in valid if not name or each.rpartition(".")[0] == name)
        return origin.error(first["msg"].removeprefix("Value error, "), *fields_of_it)
    if first["type"] == "literal_error":
        return origin.error(unknown_word(name, first["input"], allowed_words(valid[name])), name)
    if first["type"] == "missing" and isinstance(first["loc"][-1], int):
        return origin.error(f"{name} is {first['input']!r}: item {first['loc'][-1] + 1} is missing", name)
    if first["type"] == "missing":
        return origin.error(f"{name} is required, and has no default", name)
    got = first["input"]
    if valid.get(name) == Every:
        return origin.error(no_interval(name, got), name)
    if first["type"] == "int_type" and isinstance(got, float) and got.is_integer():
        return origin.error(f"{name} is {got!r}, which TOML takes for a fraction: write {name}={int(got):_}", name)
    if beside := allowed_words_of_union(valid.get(name)):
        return origin.error(no_number(name, got, beside), name)
    return origin.error(f"{name} is {got!r}: {first['msg']}", name)


def documented(recipe_class: type) -> Iterator[tuple[str, str]]:
    """(dotted name, text for --help) of every setting, in order."""
    for name, f, hint in _declared(recipe_class):
        default = "required" if f.default is MISSING else f"default {json.dumps(f.default)}"
        default = "default none" if f.default_factory is not MISSING else default
        unit = f", in {f.metadata['unit']}" if f.metadata["unit"] not in ("", "path") else ""
        kind = " ".join(filter(None, (_type_name(hint), format_setting(f.metadata["bounds"]))))
        decides, readers = f.metadata["only"] or ("", ())
        only = f"; only with {required(decides, readers)}" if decides else ""
        yield name, f"{f.metadata['doc']} [{kind}{unit}; {default}; {f.metadata['class']}{only}]"


def settings_help(recipe_class: type, section: str = "") -> str:
    """Return what the classes of settings mean, then the settings of a section, or all, each with its text indented.

    Raises:
        ValueError: the recipe has no such section.
    """
    begin = f"{section}." if section else ""
    found = {name: text for name, text in documented(recipe_class) if f"{name}.".startswith(begin)}
    if not found:
        sections = dict.fromkeys(name.rpartition(".")[0] for name, _ in documented(recipe_class))
        raise ValueError(f"{COMMAND_LINE}: {unknown_word('--help-settings', section, list(sections))}")
    wrapped = partial(textwrap.fill, width=80, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return (
        "settings [type, unit; default; class; with which value of another setting alone]:\n"
        "  identity     decides what is learned; a run is continued with the same value\n"
        "  schedule     may change when a run is continued, with --allow-schedule-change\n"
        "  operational  decides only how it is run; may change freely\n\n"
    ) + "\n".join(f"  {name}\n{wrapped(text)}" for name, text in found.items())


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
        meant = f", or data.sources={override}" if Path(override).exists() else ""
        said = f"override {override!r} has no '='; write section.field=value, for example run.seed=1{meant}"
        raise ValueError(f"{COMMAND_LINE}: {said}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string, so that a shell needs no second pair of quotes
    *sections, last = name.split(".")
    for number, section in enumerate(sections):
        found = content.setdefault(section, {})
        if _has_names(found):  # which may have dots in them
            content = _named(found, ".".join(sections[: number + 1]), ".".join(sections[number + 1 :]), last, override)
            break
        if not isinstance(found, dict):
            raise ValueError(f"{COMMAND_LINE}: override {override!r}: {section!r} is a setting, not a section")
        content = found
    if value == "none":
        content.pop(last, None)
    else:
        content[last] = value


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and "name" in each for each in value)


def _named(tables: list[dict[str, Any]], section: str, name: str, field: str, override: str) -> dict[str, Any]:
    """The table of that name among those of a list."""
    named = {str(table["name"]): table for table in tables}
    if not name:
        listed = ", ".join(map(repr, named))
        said = f"{section!r} is a list of tables; write {section}.NAME.{field}=..., where NAME is one of {listed}"
    elif (owner := name.rpartition(".")[0]) in named:  # a table in the table, such as `options`
        inner: dict[str, Any] = named[owner].setdefault(name.rpartition(".")[2], {})
        return inner
    elif name not in named:
        close = difflib.get_close_matches(name, named, 1, 0.0)
        said = f"no table [[{section}]] has the name {name!r}; the nearest is {close[0]!r}"
    else:
        return named[name]
    raise ValueError(f"{COMMAND_LINE}: override {override!r}: {said}")


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


def _listed(content: dict[str, Any], valid: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy in which one string, in place of a list of strings, is a list of one."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _listed(value, valid, f"{name}.")
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            return [of(name, item) for item in value]
        return [value] if isinstance(value, str) and _is_list_of_strings(valid.get(name)) else value

    return {key: of(f"{prefix}{key}", value) for key, value in content.items()}


def _is_list_of_strings(hint: Any) -> bool:
    return get_origin(hint) is tuple and (get_args(hint)[0] is str or isinstance((*allowed_words(hint), 0)[0], str))


def _type_name(hint: Any) -> str:
    if is_union(hint):
        return " or ".join("none" if arg is type(None) else _type_name(arg) for arg in get_args(hint))
    if getattr(hint, "__origin__", None) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return "table"
    if get_args(hint):
        return " or ".join(repr(arg) for arg in get_args(hint))
    return str(hint.__name__)
