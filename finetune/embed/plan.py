"""The plan of an embedding: which sequences are computed, in which windows, and which of them share a part.

In: a token store, the longest document. Out: `EmbeddingPlan`, arithmetic on lengths alone, so the same on every process
and after every start. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from data.batches.packed import split_by_tokens
from data.order.plan import SPECIAL_TOKENS
from data.store.token_store import TokenStore
from finetune.adaptation.vectors import LEAST_TOKENS, Pooling, TokenWindows, windows_of
from pretrain.model.presets import EsmShape
from zymogen.settings.origin import format_option

TooLong = Literal["refuse", "windows"]

PART_TOKENS = 1 << 18
"""Tokens of a part, about: what is computed again after an interruption is at most this much for each process."""
PART_SEQUENCES = 4096
PART_BYTES = 32 << 20
"""Most bytes of a part's vectors, unless one sequence, or a few bins of residues, have more."""


def chosen_layers(layers: Sequence[int] | None, shape: EsmShape, origin: str) -> tuple[int, ...]:
    """The layers to embed with; the last one unless others are given.

    Raises:
        ValueError: the model of `origin` has no such layer, or one is given twice.
    """
    chosen = tuple(layers or [shape.layers])
    given = f"{format_option('layers')} {' '.join(map(str, chosen))}"
    if not all(0 <= layer <= shape.layers for layer in chosen):
        raise ValueError(
            f"{given}: {origin} has {shape.layers} layers; give numbers from 0, the embedding, to {shape.layers}, what "
            "the final norm gives"
        )
    if len({*chosen}) < len(chosen):
        raise ValueError(f"{given}: give each layer once")
    return chosen


def require_window(max_tokens: int) -> None:
    """Refuse windows too short to read anything in.

    Raises:
        ValueError: so.
    """
    if max_tokens < LEAST_TOKENS:
        raise ValueError(f"{format_option('max_tokens')} {max_tokens}: give at least {LEAST_TOKENS}")


def part_size(pooling: Pooling, numbers: int, dtype: str, bin_tokens: int) -> tuple[int, int]:
    """Tokens of a part, about, and its most sequences.

    Args:
        pooling: of the vectors.
        numbers: of one vector, all layers together.
        dtype: of a number.
        bin_tokens: slots of one forward pass.
    """
    most = max(1, PART_BYTES // (numbers * np.dtype(dtype).itemsize))
    if pooling == "residue":
        return min(PART_TOKENS, max(most, 4 * bin_tokens)), PART_SEQUENCES
    return PART_TOKENS, min(PART_SEQUENCES, most)


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
