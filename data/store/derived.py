"""What is derived from a token store: its place, and its arrays and JSON files, which are whole or not there.

In: a store, and the name of what is derived; what fills it. Out: a path, or the content. Kept: splits, clusters and
exclusions.

The place is the store's own folder if it can be written to. What is derived from a store that can only be read (on a
shared disk, in a mounted archive) is kept in ``derived/HASH`` of data.store_dir, where HASH is the hash in the store's
store.json, which covers the hashes of all its files.
"""

import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from data.store.token_store import hash_of
from zymogen.files.durable import new_dir

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


def read_array(path: Path, dtype: str, content_hash: str, count: int | None = None) -> NDArray[Any]:
    """All items of a file that this package wrote, in a folder that is derived again as a whole.

    Args:
        path: the file.
        dtype: type of one item, with its byte order.
        content_hash: the BLAKE2b hash of 16 bytes that it must have.
        count: how many items it must have; None for any number.

    Returns:
        (items,) memory map; a plain array if there are no items.

    Raises:
        ValueError: it is missing, cannot be read, or was cut or changed; the message names the file and the remedy.
    """
    item = np.dtype(dtype).itemsize
    try:
        with path.open("rb") as file:
            found = file.seek(0, 2)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {remedy(path.parent)}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; make it readable for this user") from None
    if found % item or (count is not None and found != count * item):
        wanted = f"a multiple of {item}" if count is None else count * item
        raise ValueError(
            f"{path} has {found} bytes, it must have {wanted}: it was cut short or written to; {remedy(path.parent)}"
        )

    status = path.stat()
    _require_hash(path, content_hash, status.st_mtime_ns, status.st_ino)
    return np.memmap(path, dtype, "r") if found else np.zeros(0, dtype)


@cache  # a process that opens a file again does not read it again, unless it was written to
def _require_hash(path: Path, content_hash: str, mtime_ns: int, inode: int) -> None:
    with path.open("rb", buffering=0) as file:
        hashed = hash_of(file).hexdigest()
    if hashed != content_hash:
        raise ValueError(
            f"{path} differs from what was written: its hash is {hashed}, it was {content_hash}; check the disk, and "
            f"{remedy(path.parent)}"
        )


def read_json(path: Path, names: Iterable[str], delete: Path) -> dict[str, Any]:
    """The content of a JSON file that this package wrote.

    Args:
        path: the file.
        names: names of the fields that it must have.
        delete: what to delete so that it is derived again: the folder that it describes, or the file itself.

    Raises:
        ValueError: it is missing, cannot be read, or was cut or changed; the message names the file and the remedy.
    """
    how = remedy(delete)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {how}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; make it readable for this user") from None
    except ValueError as error:
        raise ValueError(f"{path} is no whole JSON ({error}): it was cut short or written to; {how}") from None
    missing = [name for name in names if not isinstance(content, dict) or name not in content]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: it is damaged, or of another version; {how}")
    return dict(content)


def kept_json(path: Path, names: Iterable[str], derive: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The facts about what lies in a folder, which is derived if it is not there yet.

    Args:
        path: the file of the facts, in that folder.
        names: names of the fields that it must have.
        derive: fills a folder, which takes the place of the one of `path`, and returns the facts about it.

    Raises:
        ValueError: as of `read_json`, or `derive` raises it.
    """
    if not path.parent.is_dir():
        with new_dir(path.parent) as building:
            (building / path.name).write_text(json.dumps(derive(building), indent=1))
    return read_json(path, names, path.parent)
