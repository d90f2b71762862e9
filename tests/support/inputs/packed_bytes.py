"""Bytes packed in every way that a source may be, for tests."""

import gzip
import struct
import zlib
from collections.abc import Callable

import numpy as np
from backports import zstd as zstandard

from data.settings import IngestSettings
from data.transport.byte_stream import ByteStream

LIMITS = IngestSettings()
TEXT = np.random.default_rng(0).integers(0, 256, 700_000, np.uint8).tobytes() + b"ACDEFGHIKLMNPQRSTVWY\n" * 60_000


def bgzip(content: bytes) -> bytes:
    """Blocks of at most 64 kB with their sizes in an extra field, and an empty block at the end (SAM format, 4.1)."""
    blocks = []
    for at in range(0, len(content), 65_280):
        part = content[at : at + 65_280]
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(part) + packer.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00" + struct.pack("<H", len(packed) + 25)
        blocks.append(head + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks) + bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def zstd(content: bytes, level: int = 3, *, write_checksum: bool = False) -> bytes:
    parameter = zstandard.CompressionParameter
    return zstandard.compress(
        content, options={parameter.compression_level: level, parameter.checksum_flag: write_checksum}
    )


def framed(content: bytes) -> bytes:
    """Frames of every kind: sized, unsized, with a checksum, empty; and ones that hold no data (RFC 8878, 3.1.2)."""
    third = len(content) // 3
    packer = zstandard.ZstdCompressor(options={zstandard.CompressionParameter.checksum_flag: 1})
    unsized = packer.compress(content[third : 2 * third]) + packer.flush()
    skipped = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 1_000_000) + bytes(1_000_000)
    return (
        skipped + zstd(content[:third], level=1) + zstd(b"") + skipped + unsized + zstd(content[2 * third :], level=9)
    )


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip members": lambda c: gzip.compress(c[:99]) + gzip.compress(b"") + gzip.compress(c[99:]),
    "gzip filled with zeros": lambda c: gzip.compress(c[:-1]) + bytes(1000) + gzip.compress(c[-1:]) + bytes(700_000),
    "gzip with a name": lambda c: b"\x1f\x8b\x08\x08" + bytes(6) + b"a name\0" + gzip.compress(c)[10:],
    "bgzip": bgzip,
    "zstd": zstd,
    "zstd frames": framed,
    "zstd with a checksum": lambda c: zstd(c, write_checksum=True),
}


def read(location: str, offset: int = 0) -> bytes:
    """All of a source from `offset` on, its chunks checked for their size."""
    chunks = list(ByteStream(location).chunks(offset))
    assert all(0 < len(chunk) < 5 << 18 for chunk in chunks)
    assert all(len(chunk) >= 1 << 18 for chunk in chunks[1:-1])
    return b"".join(chunks)
