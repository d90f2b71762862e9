"""Decompression: gzip (bgzip too) and zstd, in bounded pieces, with an error where a stream is cut short or damaged.

In: a function that reads stored bytes. Out: decompressed pieces, none above 1 MB. Kept: nothing.

bgzip writes a gzip of many small members, each of which gives its length in a field "BC". An empty member, the end
block, comes last (SAM format specification, 4.1). A copy that stops between two members is a valid gzip, so only the
missing end block shows that it is cut short.
"""

import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

PIECE_BYTES = 1 << 20
"""How much is read of an uncompressed file at a time: large enough that work done once per read does not matter."""
_MOST_BYTES = 1 << 19
_COMPRESSED_BYTES = 1 << 16
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
    if head.startswith(_ZSTD) or _skippable(head):
        return "zstd"
    if head[_TAR_AT:HEAD_BYTES] == _TAR:
        return "tar"
    return next((name for magic, name in _OTHERS.items() if head.startswith(magic)), "")


def _skippable(head: bytes) -> bool:
    return head[1:4] == _SKIPPABLE and head[0] >> 4 == 5


class Damaged(Exception):
    """A compressed stream that cannot be decoded.

    Args:
        happened: what is wrong and where, in bytes as stored.
        remedy: what to do.
    """

    def __init__(self, happened: str, remedy: str = "copy or download it again") -> None:
        super().__init__(happened, remedy)
        self.happened, self.remedy = happened, remedy


class Stored:
    """Stored bytes, some of which were read already."""

    def __init__(self, head: bytes, read: Callable[[int], bytes]) -> None:
        self._head = head
        self._read = read
        self._num_read = len(head)

    @property
    def position(self) -> int:
        """How many bytes were handed out."""
        return self._num_read - len(self._head)

    def some(self, size: int) -> bytes:
        """The next bytes, about `size` of them; empty at the end."""
        if self._head:
            content, self._head = self._head, b""
            return content
        content = self._read(size)
        self._num_read += len(content)
        return content


def plain(stored: Stored) -> Iterator[bytes]:
    """The bytes as they are."""
    while chunk := stored.some(PIECE_BYTES):
        yield chunk


def in_pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `size`, except for the last one and for one before an error."""
    parts: list[bytes] = []
    try:
        for chunk in chunks:
            parts.append(chunk)
            if sum(map(len, parts)) >= size:
                yield b"".join(parts) if len(parts) > 1 else chunk
                parts = []
    except Exception:
        if parts:
            yield b"".join(parts)
        raise
    if parts:
        yield b"".join(parts)


def gunzip(stored: Stored) -> Iterator[bytes]:
    """All members of a gzip stream, one after the other.

    Files of bgzip and of other programs may be concatenated. After the members of bgzip its end block must come, at the
    end of the stream and before a member of another kind.

    Raises:
        Damaged: it ends inside a member, members of bgzip end without their end block, it cannot be decoded, or its
            checksum is wrong.
    """
    from isal import igzip_lib

    content, open_bgzip = stored.some(_COMPRESSED_BYTES), False
    while content:
        while len(content) < _extra_end(content) and (more := stored.some(_COMPRESSED_BYTES)):
            content += more
        begin = stored.position - len(content)
        is_bgzip = _is_bgzip(content)
        if open_bgzip and not is_bgzip:
            raise _without_end_block(begin)
        open_bgzip = is_bgzip and not content.startswith(_END_BLOCK)
        if content[:2] != _GZIP[: len(content)]:
            raise _followed(content, begin, "gzip")
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        yield from _decoded(member, content, stored, "gzip", f"gzip member that begins at byte {begin}")
        content = member.unused_data
        while not (content := content.lstrip(b"\0")):  # a tape fills its last block with zeros
            if not (content := stored.some(_COMPRESSED_BYTES)):
                if open_bgzip:
                    raise _without_end_block(stored.position)
                return


def _extra_end(head: bytes) -> int:
    """How many bytes of a gzip member show whether bgzip wrote it, and whether it is the end block."""
    if len(head) < 12 or not head[3] & 4:
        return len(_END_BLOCK)
    return max(len(_END_BLOCK), 12 + int.from_bytes(head[10:12], "little"))


def _is_bgzip(head: bytes) -> bool:
    """Whether one of the extra fields of a gzip member is "BC" (RFC 1952, 2.3.1.1)."""
    if len(head) < 12 or not head[3] & 4:
        return False
    at, end = 12, 12 + int.from_bytes(head[10:12], "little")
    while at + 4 <= end:
        if head[at : at + 2] == b"BC":
            return True
        at += 4 + int.from_bytes(head[at + 2 : at + 4], "little")
    return False


def unzstd(stored: Stored) -> Iterator[bytes]:
    """All frames of a zstd stream, one after the other; frames without data are skipped.

    Raises:
        Damaged: it ends inside a frame, cannot be decoded, has a wrong checksum, or needs a larger window or a
            dictionary.
    """
    zstd = _zstd()
    content = b""
    while content := content or stored.some(_COMPRESSED_BYTES):
        while len(content) < _FRAME_HEAD_BYTES and (more := stored.some(_COMPRESSED_BYTES)):
            content += more
        begin = stored.position - len(content)
        if not _skippable(content):
            if content[:4] != _ZSTD[: len(content)]:
                raise _followed(content, begin, "zstd")
            _require_readable(content, begin)
        frame = zstd.ZstdDecompressor()
        yield from _decoded(frame, content, stored, "zstd", f"zstd frame that begins at byte {begin}")
        content = frame.unused_data


def _require_readable(head: bytes, begin: int) -> None:
    """Refuse a zstd frame that needs more than the frame itself and an ordinary amount of memory."""
    zstd = _zstd()
    try:
        frame = zstd.get_frame_info(head)
    except zstd.ZstdError:  # cut short or damaged; the decoder reports which
        return
    if frame.dictionary_id:
        raise Damaged(
            f"the zstd frame at byte {begin} needs the dictionary {frame.dictionary_id}, which is no part of the file",
            "unpack it where the dictionary is (unzstd -D DICTIONARY), or pack it without one",
        )
    # The window of a single-segment frame is its whole content; other frames give it in a byte (RFC 8878, 3.1.1.1).
    window_bytes = frame.decompressed_size if head[4] & 32 else 8 + (head[5] & 7) << (head[5] >> 3) + 7
    if window_bytes > _WINDOW_BYTES:
        raise Damaged(
            f"the zstd frame at byte {begin} was packed with a window of {window_bytes >> 20} MB, which takes as much "
            f"memory to unpack; {_WINDOW_BYTES >> 20} MB are allowed",
            "pack it again without --long or --ultra (unzstd --long=31 -c OLD | zstd > NEW)",
        )


def _zstd() -> ModuleType:
    """The standard library's module or, before Python 3.14, the package that provides it."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _decoded(decoder: Any, content: bytes, stored: Stored, kind: str, what: str) -> Iterator[bytes]:
    """What one gzip member or zstd frame holds; bytes that were read after its end are in `decoder.unused_data`.

    Args:
        decoder: a new decoder of isal or zstd.
        content: the bytes that were read of it already.
        stored: gives the rest.
        kind: name of the compression, for an error.
        what: what is decoded and where it begins, for an error.
    """
    size = _COMPRESSED_BYTES  # begins small, as what is read after the end of a member is copied
    while not decoder.eof:
        if decoder.needs_input:
            content = content or stored.some(size := min(2 * size, _MOST_BYTES))
            if not content:
                raise Damaged(
                    f"the {kind} stream ends early, at byte {stored.position}",
                    "the file was cut short; copy or download it again",
                )
        try:
            chunk = decoder.decompress(content, _MOST_BYTES)
        except Exception as error:  # isal's stub calls its error class an instance
            said = re.sub(r"^(Error -?\d+|Unable to decompress .* data:) ", "", str(error))
            raise Damaged(f"is damaged in the {what}, before byte {stored.position} ({said})") from error
        content = b""
        if chunk:
            yield chunk


def _without_end_block(at: int) -> Damaged:
    return Damaged(
        f"the bgzip stream ends at byte {at} without its end block",
        "the file was cut short; copy or download it again; if it is known to be whole, pack it again (gunzip -c OLD "
        "| bgzip > NEW)",
    )


def _followed(content: bytes, at: int, kind: str) -> Damaged:
    shown = content[:20].decode("latin-1").encode("unicode_escape").decode()
    return Damaged(
        f"what follows the {kind} data at byte {at} is no {kind} ('{shown}')",
        f"copy or download it again; if only this end is wrong, cut it off (head -c {at} OLD > NEW)",
    )
