"""Staging: what this rank stores of a checkpoint, copied to the host, so that training continues while it is written.

In: the live state between two steps. Out: `StagedState`, float32 on the host, which no step changes. Kept: the buffer,
for the next save: a buffer that is used for the first time costs ten times as much as the copy, because the system
finds its pages one by one.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pretrain.engine.named_state import NamedState
from pretrain.engine.spans import StoredPiece


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedState:
    """A checkpoint's tensors: all of their names and shapes, and the values that this rank stores.

    The two parts are `model`, parameters by name, and `optimizer`, moments as ``exp_avg/NAME``.
    """

    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
    """Part -> stored name -> whole shape, alike on every rank."""
    pieces: Mapping[str, Mapping[str, StoredPiece]]
    """Part -> stored name -> what this rank stores of it: float32 on the host, a whole tensor in its shape."""
    aliases: Mapping[str, str]
    """Second names of tied parameters -> the name they are stored under."""
    steps: Mapping[str, int]
    """Optimizer step of each parameter."""
    has_frozen: bool
    """Whether there are parameters that are not trained, and so not stored."""

    @property
    def num_bytes(self) -> int:
        """Bytes of what this rank stores."""
        return sum(piece.live.nbytes for of_part in self.pieces.values() for piece in of_part.values())


class StagingBuffer:
    """The buffer of one rank, of exactly as many bytes as the part of the state that the rank stores."""

    def __init__(self) -> None:
        self._flat = torch.empty(0)
        self._unpin: Callable[[], object] = bool

    def make_ready(self, pieces: Sequence[StoredPiece]) -> None:
        """Have a buffer for these pieces, with memory that the system has found already."""
        self._views(pieces)

    def stage(self, state: NamedState) -> StagedState:
        """Copy what this rank stores; this is all that training waits for. It fills the buffer of the last call."""
        pieces = state.pieces()
        copied = self._views(pieces)
        for piece in pieces:
            copied[piece[:2]].copy_(piece.live.reshape(-1), non_blocking=True)
        if any(piece.live.is_cuda for piece in pieces):
            torch.cuda.current_stream().synchronize()
        return _staged(state, pieces, copied)

    def _views(self, pieces: Sequence[StoredPiece]) -> dict[tuple[str, str], Tensor]:
        """Each piece's part of the buffer, which is replaced where its size differs."""
        sizes = [piece.stop - piece.start for piece in pieces]
        if self._flat.numel() != sum(sizes):
            self._unpin()
            self._flat = torch.empty(0)  # released before the next one is made
            self._flat = torch.empty(sum(sizes), dtype=torch.float32)
            if any(piece.live.is_cuda for piece in pieces):
                # In place: torch's own pinned memory is rounded up to a power of two.
                runtime, start = cast(Any, torch.cuda).cudart(), self._flat.data_ptr()
                torch.cuda.check_error(runtime.cudaHostRegister(start, self._flat.nbytes, 0))
                self._unpin = weakref.finalize(self, runtime.cudaHostUnregister, start)
            else:
                self._flat.zero_()  # only what is written to gets memory
        return dict(zip((piece[:2] for piece in pieces), torch.split(self._flat, sizes), strict=True))


def stored_as(piece: StoredPiece) -> tuple[str, str]:
    """The part of a checkpoint that a piece belongs to, and the name of its tensor there."""
    return ("model", piece.name) if piece.key == "param" else ("optimizer", f"{piece.key}/{piece.name}")


def _staged(state: NamedState, pieces: Sequence[StoredPiece], values: Mapping[tuple[str, str], Tensor]) -> StagedState:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "model": {name: state.shape(name) for name in state.names},
        "optimizer": {f"{key}/{name}": state.shape(name) for name in state.names for key in state.moments(name)},
    }
    own: dict[str, dict[str, StoredPiece]] = {part: {} for part in shapes}
    for piece in pieces:
        part, stored = stored_as(piece)
        flat, shape = values[piece[:2]], shapes[part][stored]
        is_whole = piece.start == 0 and piece.stop == math.prod(shape)
        own[part][stored] = piece._replace(live=flat.view(shape) if is_whole else flat)
    steps = {name: state.step_of(name) for name in state.names}
    return StagedState(
        shapes=shapes, pieces=own, aliases=dict(state.aliases), steps=steps, has_frozen=bool(state.frozen)
    )
