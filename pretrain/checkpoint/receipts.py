"""Receipts: how the ranks that write one checkpoint tell the first of them that their parts are on disk.

In: the files that a rank wrote and flushed. Out: a file for rank 0, which appears whole, and nothing where there is no
other rank. Kept: nothing; the folder of receipts is removed before the checkpoint is published.

Files are used, and no collective, because parts are written in threads, beside training, whose collectives must come in
one order on all ranks.
"""

import os
import shutil
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrain.checkpoint.canonical import canonical, parsed
from pretrain.checkpoint.manifest import FileEntry

_FOLDER = "receipts"
_LOOK_S = 0.005
"""Between two looks for receipts at first; later ones are rarer, up to `_RARELY_S`."""
_RARELY_S = 0.1


class SaveAbandoned(Exception):
    """The save was given up while rank 0 waited for another rank's part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReceipt:
    """What one rank wrote of a checkpoint; all of it is on disk."""

    rank: int
    files: tuple[FileEntry, ...]
    packed: Mapping[str, str]
    """Part -> what `pieces` returns, int64 in base64, which is parsed at once."""

    def pieces(self, part: str) -> NDArray[np.int64]:
        """``(pieces, 6)``: tensor by its place among the names, file, start, stop and both sums of the digest."""
        return np.frombuffer(b64decode(self.packed[part]), np.int64).reshape(-1, 6)

    def leave(self, temporary: Path) -> None:
        """Give rank 0 the receipt, whole. It need not survive a power cut: nothing is published then."""
        folder = temporary / _FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{self.rank:05d}.json"
        unfinished = path.with_suffix(".new")
        unfinished.write_bytes(canonical(asdict(self)))
        os.rename(unfinished, path)


def collect(temporary: Path, own: RankReceipt, ranks: int, is_given_up: Callable[[], bool]) -> list[RankReceipt]:
    """The receipts of all ranks, in their order; rank 0 waits for the others' and removes them.

    Raises:
        SaveAbandoned: `is_given_up` said so before all were there.
    """
    receipts, pause = [own], _LOOK_S
    while len(receipts) < ranks:
        path = temporary / _FOLDER / f"rank-{len(receipts):05d}.json"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            if is_given_up():
                raise SaveAbandoned from None
            time.sleep(pause)
            pause = min(_RARELY_S, 1.5 * pause)
            continue
        receipts.append(parsed(RankReceipt, raw, "receipt"))
    if ranks > 1:
        shutil.rmtree(temporary / _FOLDER)
    return receipts
