"""Receipts: how the ranks that write one checkpoint tell the first of them that their parts are on disk.

In: the files that a rank wrote and flushed. Out: a file for rank 0, which appears whole, and nothing where there is no
other rank. Kept: nothing; the folder of receipts is removed before the checkpoint is published.

Files are used, and no collective, because parts are written in threads, beside training, whose collectives must come in
one order on all ranks.
"""

import os
import shutil
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pretrain.checkpoint.canonical import Kinds, canonical, parse_canonical, require_fields
from pretrain.checkpoint.manifest import FileEntry

_FOLDER = "receipts"
_LOOK_S = 0.005
"""Between two looks for receipts at first; later ones are rarer, up to `_RARELY_S`."""
_RARELY_S = 0.1


class GivenUp(Exception):
    """The save was given up while rank 0 waited for another rank's part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What one rank wrote of a checkpoint; all of it is on disk."""

    rank: int
    files: tuple[FileEntry, ...]
    pieces: Mapping[str, NDArray[np.int64]]
    """Part -> ``(pieces, 6)``: tensor by its place among the names, file, start, stop and both sums of the digest."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """From the content of a receipt; raises InvalidCheckpoint."""
        kinds: Kinds = {"rank": (int,), "files": (list,), "pieces": (dict,)}
        fields = require_fields("receipt", parse_canonical(raw, "receipt"), kinds)
        files = tuple(map(FileEntry.from_record, fields["files"]))
        packed = {part: b64decode(text) for part, text in fields["pieces"].items()}
        pieces = {part: np.frombuffer(rows, np.int64).reshape(-1, 6) for part, rows in packed.items()}
        return cls(rank=fields["rank"], files=files, pieces=pieces)

    def leave(self, temporary: Path) -> None:
        """Give rank 0 the receipt, whole. It need not survive a power cut: nothing is published then."""
        folder = temporary / _FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{self.rank:05d}.json"
        unfinished = path.with_suffix(".new")
        packed = {part: b64encode(rows.tobytes()).decode() for part, rows in self.pieces.items()}  # parsed at once
        files = [entry.record() for entry in self.files]
        unfinished.write_bytes(canonical({"rank": self.rank, "files": files, "pieces": packed}))
        os.rename(unfinished, path)


def collect(temporary: Path, own: Receipt, ranks: int, is_given_up: Callable[[], bool]) -> list[Receipt]:
    """The receipts of all ranks, in their order; rank 0 waits for the others' and removes them.

    Raises:
        GivenUp: `is_given_up` said so before all were there.
    """
    receipts, pause = [own], _LOOK_S
    while len(receipts) < ranks:
        path = temporary / _FOLDER / f"rank-{len(receipts):05d}.json"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            if is_given_up():
                raise GivenUp from None
            time.sleep(pause)
            pause = min(_RARELY_S, 1.5 * pause)
            continue
        receipts.append(Receipt.from_bytes(raw))
    if ranks > 1:
        shutil.rmtree(temporary / _FOLDER)
    return receipts
