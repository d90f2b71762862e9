"""The plan of an embedding: which sequences are computed, in which windows, and which of them share a part.

In: a token store, the longest document. Out: `EmbeddingPlan`, arithmetic on lengths alone, so the same on every process
and after every start. Kept: nothing.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data.batches.packed import split_by_tokens
from data.order.plan import SPECIAL_TOKENS
from data.store.token_store import TokenStore
from finetune.adaptation.vectors import TokenWindows, windows_of

TooLong = Literal["refuse", "windows"]


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """What is computed of the records of a store."""

    store: TokenStore
    residues: NDArray[np.int64]
    """(N,) residues of each record."""
    parts: list[slice]
    """The records of each part, one after another."""
    max_tokens: int
    """Longest document, begin and end token counted; longer ones are read in windows."""

    def windows(self, part: slice) -> TokenWindows:
        """The windows of the records of a part."""
        return windows_of(self.residues[part] + SPECIAL_TOKENS, self.max_tokens, first=part.start)


def plan_of(
    store: TokenStore, max_tokens: int, too_long: TooLong, part_tokens: int, part_sequences: int, name: str
) -> EmbeddingPlan:
    """The plan for all records of a store.

    Args:
        store: finished.
        max_tokens: longest document, begin and end token counted.
        too_long: what becomes of longer ones.
        part_tokens: tokens of a part, about.
        part_sequences: most sequences of a part.
        name: the file, for errors.

    Raises:
        ValueError: there are longer sequences, which are refused.
    """
    lengths = np.diff(store.offsets).astype(np.int64) + SPECIAL_TOKENS
    above = np.flatnonzero(lengths > max_tokens)
    if len(above) and too_long == "refuse":
        longest = int(above[lengths[above].argmax()])
        raise ValueError(
            f"{name}: {len(above):,} of {len(lengths):,} sequences have more than the {max_tokens - SPECIAL_TOKENS:,} "
            f"residues that --max-tokens {max_tokens} allows (begin and end token counted); the longest, "
            f"{record_id(store, longest)!r}, has {int(lengths[longest]) - SPECIAL_TOKENS:,}. Read them in windows with "
            f"--too-long windows, or raise --max-tokens"
        )
    parts = list(split_by_tokens(lengths, part_tokens, part_sequences))
    return EmbeddingPlan(store, lengths - SPECIAL_TOKENS, parts, max_tokens)


def record_id(store: TokenStore, record: int) -> str:
    """The first word of a record's header."""
    return id_of(store.headers(record, record + 1)[0])


def id_of(header: bytes) -> str:
    """The first word of a header; bytes that are not UTF-8 are replaced."""
    return header.split(None, 1)[0].decode("utf-8", "replace")
