"""Receipts: how the ranks that write one checkpoint tell the first of them that their parts are on disk.

In: the files that a rank wrote and flushed. Out: a file for rank 0, which appears whole, and nothing where there is no
other rank. Kept: nothing; the folder of receipts is removed before the checkpoint is published.

Files are used, and no collective, because parts are written in threads, beside training, whose collectives must come in
one order on all ranks.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

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
    pieces: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """Part -> stored name -> the piece, as the index has it: `start`, `stop`, `file` and `key`."""
    digests: Mapping[str, Mapping[str, tuple[int, int]]]
    """Part -> stored name -> the `Digest` of the piece."""

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """From the content of a receipt; raises InvalidCheckpoint."""
        kinds: Kinds = {"rank": (int,), "files": (list,), "pieces": (dict,), "digests": (dict,)}
        fields = require_fields("receipt", parse_canonical(raw, "receipt"), kinds)
        return cls(**{**fields, "files": tuple(map(FileEntry.from_record, fields["files"]))})

    def leave(self, temporary: Path) -> None:
        """Give rank 0 the receipt, whole. It need not survive a power cut: nothing is published then."""
        folder = temporary / _FOLDER
        folder.mkdir(exist_ok=True)
        path = folder / f"rank-{self.rank:05d}.json"
        unfinished = path.with_suffix(".new")
        unfinished.write_bytes(canonical({**asdict(self), "files": [entry.record() for entry in self.files]}))
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
