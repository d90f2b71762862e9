"""Shares: the blocks of a checkpoint's data files, and which rank of several compares which with their hashes.

In: the files that a manifest lists. Out: for each rank blocks that follow each other, of about as many bytes. Kept:
nothing. Each byte is read by one rank, so that a start reads a checkpoint once, whatever the number of ranks.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pretrain.checkpoint.blocks.hashes import block_bytes, num_blocks
from pretrain.checkpoint.manifest import FileEntry


class Share(NamedTuple):
    """Blocks `[first, last)` of a file: one, or of a file that has one hash all."""

    file: FileEntry
    first: int
    last: int


def share_of(files: Iterable[FileEntry], rank: int = 0, ranks: int = 1) -> list[Share]:
    """What a rank compares: everything but JSON, which every rank reads."""
    found: list[tuple[int, Share]] = []
    total = 0
    for file in files:
        if file.path.endswith(".json"):
            continue
        blocks = num_blocks(file.size)
        step = blocks if len(file.hashes) == 1 else 1
        for first in range(0, blocks, step):
            found.append((total, Share(file, first, first + step)))
            total += block_bytes(file.size, first, first + step)
    return [share for begin, share in found if begin * ranks // max(total, 1) == rank]
