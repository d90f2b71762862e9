"""Files of a checkpoint, written so that their hashes are known: tensors as safetensors, everything else as bytes.

In: tensors or bytes. Out: a file on the device, with the hashes of its blocks. Kept: nothing.

Each rank writes one file of a part, `model` or `optimizer`, in which its tensors follow each other in the order of
their names. One that it stores whole has its own shape, so that any safetensors reader sees it, and a piece is flat;
`checkpoint.files.index` says which piece of which tensor that is.
"""

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pretrain.checkpoint.files.blocks import BlockHashes
from pretrain.checkpoint.manifest import FileEntry

PARTS = ("model", "optimizer")
DTYPE = "F32"  # safetensors' name; masters and moments are fp32 under every engine


class FileModes(NamedTuple):
    """Permissions of a checkpoint's folders and files, which the umask reduces."""

    folder: int
    file: int


PRIVATE, SHARED = FileModes(0o700, 0o600), FileModes(0o777, 0o666)


def data_file(rank: int) -> str:
    """Name of the file that a rank writes in the folder of each part."""
    return f"{rank:05d}.safetensors"


def write_file(folder: Path, path: str, chunks: Iterable[bytes | memoryview], modes: FileModes = PRIVATE) -> FileEntry:
    """Write a new file to the device, and return its hashes and size.

    A failed fsync is final: the kernel may have dropped the pages.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    hashes, size = BlockHashes(), 0
    with os.fdopen(os.open(folder / path, flags, modes.file), "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            hashes.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
        on_disk = os.fstat(file.fileno()).st_size
    if on_disk != size:
        raise OSError(f"{path}: wrote {size} bytes, the file has {on_disk}")
    return FileEntry(path=path, size=size, sha256=hashes.hexdigests())


def safetensors_header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """The begin of a safetensors file of fp32 tensors that follow each other in this order."""
    header, stop = {}, 0
    for key, shape in shapes.items():
        start, stop = stop, stop + 4 * math.prod(shape)
        header[key] = {"dtype": DTYPE, "shape": list(shape), "data_offsets": [start, stop]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # data starts aligned
    return struct.pack("<Q", len(raw)) + raw


def write_tensors(folder: Path, path: str, tensors: Mapping[str, Tensor], modes: FileModes = PRIVATE) -> FileEntry:
    """Write a new safetensors file of fp32 tensors on the host, in their order, and fsync it."""

    def chunks() -> Iterator[bytes | memoryview]:
        yield safetensors_header({key: tuple(tensor.shape) for key, tensor in tensors.items()})
        for key, tensor in tensors.items():
            assert tensor.dtype == torch.float32, f"{key} is {tensor.dtype}"
            if tensor.numel():
                yield tensor.contiguous().numpy().data.cast("B")

    return write_file(folder, path, chunks(), modes)
