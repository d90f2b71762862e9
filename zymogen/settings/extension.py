"""Classes that a recipe names: one of ours by a word, one of the user's as `package.module:Class`.

In: the name, the base class, and ours by their words. Out: the class. Kept: nothing; modules stay imported. Modules of
the user's are looked for in the folder of the recipe and then in the current one, after all other places, on every
rank and in every worker.
"""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from zymogen.settings.section import fields_of, unknown_word

T = TypeVar("T")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
FORM = "package.module:Class"


def is_external(name: object) -> bool:
    """Whether a setting names a class of the user's."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def require_name(setting: str, name: str, own: Collection[str]) -> None:
    """Refuse a name that is neither a word of ours nor of the form of the user's; nothing is imported.

    Raises:
        ValueError: which setting, its value, what is allowed.
    """
    if name not in own and not is_external(name):
        raise ValueError(f"{unknown_word(setting, name, own)}, or {FORM} for a class of your own")


def external_names(recipe: Any) -> dict[str, list[str]]:
    """Return the classes and functions of the user's that a recipe names, by the settings that name them."""
    named = {
        name: list(filter(is_external, value if isinstance(value, tuple) else (value,)))
        for name, f, value in fields_of(recipe)
        if f.metadata["extends"]
    }
    return {setting: names for setting, names in named.items() if names}


def search_in(folder: Path) -> None:
    """Look for modules of the user's in a folder, too, after all other places."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)


def load(setting: str, name: str, base: type[T], own: Mapping[str, type[T]]) -> type[T]:
    """Return the class that a setting names.

    Args:
        setting: its dotted name, for errors.
        name: its value.
        base: what the class must be derived from.
        own: ours, by their words.

    Raises:
        ValueError: it cannot be imported, or is no such class.
    """
    require_name(setting, name, own)
    if name in own:
        return own[name]
    found = _attribute(setting, name)
    if not (isinstance(found, type) and issubclass(found, base)):
        kind = f"{base.__module__}.{base.__qualname__}"
        raise ValueError(f"{setting} is {name!r}: it must be a class derived from {kind}")
    return found


def files_of(names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of the files of those classes that are the user's, by their names."""
    return {name: _hash(name, name) for name in names if is_external(name)}


def require_unchanged(files: Mapping[str, str]) -> None:
    """Refuse files that have changed since another process loaded them, as a data worker does.

    Args:
        files: as `files_of` gave them there.

    Raises:
        ValueError: which file.
    """
    for name, code in files.items():
        if _hash(name, name) != code:
            raise ValueError(f"{place_of(name)} has changed since this attempt began; start it again")


def load_function(setting: str, name: str, own: Mapping[str, Callable[..., R]]) -> Callable[..., R]:
    """Return the function that a setting names, or an object of the class that it names, which is called like one.

    Args and errors are those of `load`.
    """
    require_name(setting, name, own)
    if name in own:
        return own[name]
    found = _attribute(setting, name)
    try:
        function: Callable[..., R] = found() if isinstance(found, type) else found
    except Exception as error:  # of a class of the user's: anything
        raise ValueError(f"{setting} is {name!r}: it cannot be made: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"{setting} is {name!r}: it must be a function, or a class whose objects are called like one")
    return function


def hash_of(setting: str, name: str) -> str:
    """Return the SHA-256 of the file that defines a class of the user's; empty for one of ours.

    Raises:
        ValueError: its module cannot be imported.
    """
    return _hash(setting, name) if is_external(name) else ""


def code_of(recipe: Any) -> dict[str, str]:
    """Return the SHA-256 of the files that define the user's classes, by the settings that name them.

    Functions that only show a number are left out. A file is read once, when the class is first asked for: what is
    changed later is not what trains.

    Raises:
        ValueError: a module cannot be imported.
    """
    shown = {name for name, f, _ in fields_of(recipe) if f.metadata["extends"] == "number"}
    return {
        setting: _hash(setting, names[0]) for setting, names in external_names(recipe).items() if setting not in shown
    }


def require_same_code(of_ranks: Sequence[Mapping[str, str]]) -> None:
    """Refuse ranks that have different files for the classes of the user's.

    Raises:
        ValueError: which rank, and of which setting.
    """
    for rank, code in enumerate(of_ranks):
        differing = [name for name in code if code[name] != of_ranks[0].get(name)]
        if differing:
            raise ValueError(
                f"rank {rank} has another file for {differing[0]} than rank 0; put the same one onto every node"
            )


def place_of(name: str) -> str:
    """Return the file that defines a class of this name, which was imported."""
    module, _, attribute = name.partition(":")
    return inspect.getsourcefile(getattr(sys.modules[module], attribute)) or module


@cache
def _hash(setting: str, name: str) -> str:
    _imported(setting, name)
    return hashlib.sha256(Path(place_of(name)).read_bytes()).hexdigest()


def _attribute(setting: str, name: str) -> Any:
    module, attribute = _imported(setting, name), name.partition(":")[2]
    found = getattr(module, attribute, None)
    if found is None:
        place = getattr(module, "__file__", None) or module.__name__
        raise ValueError(f"{setting} is {name!r}: {place} has no {attribute}; correct the name, or write the class")
    return found


def _imported(setting: str, name: str) -> ModuleType:
    module = name.partition(":")[0]
    search_in(Path.cwd())
    try:
        return importlib.import_module(module)
    except Exception as error:  # of a module of the user's: anything
        raise ValueError(
            f"{setting} is {name!r}: {module} cannot be imported: {type(error).__name__}: {error}; it must be in the "
            "folder of the recipe or the current folder, or installed"
        ) from error
