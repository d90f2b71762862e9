"""Files whose hash is compared once, so that no later process need read them for it.

In: a file, and the hash that it had when it was written. Out: nothing, or an error. Kept: under data.store_dir, a file
``checked/HASH.json`` for each file that has the right hash. HASH covers its size, time of change, inode and hash, so
that a changed file is read again; the file itself may lie where nothing can be written.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data.store import derived_json

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

CHECKED = "checked"


def verify_once(path: Path, content_hash: str, store_dir: Path | None, compare: Callable[[], None]) -> None:
    """Compare a file with its hash, unless that was done before.

    Args:
        path: the file.
        content_hash: the hash that `compare` expects.
        store_dir: data.store_dir. If it is None, or nothing can be written there, the next call compares again.
        compare: reads the file, and raises if it differs.

    Raises:
        ValueError: from `compare`.
    """
    if store_dir is None:
        compare()
        return
    status = path.stat()
    stamp = {
        "file": str(path.resolve()),
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
        "hash": content_hash,
    }
    # The path is left out, as a disk can be mounted at several places.
    key = json.dumps([stamp[name] for name in ("bytes", "mtime_ns", "inode", "hash")])
    stamp_path = store_dir / CHECKED / f"{hashlib.blake2b(key.encode(), digest_size=10).hexdigest()}.json"
    if os.path.exists(stamp_path):
        return
    compare()
    if path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError, ValueError):
            derived_json.write(stamp_path, json.dumps(stamp, indent=1) + "\n")


def check(store: "TokenStore", store_dir: Path) -> None:
    """Compare offsets.bin and digests.bin of a finished store, 16 bytes a record, with their hashes; only once.

    With wrong offsets a record would be another protein; with a wrong digest it could both train and validate.

    Raises:
        ValueError: one of them differs from what was written, or offsets do not rise.
    """
    for name in ("offsets.bin", "digests.bin"):
        verify_once(store.folder / name, store.facts["files"][name]["hash"], store_dir, partial(store.verify, name))
