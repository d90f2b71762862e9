"""Offsets of finished stores, read once and found whole: a record whose offsets are wrong would be another protein.

In: a store. Out: nothing, or an error. Kept: under data.store_dir, ``checked/HASH.json`` for each offsets.bin that was
compared with its hash. HASH is of its size, time of change, inode and hash, so any other file is read again; the store
itself may lie where nothing can be written.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from data.journal import write_whole

if TYPE_CHECKING:
    from data.store import Store

CHECKED = "checked"
_OFFSETS = "offsets.bin"


def check(store: "Store", store_dir: Path) -> None:
    """Compare offsets.bin with its hash, 8 bytes a record read in order, unless that was done before.

    Args:
        store: a finished one.
        store_dir: data.store_dir. Where nothing can be written there, the next call reads again.

    Raises:
        ValueError: it differs from what was written.
    """
    path = store.folder / _OFFSETS
    status = path.stat()
    stamp = {
        "file": str(path.resolve()),
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "inode": status.st_ino,
        "hash": store.facts["files"][_OFFSETS]["hash"],
    }
    content = json.dumps(stamp, indent=1) + "\n"
    # Not the place, as one disk can be mounted at several.
    key = json.dumps([stamp[name] for name in ("bytes", "mtime_ns", "inode", "hash")])
    stamp_path = store_dir / CHECKED / f"{hashlib.blake2b(key.encode(), digest_size=10).hexdigest()}.json"
    if stamp_path.exists():
        return
    store.verify(_OFFSETS)
    if os.stat(path).st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError):
            stamp_path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(stamp_path, content)
