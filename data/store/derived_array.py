"""Arrays beside what was derived: ids of a split, hashes of clusters, members.

In: a path, and the type, length and hash that are known. Out: the items, through a memory map. Kept: for a long array,
a note that its hash was compared (`data.store.checked`).
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.store import checked
from data.store.derived import remedy
from data.store.token_store import hash_of


def read(
    path: Path, dtype: str, content_hash: str, count: int | None = None, store_dir: Path | None = None
) -> NDArray[Any]:
    """All items of a file that this package wrote, in a folder that is derived again as a whole.

    Args:
        path: the file.
        dtype: type of one item, with its byte order.
        content_hash: the BLAKE2b hash of 16 bytes that it must have.
        count: how many items it must have; None for any number.
        store_dir: data.store_dir, to compare the hash only once; None to compare it each time.

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

    def compare() -> None:
        with path.open("rb", buffering=0) as file:
            hashed = hash_of(file).hexdigest()
        if hashed != content_hash:
            raise ValueError(
                f"{path} differs from what was written: its hash is {hashed}, it was {content_hash}; check the disk, "
                f"and {remedy(path.parent)}"
            )

    checked.verify_once(path, content_hash, store_dir, compare)
    return np.memmap(path, dtype, "r") if found else np.zeros(0, dtype)
