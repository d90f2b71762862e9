"""Decompression: gzip (bgzip too) and zstd, in bounded pieces, with an error where a stream is cut short or damaged.

In: stored bytes. Out: decompressed pieces, none above 1 MB. Kept: nothing.

bgzip writes a gzip of many small members, each of which gives its length in a field "BC". An empty member, the end
block, comes last (SAM format specification, 4.1). A copy that stops between two members is a valid gzip, so only the
missing end block shows that it is cut short.
"""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from data.transport.retries import StreamError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MOST_BYTES = 1 << 19
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a zstd frame that holds no data; byte 0 is 0x50 to 0x5f."""
_END_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
_TAR = b"ustar"
_TAR_AT = 257
HEAD_BYTES = _TAR_AT + len(_TAR)
"""How many bytes at the beginning of a file show its compression."""
_WINDOW_BYTES = 1 << 27
"""Largest window of a zstd frame: the library's default limit, and the most that `zstd` writes without --long."""
_FRAME_HEAD_BYTES = 20
"""The head of a zstd frame has at most 18 bytes; an error shows 20 of what is not one."""

UNPACK = {
    "gzip": "gunzip",
    "zstd": "unzstd",
    "bzip2": "bunzip2",
    "xz": "unxz",
    "zip": "unzip",
    "lz4": "unlz4",
    "lzip": "lzip -d",
    "7z": "7z x",
    "rar": "unrar x",
    "compress (.Z)": "uncompress",
    "tar": "tar -xf, and name the files that it holds",
}
"""The command that undoes each compression."""
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"LZIP": "lzip",
    b"7z\xbc\xaf": "7z",
    b"Rar!": "rar",
    b"\x1f\x9d": "compress (.Z)",
}


def compression(head: bytes) -> str:
    """The compression of a source, by its first `HEAD_BYTES`: "" for none, else a key of `UNPACK`.

    gzip and zstd are read; the others are recognized for an error. `head` may be shorter if the source is.
    """
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_ZSTD) or (head[1:4] == _SKIPPABLE and head[0] >> 4 == 5):
        return "zstd"
    if head[_TAR_AT:HEAD_BYTES] == _TAR:
        return "tar"
    return next((name for magic, name in _OTHERS.items() if head.startswith(magic)), "")


class CompressedStream:
    """Stored bytes of a source, which are decoded one after the other.

    Args:
        name: the source, for an error.
        chunks: its bytes, in chunks that are not empty.
    """

    def __init__(self, name: str, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks = name, chunks
        self._rest = b""
        self.position = 0
        """How many bytes were taken."""

    def peek(self, size: int) -> bytes:
        """At least `size` of the next bytes, which stay to be taken; fewer at the end."""
        while len(self._rest) < size and (more := next(self._chunks, b"")):
            self._rest += more
        return self._rest

    def take(self) -> bytes:
        """The next bytes: those that were read already, or else the next chunk; empty at the end."""
        content, self._rest = self.peek(1), b""
        self.position += len(content)
        return content

    def give_back(self, content: bytes) -> None:
        """Undo the taking of the last bytes."""
        self._rest = content
        self.position -= len(content)


def in_pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `size`, except for the last one and for one before an error."""
    parts: list[bytes] = []
    try:
        for chunk in chunks:
            parts.append(chunk)
            if sum(map(len, parts)) >= size:
                yield b"".join(parts)
                parts = []
    except Exception:
        if parts:
            yield b"".join(parts)
        raise
    if parts:
        yield b"".join(parts)


def gunzip(stored: CompressedStream) -> Iterator[bytes]:
    """All members of a gzip stream, one after the other.

    Files of bgzip and of other programs may be concatenated. After the members of bgzip its end block must come, at the
    end of the stream and before a member of another kind.

    Raises:
        StreamError: it ends inside a member, members of bgzip end without their end block, it cannot be decoded, or
            its checksum is wrong.
    """
    from isal import igzip_lib

    open_bgzip = False
    while (head := stored.peek(len(_END_BLOCK))) or open_bgzip:
        is_bgzip = _is_bgzip(stored)
        if open_bgzip and not is_bgzip:
            raise StreamError(
                stored.name,
                f"the bgzip stream ends at byte {stored.position} without its end block",
                "the file was cut short; copy or download it again; if it is known to be whole, pack it again (gunzip "
                "-c OLD | bgzip > NEW)",
            )
        open_bgzip = is_bgzip and not head.startswith(_END_BLOCK)
        yield from _decoded(igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), stored, "gzip", "member")
        while content := stored.take():
            if content := content.lstrip(b"\0"):  # a tape fills its last block with zeros
                stored.give_back(content)
                break


def _is_bgzip(stored: CompressedStream) -> bool:
    """Whether one of the extra fields of the next gzip member is "BC" (RFC 1952, 2.3.1.1)."""
    head, at = stored.peek(12), 12
    if len(head) < at or not head[3] & 4:
        return False
    end = at + int.from_bytes(head[10:12], "little")
    fields = stored.peek(end)[:end]
    while fields[at : at + 2] not in (b"BC", b""):
        at += 4 + int.from_bytes(fields[at + 2 : at + 4], "little")
    return at < end


def unzstd(stored: CompressedStream) -> Iterator[bytes]:
    """All frames of a zstd stream, one after the other; frames without data are skipped.

    Raises:
        StreamError: it ends inside a frame, cannot be decoded, has a wrong checksum, or needs a larger window or a
            dictionary.
    """
    while head := stored.peek(_FRAME_HEAD_BYTES):
        if head.startswith(_ZSTD):
            _require_readable(stored, head)
        yield from _decoded(zstd.ZstdDecompressor(), stored, "zstd", "frame")


def _require_readable(stored: CompressedStream, head: bytes) -> None:
    """Refuse a zstd frame that needs more than the frame itself and an ordinary amount of memory."""
    try:
        frame = zstd.get_frame_info(head)
    except zstd.ZstdError:  # cut short or damaged; the decoder reports which
        return
    # The window of a single-segment frame is its whole content; other frames give it in a byte (RFC 8878, 3.1.1.1).
    window_bytes = frame.decompressed_size if head[4] & 32 else 8 + (head[5] & 7) << (head[5] >> 3) + 7
    if frame.dictionary_id:
        raise StreamError(
            stored.name,
            f"the zstd frame at byte {stored.position} needs the dictionary {frame.dictionary_id}, which is no part of "
            "the file",
            "unpack it where the dictionary is (unzstd -D DICTIONARY), or pack it without one",
        )
    if window_bytes > _WINDOW_BYTES:
        raise StreamError(
            stored.name,
            f"the zstd frame at byte {stored.position} was packed with a window of {window_bytes >> 20} MB, which "
            f"takes as much memory to unpack; {_WINDOW_BYTES >> 20} MB are allowed",
            "pack it again without --long or --ultra (unzstd --long=31 -c OLD | zstd > NEW)",
        )


def _decoded(decoder: Any, stored: CompressedStream, kind: str, part: str) -> Iterator[bytes]:
    """The content of one gzip member or zstd frame; bytes that were read after its end are given back.

    Args:
        decoder: a new decoder of isal or zstd.
        stored: gives the bytes, from the beginning of the member or frame on.
        kind: name of the compression, for an error.
        part: member or frame, for an error.
    """
    begin, head, content = stored.position, stored.peek(len(_ZSTD)), b""
    if compression(head) != kind and not (_GZIP if kind == "gzip" else _ZSTD).startswith(head):
        shown = head[:20].decode("latin-1").encode("unicode_escape").decode()
        raise StreamError(
            stored.name,
            f"what follows the {kind} data at byte {begin} is no {kind} ('{shown}')",
            f"copy or download it again; if only this end is wrong, cut it off (head -c {begin} OLD > NEW)",
        )
    while not decoder.eof:
        if decoder.needs_input and not (content := stored.take()):
            raise StreamError(
                stored.name,
                f"the {kind} stream ends early, at byte {stored.position}",
                "the file was cut short; copy or download it again",
            )
        try:
            chunk = decoder.decompress(content, _MOST_BYTES)
        except Exception as error:  # isal's stub calls its error class an instance
            said = re.sub(r"^(Error -?\d+|Unable to decompress .* data:) ", "", str(error))
            where = f"{kind} {part} that begins at byte {begin}, before byte {stored.position}"
            raise StreamError(
                stored.name, f"is damaged in the {where} ({said})", "copy or download it again"
            ) from error
        content = b""
        if chunk:
            yield chunk
    stored.give_back(decoder.unused_data)


DECOMPRESS: dict[str, Callable[[CompressedStream], Iterator[bytes]]] = {
    "": lambda stored: iter(stored.take, b""),
    "gzip": gunzip,
    "zstd": unzstd,
}
"""The decoder of each compression that is read."""
