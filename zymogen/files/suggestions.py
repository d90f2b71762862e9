"""Files that a user named, in messages: the one that was probably meant, and a few of many.

In: paths as they were written. Out: texts. Kept: nothing.
"""

import difflib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

_MOST = 1000
"""How many names are compared, and how many of one folder are read: there may be millions."""
_MOST_FOLDERS = 20
"""How many folders are looked into; those whose names are most similar."""


def did_you_mean(path: Path, *, files: bool = True) -> str:
    """``; the nearest is 'PATH'`` for the most similar file that exists; empty where none is similar.

    Where the folder exists, its files are compared by name; otherwise those of the folders beside it, by folder and
    name. Without `files`, folders are compared instead.
    """
    folder = path.parent
    if folder.is_dir():
        there = {name: path.parent / name for name in _names(folder, files=files)}
        wanted = path.name
    else:
        around, wanted = path.parent.parent, f"{path.parent.name}/{path.name}"
        similar = difflib.get_close_matches(folder.name, _names(folder.parent, files=False), _MOST_FOLDERS, 0.0)
        pairs = ((beside, name) for beside in similar for name in _names(folder.parent / beside, files=files))
        there = {f"{beside}/{name}": around / beside / name for beside, name in itertools.islice(pairs, _MOST)}
    close = difflib.get_close_matches(wanted, there, 1, 0.75)
    return f"; the nearest is {str(there[close[0]])!r}" if close else ""


def format_list(names: Sequence[str], most: int = 3) -> str:
    """Names for a reader: all of them up to `most`, else the first ones and how many more there are."""
    shown = [*names[:most], *([f"{len(names) - most:,} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _names(folder: Path, *, files: bool) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in itertools.islice(entries, _MOST) if (e.is_file() if files else e.is_dir()))
    except OSError:
        return []
