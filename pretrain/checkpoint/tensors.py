"""Tensors by name on disk: an index of pieces in JSON, the data in safetensors.

`model/index.json` and `optimizer/index.json` map each tensor to name, shape, dtype and pieces
`[start, stop)` of its flattened form, each piece a tensor of a safetensors file in the same folder.
Each rank writes one file of a part, in which a tensor that it stores whole has its own shape under its own name, so
that any safetensors reader sees it, and a piece is flat; the reader puts any set of pieces together. It hashes what it
reads in the buffer that it then uses (`checkpoint.blocks`), so that nothing can change between check and use.
"""

import contextlib
import json
import math
import os
import struct
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from pretrain.checkpoint.blocks.hashes import BlockHashes, HashedBlocks
from pretrain.checkpoint.canonical import InvalidCheckpoint, Kinds, parse_canonical, require_fields
from pretrain.checkpoint.manifest import FileEntry, require_digest, require_relative_path

PARTS = ("model", "optimizer")
INDEX_FILE = "index.json"
DTYPE = "F32"  # safetensors' name; masters and moments are fp32 under every engine
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
_OPEN = 4
"""Data files that are open at once, with a block of memory each: a reader may take turns between some."""


class Modes(NamedTuple):
    """Permissions of a checkpoint's folders and files, which the umask reduces."""

    folder: int
    file: int


PRIVATE, SHARED = Modes(0o700, 0o600), Modes(0o777, 0o666)


def data_file(rank: int) -> str:
    """Name of the file that a rank writes in the folder of each part."""
    return f"{rank:05d}.safetensors"


class HashedFile:
    """A new file that knows the hashes and number of the bytes written to it; `close` fsyncs it."""

    def __init__(self, folder: Path, path: str, modes: Modes = PRIVATE) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(folder / path, flags, modes.file), "wb")
        self._hashes = BlockHashes()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hashes.update(data)
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
        return FileEntry(path=self._path, size=self._size, hashes=self._hashes.hexdigests())

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


class _DataFile(HashedBlocks):
    """A safetensors file of which any range can be read; its header is read when it is first needed."""

    def __init__(self, checkpoint: Path, entry: FileEntry) -> None:
        super().__init__(checkpoint / entry.path, entry.size, entry.hashes)
        self._header: dict[str, Any] | None
        self._begin, self._header = 0, None

    def begin_of(self, name: str, piece: Mapping[str, Any]) -> int:
        """Where the data of a piece of a tensor begin in the file.

        Raises:
            InvalidCheckpoint: the header does not say the same of the piece as the index, or there is none.
        """
        where = f"{name} in {self.path.name}"
        if self._header is None:
            self._begin, self._header = self._parsed(self.path.name)
        try:
            tensor = self._header[piece["key"]]
            dtype, shape, (start, stop) = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
            count = math.prod(shape)
            is_inside = 0 <= start and stop - start == 4 * count and self._begin + stop <= self.size
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidCheckpoint("tensors", f"{where}: {type(error).__name__}: {error}") from error
        if dtype != DTYPE:
            raise InvalidCheckpoint("dtype", f"{where}: got {dtype}, allowed {DTYPE}")
        if count != piece["stop"] - piece["start"]:
            raise InvalidCheckpoint("pieces", f"{where}: {count} elements for {piece}")
        if not is_inside:
            raise InvalidCheckpoint("tensors", f"{where}: it lies at [{start}, {stop}) of {self.size} bytes")
        return self._begin + int(start)

    def _parsed(self, path: str) -> tuple[int, dict[str, Any]]:
        """Where the data begin, and the header: a record for each key."""
        if self.size < 8:
            raise InvalidCheckpoint("tensors", f"{path}: {self.size} bytes are no safetensors file")
        (length,) = struct.unpack("<Q", self.read(0, 8))
        begin = 8 + int(length)
        if length > _MOST_HEADER_BYTES or begin > self.size:
            raise InvalidCheckpoint("tensors", f"{path}: a header of {length} bytes in a file of {self.size}")
        try:
            header = json.loads(bytes(self.read(8, begin)))
        except (ValueError, RecursionError) as error:
            raise InvalidCheckpoint("tensors", f"{path}: its header is not JSON: {error}") from error
        return begin, header if isinstance(header, dict) else {}


class TensorReader:
    """Reads the tensors of one part, `model` or `optimizer`, from any set of pieces.

    Opening reads the index and checks that its pieces cover each tensor. A data file is opened when a tensor is read
    from it, and its header compared with the index.

    Args:
        checkpoint: directory of the checkpoint.
        part: one of `PARTS`.
        listed: the files that the manifest lists, by path; a piece elsewhere is refused.

    Raises:
        InvalidCheckpoint: pieces that leave a gap, overlap, lie in an unlisted file, or whose size
            or dtype is not what the index says; or bytes that are not what was written.
    """

    def __init__(self, checkpoint: Path, part: str, listed: Mapping[str, FileEntry]) -> None:
        self._checkpoint, self._part, self._listed = checkpoint, part, listed
        self._files: OrderedDict[str, _DataFile] = OrderedDict()
        fields: dict[str, tuple[type, ...]] = {"tensors": (dict,)}
        fields |= {"aliases": (dict,)} if part == "model" else {"steps": (dict,)}
        raw = parse_canonical((checkpoint / part / INDEX_FILE).read_bytes(), f"{part}/{INDEX_FILE}")
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

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor."""
        return {name: tuple(tensor["shape"]) for name, tensor in self._index.items()}

    @property
    def digests(self) -> dict[str, str]:
        """Digest of every stored tensor, however it is cut (`checkpoint.digests`); earlier versions stored none."""
        return {name: tensor["digest"] for name, tensor in self._index.items() if "digest" in tensor}

    def read(self, name: str) -> Tensor:
        """One whole fp32 tensor on the CPU."""
        shape = self._index[name]["shape"]
        return self.read_span(name, 0, math.prod(shape)).reshape(shape)

    def read_span(self, name: str, start: int, stop: int) -> Tensor:
        """The range `[start, stop)` of a flattened tensor, ``(stop - start,)`` fp32 on the CPU.

        Only the blocks that contain part of the range are read, and nothing stays mapped into memory.
        """
        span = torch.empty(stop - start, dtype=torch.float32)
        content = span.numpy().data.cast("B") if len(span) else memoryview(b"")
        for piece in self._index[name]["pieces"]:
            first, last = max(start, piece["start"]), min(stop, piece["stop"])
            if first < last:
                file = self._open(piece["file"])
                begin = file.begin_of(name, piece) + 4 * (first - piece["start"])
                file.read_into(begin, content[4 * (first - start) : 4 * (last - start)])
        return span

    def check(self, file: str, first: int, last: int) -> None:
        """Compare blocks `[first, last)` of a data file with their hashes, and with the first one the header."""
        opened = self._open(file)
        opened.check(first, last)
        if first == 0:
            for name, tensor in self._index.items():
                for piece in tensor["pieces"]:
                    if piece["file"] == file:
                        opened.begin_of(name, piece)

    def _check(self, name: str, tensor: dict[str, Any]) -> None:
        """Check that the pieces of one tensor cover it exactly, in files that the manifest lists."""
        known: Kinds = {"shape": (list,), "dtype": (str,), "pieces": (list,)}
        require_fields(name, tensor, {**known, "digest": (str,)} if "digest" in tensor else known)
        if "digest" in tensor:
            require_digest(f"{name}.digest", tensor["digest"])
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
            require_relative_path(piece["file"])
            if f"{self._part}/{piece['file']}" not in self._listed:
                raise InvalidCheckpoint("pieces", f"{self._part}/{piece['file']} is not in the manifest")
        if end != size:
            raise InvalidCheckpoint("pieces", f"{name}: pieces end at {end}, the tensor at {size}")

    def _open(self, file: str) -> _DataFile:
        """A data file, which stays open while others are not needed more."""
        if file not in self._files:
            if len(self._files) == _OPEN:
                self._files.popitem(last=False)
            self._files[file] = _DataFile(self._checkpoint, self._listed[f"{self._part}/{file}"])
        self._files.move_to_end(file)
        return self._files[file]


def write_bytes(folder: Path, path: str, content: bytes, modes: Modes = PRIVATE) -> FileEntry:
    """Write a new file and fsync it."""
    with HashedFile(folder, path, modes) as file:
        file.write(content)
        return file.close()
