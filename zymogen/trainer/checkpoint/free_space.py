"""The free space that a run's checkpoints need, looked at before the first step.

In: a folder, how many checkpoints stay in it, and their size. Out: an error if its file system has too little room.
Kept: nothing.

While a checkpoint is written, the one that it replaces is still there, so the file system holds one more than are kept,
and one that was damaged or superseded may stand in quarantine.
"""

import os
from pathlib import Path

from zymogen.processes.errors import StorageError
from zymogen.trainer.checkpoint.load import QUARANTINED, find
from zymogen.trainer.checkpoint.retention import in_quarantine


def require_room(checkpoints_dir: Path, *, kept: int, checkpoint_bytes: int) -> None:
    """Refuse to begin where the checkpoints that the run will keep, and the one that is being written, have no room.

    Those that are there already have theirs. A file system that does not say what is free, as some in user space, is
    taken to have room; a quota is mostly not seen here. Both are found out by the save that fails.

    Args:
        checkpoints_dir: the run's checkpoints; it may not exist yet.
        kept: how many stay.
        checkpoint_bytes: size of one.

    Raises:
        StorageError: less is free than is needed.
    """
    free = _free_bytes(checkpoints_dir)
    present = len(find(checkpoints_dir))
    aside = max(0, QUARANTINED - len(in_quarantine(checkpoints_dir)))
    missing = max(1, kept + 1 - present) + aside
    if free is None or free >= missing * checkpoint_bytes:
        return
    raise StorageError(
        checkpoints_dir,
        f"{_size(free)} are free, and {_size(missing * checkpoint_bytes)} are needed: {_size(checkpoint_bytes)} for "
        f"each of {kept:,} that stay, the one that is being written and {aside} in quarantine; {present:,} are there",
        "free space there, lower run.keep_checkpoints, or choose a run.directory on a larger disk, and start again",
    )


def _free_bytes(folder: Path) -> int | None:
    """What this user may still write where a folder is, or will be; None if the file system does not say."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.1f} GB"
