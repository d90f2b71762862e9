"""The index of a part: the name, shape and digest of each tensor, and the rule by which files hold it.

In: what each rank stores; later the bytes of `index.json`. Out: those bytes; later which elements of which tensors a
file holds, and where. Kept: one parsed index for each part of a checkpoint (`load.VerifiedCheckpoint`).

Engines cut tensors by rules: DDP stores each whole, FSDP2 an equal number of rows on each rank, ZeRO the parts of one
flat array. All of them are runs of pieces: elements `[start, stop)` of a tensor, in files that follow each other, the
first of which holds `first` elements, each later one `unit`, and the last one what is left. A tensor is one run as a
rule, however many ranks store it, so that an index is as large as the model has tensors. Tensors that are cut otherwise
are several runs. A file holds at most one piece of a tensor, and its pieces follow each other in the order of names.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from zymogen.trainer.checkpoint.canonical import Count, InvalidCheckpointError, canonical, parsed
from zymogen.trainer.checkpoint.digests.digest import hexadecimal
from zymogen.trainer.checkpoint.files import blocks
from zymogen.trainer.checkpoint.files.blocks import DTYPE, FileEntry, data_file, safetensors_header

INDEX_FILE = "index.json"
_EXTRA = {"model": "aliases", "optimizer": "steps"}
_RUN = ("file", "start", "stop", "first", "unit")
_MOST = 1 << 40
"""No tensor has more elements, so that no product of them exceeds 64 bits."""

Integers = NDArray[np.int64]
_Size = Annotated[int, Field(ge=0, lt=_MOST)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tensor:
    shape: tuple[_Size, ...]
    digest: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    cut: tuple[tuple[_Size, _Size, _Size, _Size, _Size], ...]
    """Runs: the numbers of `_RUN`."""

    def __post_init__(self) -> None:
        if math.prod(self.shape) >= _MOST:
            raise ValueError(f"{self.shape} has {math.prod(self.shape)} elements, allowed below {_MOST}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    dtype: Literal["F32"]
    tensors: dict[str, _Tensor]
    aliases: dict[str, str]
    steps: dict[str, Count]


class FilePieces(NamedTuple):
    """The pieces that a file holds, in order: one number for each in each array."""

    tensors: Integers
    """Place of the tensor in the order of names."""
    starts: Integers
    stops: Integers
    offsets: Integers
    """Bytes of the file before the piece."""


class TensorIndex:
    """Where the tensors of one part are.

    Args:
        part: `model` or `optimizer`.
        raw: content of its `index.json`.
        listed: the files that the manifest lists, by path.

    Raises:
        InvalidCheckpointError: pieces leave a gap, overlap, lie in a file that is not listed, or do not fit into
        theirs.
    """

    def __init__(self, part: str, raw: bytes, listed: Mapping[str, FileEntry]) -> None:
        content = parsed(_Content, raw, f"{part}/{INDEX_FILE}")
        self.part = part
        self.aliases = content.aliases
        """Second names of tied parameters -> stored name; empty in the optimizer part."""
        self.steps = content.steps
        """Optimizer step of each parameter; empty in the model part."""
        self.shapes = {name: tensor.shape for name, tensor in content.tensors.items()}
        """Shape of every stored tensor, in the order of names."""
        self.digests = {name: tensor.digest for name, tensor in content.tensors.items()}
        """Digest of every stored tensor, however it is cut (`checkpoint.digests`)."""
        self.files = {number: entry for entry in listed.values() if (number := _number(part, entry.path)) is not None}
        """Data files of the part, by the rank that wrote them."""
        rows = [(place, *run) for place, tensor in enumerate(content.tensors.values()) for run in tensor.cut]
        self.names = tuple(self.shapes)
        self._runs = np.array(rows, np.int64).reshape(-1, len(_RUN) + 1)
        self._last: tuple[int, FilePieces] | None = None
        self._require_whole()
        for number in self.files:
            self.pieces(number)

    def pieces(self, number: int) -> FilePieces:
        """What the data file of a rank holds.

        Raises:
            InvalidCheckpointError: the file is too small for it, or holds two pieces of a tensor.
        """
        if self._last is None or self._last[0] != number:
            self._last = number, self._pieces(number)
        return self._last[1]

    def require_header(self, number: int, block: int, content: Tensor) -> None:
        """Compare a block of a data file with the header that follows from the index, as far as it holds that.

        Raises:
            InvalidCheckpointError: another reader of safetensors would find other tensors there.
        """
        found = self.pieces(number)
        begin = int(found.offsets[0]) if len(found.offsets) else self.files[number].size
        if (at := block * blocks.BLOCK_BYTES) >= begin:
            return
        pieces = zip(found.tensors.tolist(), found.starts.tolist(), found.stops.tolist(), strict=True)
        shapes = {self.names[place]: _stored_shape(self.shapes[self.names[place]], *span) for place, *span in pieces}
        expected = safetensors_header(shapes)
        here = content[: begin - at].numpy().data
        if len(expected) != begin or here != expected[at : at + len(content)]:
            raise InvalidCheckpointError("tensors", f"{self.files[number].path}: its header is not that of the index")

    def _require_whole(self) -> None:
        """Check that the runs cover each tensor once, in files that are listed."""
        tensors, file, start, stop, first, unit = self._runs.T
        sizes = np.array([math.prod(shape) for shape in self.shapes.values()], np.int64)
        begins = np.append(True, tensors[1:] != tensors[:-1])[: len(tensors)]
        before = np.where(begins, 0, np.roll(stop, 1))
        ends = np.roll(begins, -1)
        sound = (start == before) & (start < stop) & (first >= 1) & (first <= unit) & (first <= stop - start)
        sound &= ~ends | (stop == sizes[tensors])
        if wrong := np.flatnonzero(~sound).tolist():
            name, run = self.names[tensors[wrong[0]]], dict(zip(_RUN, self._runs[wrong[0], 1:].tolist(), strict=True))
            reason = f"the pieces {run} do not follow element {before[wrong[0]]} or end beside its last one"
            raise InvalidCheckpointError("pieces", f"{name}: {reason}, {sizes[tensors[wrong[0]]]}")
        if absent := set(np.flatnonzero(sizes).tolist()).difference(tensors.tolist()):
            raise InvalidCheckpointError("pieces", f"{self.names[min(absent)]}: no piece of it is stored")
        count = 1 - (first - (stop - start)) // unit
        known = np.array(sorted(self.files), np.int64)
        present = np.searchsorted(known, file + count) - np.searchsorted(known, file)
        if wrong := np.flatnonzero(present != count).tolist():
            run = self._runs[wrong[0]]
            missing = next(n for n in range(run[1], run[1] + count[wrong[0]]) if n not in self.files)
            words = f"{self.names[run[0]]}: {self.part}/{data_file(missing)} is not in the manifest"
            raise InvalidCheckpointError("pieces", words)

    def _pieces(self, number: int) -> FilePieces:
        tensors, file, start, stop, first, unit = self._runs.T
        later = number - file  # files of a run after its first
        begins = np.where(later == 0, start, start + first + (later - 1) * unit)
        inside = (later >= 0) & (begins < stop)
        tensors, begins = tensors[inside], begins[inside]
        ends = np.minimum(np.where(later == 0, start + first, start + first + later * unit), stop)[inside]
        entry, data = self.files[number], 4 * np.cumsum(ends - begins)
        begin = entry.size - (int(data[-1]) if len(data) else 0)
        if begin < 8 or begin % 8 or (tensors[1:] == tensors[:-1]).any():
            words = f"{entry.path}: {entry.size} bytes do not hold {len(data)} pieces of {entry.size - begin} bytes"
            raise InvalidCheckpointError("pieces", words)
        return FilePieces(tensors, begins, ends, begin + data - 4 * (ends - begins))


def index_bytes(
    part: str, shapes: Mapping[str, Sequence[int]], stored: Integers, extra: Mapping[str, str] | Mapping[str, int]
) -> tuple[bytes, dict[str, str]]:
    """Content of `index.json`, and the digest of each tensor.

    Args:
        part: `model` or `optimizer`.
        shapes: of all tensors; their order is that of `stored`, by name.
        stored: ``(pieces, 6)``: tensor, file, start, stop and both sums of the digest, in any order.
        extra: aliases or steps.
    """
    totals = np.zeros((len(shapes), 2), np.int64)
    np.add.at(totals, stored[:, 0], stored[:, 4:])
    cuts: dict[int, list[list[int]]] = {}
    for place, *run in _runs_of(stored[np.lexsort((stored[:, 2], stored[:, 0]))][:, :4]).tolist():
        cuts.setdefault(place, []).append(run)
    names = sorted(shapes)
    digests = {name: hexadecimal(totals[place]) for place, name in enumerate(names)}
    tensors = {
        name: {"shape": list(shapes[name]), "digest": digests[name], "cut": cuts.get(place, [])}
        for place, name in enumerate(names)
    }
    return canonical(
        {"dtype": DTYPE, "tensors": tensors, "aliases": {}, "steps": {}, _EXTRA[part]: dict(extra)}
    ), digests


def _runs_of(pieces: Integers) -> Integers:
    """Runs ``(runs, 6)``, tensor first, of pieces ``(pieces, 4)``: tensor, file, start and stop, in order."""
    tensors, file, start, stop = pieces.T
    alone = np.column_stack([pieces, stop - start, stop - start])
    if not len(pieces):
        return alone
    begins = np.append(True, tensors[1:] != tensors[:-1])
    heads = np.flatnonzero(begins)
    of_tensor = np.cumsum(begins) - 1
    unit = np.maximum.reduceat(stop - start, heads)
    later = np.arange(len(pieces)) - heads[of_tensor]
    first = (stop - start)[heads]
    expected = np.where(later == 0, start, (start[heads] + first - unit)[of_tensor] + later * unit[of_tensor])
    fits = (start == expected) & (file == file[heads][of_tensor] + later) & (begins | (start == np.roll(stop, 1)))
    regular = np.logical_and.reduceat(fits, heads)
    last = np.append(heads[1:], len(pieces)) - 1
    runs = np.column_stack([tensors[heads], file[heads], start[heads], stop[last], first, unit])
    found = np.concatenate([runs[regular], alone[~regular[of_tensor]]])
    return found[np.lexsort((found[:, 2], found[:, 0]))]


def _stored_shape(shape: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """The shape that a file gives a piece: that of the tensor if it is all of it."""
    return shape if stop - start == math.prod(shape) else (stop - start,)


def _number(part: str, path: str) -> int | None:
    """The rank that wrote a data file of a part; None for any other file."""
    folder, _, name = path.partition("/")
    digits = name.removesuffix(".safetensors")
    is_ours = folder == part and digits.isdecimal() and data_file(int(digits)) == name
    return int(digits) if is_ours else None
