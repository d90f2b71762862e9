"""Folders that are whole or not there: built under another name, flushed to disk, then renamed.

In: where the folder shall be. Out: an empty folder to fill. Kept: nothing where filling fails.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder` that takes its name when the block ends without an error.

    Where another process publishes the same folder first, that one stays.

    Raises:
        ValueError: nothing can be written there.
    """
    try:
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ValueError(f"{folder.parent}: {error.strerror}; choose another data.store_dir") from None
    try:
        yield building
        for path in building.iterdir():
            flush(path)
        flush(building)
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():  # else: another process was faster
                raise
        flush(folder.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def flush(path: Path) -> None:
    """Have a closed file or a folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
