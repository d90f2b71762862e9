"""Tensors by name on disk: an index of pieces in JSON, the data in safetensors.

`model/index.json` and `optimizer/index.json` map each tensor to name, shape, dtype and pieces
`[start, stop)` of its flattened form, each piece a tensor of a safetensors file in the same folder.
Each rank writes one file of a part, in which a tensor that it stores whole has its own shape under its own name, so
that any safetensors reader sees it, and a piece is flat; the reader puts any set of pieces together.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pretrain.checkpoint.canonical import InvalidCheckpoint, parse_canonical, require_fields
from pretrain.checkpoint.manifest import FileEntry, require_relative_path

PARTS = ("model", "optimizer")
INDEX_FILE = "index.json"
DTYPE = "F32"  # safetensors' name; masters and moments are fp32 under every engine


class Modes(NamedTuple):
    """Permissions of a checkpoint's folders and files, which the umask reduces."""

    folder: int
    file: int


PRIVATE, SHARED = Modes(0o700, 0o600), Modes(0o777, 0o666)


def data_file(rank: int) -> str:
    """Name of the file that a rank writes in the folder of each part."""
    return f"{rank:05d}.safetensors"


class HashedFile:
    """A new file that knows the hash and number of the bytes written to it; `close` fsyncs it."""

    def __init__(self, folder: Path, path: str, modes: Modes = PRIVATE) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(folder / path, flags, modes.file), "wb")
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hash.update(data)
        self._size += len(data)

    def close(self) -> FileEntry:
        """Flush to the device. A failed fsync is final: the kernel may have dropped the pages."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            on_disk = os.fstat(self._file.fileno()).st_size
        finally:
            self._file.close()
        if on_disk != self._size:
            raise OSError(f"{self._path}: wrote {self._size} bytes, the file has {on_disk}")
        return FileEntry(path=self._path, size=self._size, sha256=self._hash.hexdigest())

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file if a failure left it open; it is about to be removed, so an error of closing is ignored."""
        with contextlib.suppress(OSError):
            self._file.close()


class SafetensorsWriter:
    """A safetensors file written one tensor at a time, in the order of its header.

    Args:
        file: an empty file.
        shapes: key -> shape of all fp32 tensors, in the order they will come.
    """

    def __init__(self, file: HashedFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
        header, stop = {}, 0
        for key, shape in shapes.items():
            start, stop = stop, stop + 4 * math.prod(shape)
            header[key] = {"dtype": DTYPE, "shape": list(shape), "data_offsets": [start, stop]}
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)  # data starts aligned
        file.write(struct.pack("<Q", len(raw)) + raw)
        self._file = file
        self._expected = list(shapes.items())[::-1]

    def append(self, key: str, tensor: Tensor) -> None:
        """Write the next tensor, fp32 on the CPU."""
        expected = self._expected.pop()
        got = (key, tuple(tensor.shape))
        assert got == expected, f"{got} where {expected} comes next"
        assert tensor.dtype == torch.float32, f"{key} is {tensor.dtype}"
        if tensor.numel():
            self._file.write(tensor.contiguous().numpy().data.cast("B"))

    def close(self) -> FileEntry:
        """Flush to the device and describe the file."""
        assert not self._expected, f"promised, not written: {self._expected[-1]}"
        return self._file.close()


class TensorReader:
    """Reads the tensors of one part, `model` or `optimizer`, from any set of pieces.

    Opening reads the index and the headers of all data files and checks them against each other, so
    that a read afterwards can fail only where the disk does.

    Args:
        checkpoint: directory of the checkpoint.
        part: one of `PARTS`.
        listed: paths that the manifest lists; a piece elsewhere is refused.

    Raises:
        InvalidCheckpoint: pieces that leave a gap, overlap, lie in an unlisted file, or whose size
            or dtype is not what the index says.
    """

    def __init__(self, checkpoint: Path, part: str, listed: frozenset[str]) -> None:
        self._folder = checkpoint / part
        self._part = part
        self._listed = listed
        self._files: dict[str, Any] = {}
        fields: dict[str, tuple[type, ...]] = {"tensors": (dict,)}
        fields |= {"aliases": (dict,)} if part == "model" else {"steps": (dict,)}
        raw = parse_canonical((self._folder / INDEX_FILE).read_bytes(), f"{part}/{INDEX_FILE}")
        index = require_fields(f"{part}/{INDEX_FILE}", raw, fields)
        self._index: dict[str, dict[str, Any]] = index["tensors"]
        self.aliases: dict[str, str] = index.get("aliases", {})
        """Second names of tied parameters -> stored name; empty in the optimizer part."""
        self.steps: dict[str, int] = index.get("steps", {})
        """Optimizer step of each parameter; empty in the model part."""
        require_fields("aliases", self.aliases, dict.fromkeys(self.aliases, (str,)))
        require_fields("steps", self.steps, dict.fromkeys(self.steps, (int,)))
        for name, tensor in self._index.items():
            self._check(name, tensor)
        self._files.clear()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor."""
        return {name: tuple(tensor["shape"]) for name, tensor in self._index.items()}

    def read(self, name: str) -> Tensor:
        """One whole fp32 tensor on the CPU."""
        shape = self._index[name]["shape"]
        return self.read_span(name, 0, math.prod(shape)).reshape(shape)

    def read_span(self, name: str, start: int, stop: int) -> Tensor:
        """The range `[start, stop)` of a flattened tensor, ``(stop - start,)`` fp32 on the CPU.

        Only the rows of a matrix that contain part of the range are read, and nothing stays mapped into memory.
        """
        span = torch.empty(stop - start, dtype=torch.float32)
        for piece in self._index[name]["pieces"]:
            first, last = max(start, piece["start"]), min(stop, piece["stop"])
            if first < last:
                with self._open(piece["file"]) as file:
                    part = _flat_part(file, piece["key"], first - piece["start"], last - piece["start"])
                span[first - start : last - start] = part
        return span

    def _check(self, name: str, tensor: dict[str, Any]) -> None:
        """Check that the pieces of one tensor cover it exactly, and that the data files agree."""
        require_fields(name, tensor, {"shape": (list,), "dtype": (str,), "pieces": (list,)})
        if tensor["dtype"] != DTYPE:
            raise InvalidCheckpoint("dtype", f"{name}: got {tensor['dtype']!r}, allowed {DTYPE!r}")
        shape = tensor["shape"]
        axes = {str(axis): count for axis, count in enumerate(shape)}
        require_fields(f"{name}.shape", axes, dict.fromkeys(axes, (int,)))
        kinds = {"start": (int,), "stop": (int,), "file": (str,), "key": (str,)}
        for piece in tensor["pieces"]:
            require_fields(f"{name}.pieces", piece, kinds)
        end, size = 0, math.prod(shape)
        for piece in sorted(tensor["pieces"], key=lambda piece: (piece["start"], piece["stop"])):
            start, stop = piece["start"], piece["stop"]
            if start != end or (stop <= start and size):
                what = "overlap" if start < end else "gap"
                raise InvalidCheckpoint("pieces", f"{name}: {what}: piece [{start}, {stop}) where {end} is next")
            end = stop
            self._check_data(name, piece)
        if end != size:
            raise InvalidCheckpoint("pieces", f"{name}: pieces end at {end}, the tensor at {size}")

    def _check_data(self, name: str, piece: dict[str, Any]) -> None:
        """Check that the header of the data file says the same of this piece as the index."""
        file, key = piece["file"], piece["key"]
        try:
            data = self._headers(file).get_slice(key)
            count, dtype = math.prod(data.get_shape()), data.get_dtype()
        except SafetensorError as error:
            raise InvalidCheckpoint("tensors", f"{name} in {self._part}/{file}: {error}") from error
        if dtype != DTYPE:
            raise InvalidCheckpoint("dtype", f"{name} in {file}: got {dtype}, allowed {DTYPE}")
        if count != piece["stop"] - piece["start"]:
            raise InvalidCheckpoint("pieces", f"{name} in {file}: {count} elements for {piece}")

    def _open(self, file: str) -> Any:
        path = self._folder / file
        try:
            return safe_open(path, framework="pt", device="cpu")
        except RuntimeError as error:  # torch opens it once more, and has this error for every reason
            if path.exists():
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error

    def _headers(self, file: str) -> Any:
        """The file, opened once for all that is to be checked."""
        if file not in self._files:
            require_relative_path(file)
            if f"{self._part}/{file}" not in self._listed:
                raise InvalidCheckpoint("pieces", f"{self._part}/{file} is not in the manifest")
            self._files[file] = self._open(file)
        return self._files[file]


def _flat_part(file: Any, key: str, start: int, stop: int) -> Tensor:
    """The range `[start, stop)` of a flattened tensor, read row by row."""
    data = file.get_slice(key)
    shape = data.get_shape()
    if not shape:
        scalar: Tensor = file.get_tensor(key)
        return scalar.flatten()
    row = math.prod(shape[1:])
    first = start // row
    rows: Tensor = data[first : -(-stop // row)]
    return rows.flatten()[start - first * row : stop - first * row]


def write_bytes(folder: Path, path: str, content: bytes, modes: Modes = PRIVATE) -> FileEntry:
    """Write a new file and fsync it."""
    with HashedFile(folder, path, modes) as file:
        file.write(content)
        return file.close()
