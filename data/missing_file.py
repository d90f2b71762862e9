"""A file that a user named and that does not exist: the one that was probably meant.

In: the path as it was written. Out: the nearest path, for an error's text. Kept: nothing.
"""

import difflib
import itertools
import os
from pathlib import Path

_MOST = 1000
"""How many names of one folder are compared, and how many folders: there may be millions."""


def nearest(path: Path) -> str:
    """``; the nearest is 'PATH'`` for the most similar file that exists; empty where none is similar.

    Where the folder exists, its files are compared by name; otherwise those of the folders beside it, by folder and
    name.
    """
    folder = path.expanduser().parent
    if folder.is_dir():
        there = {name: path.parent / name for name in _names(folder, files=True)}
        wanted = path.name
    else:
        around, wanted = path.parent.parent, f"{path.parent.name}/{path.name}"
        there = {
            f"{beside}/{name}": around / beside / name
            for beside in _names(folder.parent, files=False)
            for name in _names(folder.parent / beside, files=True)
        }
    close = difflib.get_close_matches(wanted, there, 1, 0.75)
    return f"; the nearest is {str(there[close[0]])!r}" if close else ""


def _names(folder: Path, *, files: bool) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in itertools.islice(entries, _MOST) if (e.is_file() if files else e.is_dir()))
    except OSError:
        return []
