"""Vectors of sequences: the encoder's, of the layers that are asked for, pooled or residue by residue.

In: an encoder, windows of sequences. Out: arrays. Kept: nothing; memory holds one bin of vectors, and the result.

Layer 0 is the embedding, layer i the residual stream after the i-th layer, and the last one what the final norm makes
of it: the numbering of `hidden_states` in transformers.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.batches.contents import Contents
from data.batches.packed import PackedDocuments, packed
from pretrain.model.encoder import Encoder

Pooling = Literal["mean", "begin", "residue"]
"""One vector of a record, the mean over its residues or that of its first token; or one of each residue."""

LEAST_TOKENS = 8
"""Fewest tokens of a window."""


class TokenWindows(NamedTuple):
    """Slices of sequences' tokens that a model reads, ``(windows,)`` int64 each.

    Token 0 of a sequence is its begin token, token t its residue t - 1, and the last one its end token.
    """

    sequence: NDArray[np.int64]
    """Number of the sequence; windows of one follow one another."""
    start: NDArray[np.int64]
    """First token that is read."""
    length: NDArray[np.int64]
    """Tokens that are read."""
    keep_from: NDArray[np.int64]
    """First residue token whose vector is taken from this window."""
    keep_to: NDArray[np.int64]
    """The token after the last one."""


@dataclass(frozen=True, slots=True)
class Embedder:
    """An encoder, and what is wanted of it."""

    encoder: Encoder
    layers: tuple[int, ...]
    pooling: Pooling
    autocast: bool
    """Whether it computes in bfloat16 where autocast does so; sums are float32."""

    @torch.no_grad()
    def __call__(
        self,
        contents: Contents,
        records: NDArray[np.int64],
        windows: TokenWindows,
        linkers: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """The vectors of consecutive sequences.

        Args:
            contents: give their tokens.
            records: (n,) the sample of each sequence.
            windows: of these sequences, the first of which has the number ``windows.sequence[0]``.
            linkers: (n, 2) tokens of each sequence from and up to which a linker lies, which is in no mean; (0, 0)
                without one.

        Returns:
            ``(n, layers, D)``, or ``(residues, layers, D)`` of all residues one after another; float32.
        """
        number = windows.sequence - windows.sequence[0]
        kept = windows.keep_to - windows.keep_from
        residues = np.bincount(number, kept, len(records)).astype(np.int64)
        rows = int(residues.sum()) if self.pooling == "residue" else len(records)
        # Where the vectors of each window's residues begin; the windows of a sequence follow one another.
        places = np.cumsum(kept) - kept
        found = np.zeros((rows, len(self.layers), self.encoder.shape.dim), np.float32)
        sums = np.zeros((len(kept), *found.shape[1:]), np.float32) if self.pooling == "mean" else found[:0]
        for part in packed(contents, windows.length, samples=records[number], starts=windows.start):
            own = part.documents
            skipped = windows.keep_from[own] - windows.start[own]
            vectors = self._vectors(part)
            if self.pooling == "begin":
                begins = windows.start[own] == 0
                found[number[own[begins]]] = _stacked(vectors)[begins]
                continue
            document = np.repeat(np.arange(len(own)), kept[own])
            within = np.arange(len(document)) - np.repeat(np.cumsum(kept[own]) - kept[own], kept[own])
            slots = (part.firsts + skipped)[document] + within
            if self.pooling == "mean":
                if linkers is not None:
                    token = windows.keep_from[own][document] + within
                    begin, end = linkers[number[own]][document].T
                    pooled = (token < begin) | (token >= end)
                    slots, document = slots[pooled], document[pooled]
                sums[own] = _stacked([summed(each, slots, document, len(own)) for each in vectors])
            else:
                at = torch.from_numpy(slots).to(vectors[0].device)
                found[places[own][document] + within] = _stacked([each[at] for each in vectors])
        if self.pooling == "mean":
            np.add.at(found, number, sums)
            residues -= 0 if linkers is None else np.diff(linkers)[:, 0]
            found /= residues.clip(1)[:, None, None]
        return found

    def _vectors(self, part: PackedDocuments) -> list[Tensor]:
        """Vectors of each layer, ``(S, D)``; with `begin`, ``(n, D)`` of the first slots alone."""
        device = next(self.encoder.parameters()).device
        firsts = torch.from_numpy(part.firsts).to(device) if self.pooling == "begin" else None
        caught: dict[int, Tensor] = {}

        def catch(layer: int, _: object, arguments: tuple[Any, ...]) -> None:
            caught[layer] = arguments[0] if firsts is None else arguments[0].index_select(0, firsts)

        with ExitStack() as stack, torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
            for layer in self.layers:
                if layer < len(self.encoder.layers):
                    hooked = self.encoder.layers[layer].register_forward_pre_hook(partial(catch, layer))
                    stack.callback(hooked.remove)
            last = self.encoder(part.batch.to(device), firsts)
        return [caught.get(layer, last).float() for layer in self.layers]


def _stacked(of_layers: Sequence[Tensor]) -> NDArray[np.float32]:
    """(rows, layers, D) on the host."""
    return np.asarray(torch.stack(list(of_layers), 1).cpu().numpy())


def summed(vectors: Tensor, slots: NDArray[np.int64], of: NDArray[np.int64], count: int) -> Tensor:
    """Sums of some slots' vectors for each document.

    Args:
        vectors: ``(S, D)`` float32.
        slots: (n,) the slots that are summed.
        of: (n,) document of each, from 0.
        count: number of documents.

    Returns:
        ``(count, D)`` on the device of `vectors`; 0 for a document without a slot.
    """
    device = vectors.device
    sums = torch.zeros(count, vectors.shape[1], device=device)
    return sums.index_add_(0, torch.from_numpy(of).to(device), vectors[torch.from_numpy(slots).to(device)])


def windows_of(lengths: NDArray[np.int64], max_tokens: int, first: int = 0) -> TokenWindows:
    """The windows of sequences: one of the whole sequence, or several of `max_tokens` that overlap by half of that.

    The last window ends with the sequence, so that it may overlap by more. Of the windows that hold a residue, the one
    is taken whose nearer cut is farther away: where two overlap, the middle of the overlap divides them.

    Args:
        lengths: (sequences,) tokens of each.
        max_tokens: of a window, at least `LEAST_TOKENS`.
        first: number of the first sequence.
    """
    rows = [
        (first + number, *window)
        for number, length in enumerate(lengths.tolist())
        for window in _windows(length, max_tokens)
    ]
    return TokenWindows(*np.array(rows, np.int64).reshape(-1, 5).T.copy())


def _windows(length: int, max_tokens: int) -> Iterator[tuple[int, int, int, int]]:
    if length <= max_tokens:
        yield 0, length, 1, length - 1
        return
    starts = [*range(0, length - max_tokens, max_tokens // 2), length - max_tokens]
    cuts = [(after + before + max_tokens) // 2 for before, after in pairwise(starts)]
    for start, keep_from, keep_to in zip(starts, [1, *cuts], [*cuts, length - 1], strict=True):
        yield start, max_tokens, keep_from, keep_to
