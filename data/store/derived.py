"""The place of what is derived from a token store: splits, clusters, exclusions, pictures.

In: a store, and the name of what is derived. Out: a path. Kept: nothing.

The place is the store's own folder if it can be written to. What is derived from a store that can only be read (on a
shared disk, in a mounted archive) is kept in ``derived/HASH`` of data.store_dir, where HASH is the hash in the store's
store.json, which covers the hashes of all its files.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

DERIVED = "derived"
"""Folder of data.store_dir for what is derived from stores that cannot be written to."""


def cache_dir(store: "TokenStore", name: str) -> Path:
    """The path of `name`, if it was derived before and can be read; otherwise where it is to be written.

    Args:
        store: a finished store.
        name: name of a file or folder, which may lie in another folder: ``clusters-HASH/members``.
    """
    return next(filter(_is_readable, candidate_dirs(store, name)), None) or open_for_writing(store, name)


def open_for_writing(store: "TokenStore", name: str) -> Path:
    """Where `name` is to be written: in the store's folder if that is possible, otherwise under data.store_dir."""
    inside, *elsewhere = candidate_dirs(store, name)
    # A folder of another user that cannot be read cannot be replaced either.
    fits = can_be_written(inside.parent) and (_is_readable(inside) or not os.path.isdir(inside))
    return inside if fits or not elsewhere else elsewhere[0]


def find(store: "TokenStore", name: str) -> list[Path]:
    """Paths of everything derived whose name begins with `name` and that can be read; the store's own folder first."""
    folders = [(place.parent, place.name) for place in candidate_dirs(store, name)]
    found = (path for folder, begin in folders for path in sorted(folder.glob(f"{begin}*")))
    return [path for path in found if _is_readable(path)]


def candidate_dirs(store: "TokenStore", name: str) -> list[Path]:
    """All places where `name` may be kept, the store's own folder first."""
    inside = store.folder / name
    if store.store_dir is None:
        return [inside]
    flat = "-of-".join(reversed(name.split("/")))
    # Not the fingerprint, as that does not cover the names, with which a table of clusters is joined.
    return [inside, store.store_dir / DERIVED / str(store.facts["hash"]) / flat]


def can_be_written(folder: Path) -> bool:
    """Whether files can be made in an existing folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def remedy(delete: Path) -> str:
    """What to do so that a derived folder or file that is damaged is written again."""
    if can_be_written(delete.parent) and (can_be_written(delete) or not os.path.isdir(delete)):
        return f"delete {delete}, it is written again"
    return (
        f"ask the owner of {delete} to delete it, as this user cannot, or copy the store without it and name the "
        "copy's folder in data.sources; it is written again"
    )


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0))
