"""The writer: a copy of what this rank stores, and a thread that writes it while training continues.

In: the live state between two steps; what is to be done. Out: its result or its error, once the main thread asks. Kept:
the staging buffer, because the first use of a buffer costs ten times the copy (the system finds its pages one by one).

Nobody joins the thread without a limit: one that waits for a disk that does not answer cannot be ended, and must keep
neither a step nor the end of the process waiting.

Where training keeps all cores busy, hashing and writing would take the time of a core from the threads of one step,
which wait for each other. The thread of a save that is not small therefore asks for few turns while others compute (on
Linux, where a thread may do so), and has a core to itself as soon as the main thread waits for it.
"""

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from zymogen.trainer.engine.named_state import NamedState
from zymogen.trainer.engine.spans import StoredPiece


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


T = TypeVar("T")
_NICE = 15
"""About one turn for thirty of a busy thread, so that the work of a save is spread over some steps. With 10, most of a
save falls into one step, which takes 1.1 to 1.3 times as long on two cores; with 19 it need not end beside others."""
_SMALL = 16 << 20
"""Bytes of a save that takes as many turns as it needs: some hundredths of a second."""


class BackgroundWrite(Generic[T]):
    """What one thread does, from now on.

    Args:
        work: is called in the thread, with what says whether it is given up.
        num_bytes: that it writes, about.
        began: when what it is a part of began, by `time.perf_counter`; None: now.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], T], num_bytes: int, began: float | None = None) -> None:
        self._work, self._given_up, self._has_ended = work, threading.Event(), threading.Event()
        self._makes_way = num_bytes > _SMALL and sys.platform == "linux"
        self._began = time.perf_counter() if began is None else began
        self._took: float | None = None
        self.result: T | None = None
        """What it returned; None if it has not ended, or by an error."""
        self.error: BaseException | None = None
        """What ended it, if anything did; to be read once it has ended."""
        threading.Thread(target=self._run, name="checkpoint", daemon=True).start()

    @property
    def seconds(self) -> float:
        """How long it has taken so far, or took."""
        return time.perf_counter() - self._began if self._took is None else self._took

    @property
    def has_ended(self) -> bool:
        """Whether there is a result or an error."""
        return self._has_ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so long; whether it has ended."""
        return self._has_ended.wait(seconds)

    def give_up(self) -> None:
        """Have it wait for nothing that other ranks would do; what it does itself, it does to the end."""
        self._given_up.set()

    def _run(self) -> None:
        if self._makes_way:
            with suppress(OSError):  # some containers refuse it; the save then takes turns like any other thread
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread alone
        try:
            self.result = self._work(self._given_up.is_set)
        except BaseException as error:  # raised again by the main thread
            self.error = error
        self._took = time.perf_counter() - self._began
        self._has_ended.set()
