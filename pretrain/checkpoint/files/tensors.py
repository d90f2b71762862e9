"""Files of a checkpoint, written so that their hashes are known: tensors as safetensors, everything else as bytes.

In: tensors or bytes. Out: a file on the device, with the hashes of its blocks. Kept: nothing.

Each rank writes one file of a part, `model` or `optimizer`, in which its tensors follow each other in the order of
their names. One that it stores whole has its own shape, so that any safetensors reader sees it, and a piece is flat;
`checkpoint.files.index` says which piece of which tensor that is.
"""

import contextlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from pretrain.checkpoint.files.blocks import BlockHashes
from pretrain.checkpoint.manifest import FileEntry

PARTS = ("model", "optimizer")
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
        return FileEntry(path=self._path, size=self._size, sha256=self._hashes.hexdigests())

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file if a failure left it open; it is about to be removed, so an error of closing is ignored."""
        with contextlib.suppress(OSError):
            self._file.close()


def safetensors_header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The begin of a safetensors file of fp32 tensors that follow each other in this order."""
    header, stop = {}, 0
    for key, shape in shapes.items():
        start, stop = stop, stop + 4 * math.prod(shape)
        header[key] = {"dtype": DTYPE, "shape": list(shape), "data_offsets": [start, stop]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # data starts aligned
    return struct.pack("<Q", len(raw)) + raw


def write_tensors(folder: Path, path: str, tensors: Mapping[str, Tensor], modes: Modes = PRIVATE) -> FileEntry:
    """Write a new safetensors file of fp32 tensors on the host, in their order, and fsync it."""
    with HashedFile(folder, path, modes) as file:
        file.write(safetensors_header({key: tuple(tensor.shape) for key, tensor in tensors.items()}))
        for key, tensor in tensors.items():
            assert tensor.dtype == torch.float32, f"{key} is {tensor.dtype}"
            if tensor.numel():
                file.write(tensor.contiguous().numpy().data.cast("B"))
        return file.close()


def write_bytes(folder: Path, path: str, content: bytes, modes: Modes = PRIVATE) -> FileEntry:
    """Write a new file and fsync it."""
    with HashedFile(folder, path, modes) as file:
        file.write(content)
        return file.close()
