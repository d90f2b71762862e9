"""Decompression: gzip (bgzip too) and zstd, in bounded pieces, with an error where a stream is cut short or damaged.

In: a function that reads stored bytes. Out: decompressed pieces, none above 1 MB. Kept: nothing.

bgzip's output is a gzip of many small members, each of which names its length in a field "BC", and ends with an empty
one, its end block (SAM format specification, 4.1). A copy that stops between two members is a whole gzip, so the end
block alone tells that it is cut short.
"""

import re
from collections.abc import Callable, Iterator

PIECE_BYTES = 1 << 20
"""What one read of a plain file gives: enough for what is done once for each piece not to count."""
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
"""Of a file, which say how it is packed."""
_WINDOW_BYTES = 1 << 27
"""Largest window of a zstd frame: what the library takes without being told, and what `zstd` writes without --long."""
_BLOCK_BYTES = 1 << 17
"""Largest block of a zstd frame."""

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
"""How each packing is undone."""
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
    """What a source is packed with, by its first `HEAD_BYTES`: "" for nothing, else a key of `UNPACK`.

    Of these gzip and zstd are read. Where fewer bytes are there, what they do not show is not found.
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


class CutShort(Damaged):
    """A compressed stream that ends before its end."""


class Stored:
    """Stored bytes, some of which were read already."""

    def __init__(self, head: bytes, read: Callable[[int], bytes]) -> None:
        self._head = head
        self._read = read
        self._num_read = len(head)

    @property
    def position(self) -> int:
        """How many bytes were given."""
        return self._num_read - len(self._head)

    def some(self, size: int) -> bytes:
        """The next bytes, about `size` of them; empty at the end."""
        if self._head:
            content, self._head = self._head, b""
            return content
        content = self._read(size)
        self._num_read += len(content)
        return content

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        parts, missing = [], size
        while missing > 0 and (content := self.some(max(missing, _COMPRESSED_BYTES))):
            parts.append(content[:missing])
            self._head = content[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


def plain(stored: Stored) -> Iterator[bytes]:
    """The bytes as they are."""
    while chunk := stored.some(PIECE_BYTES):
        yield chunk


def in_pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `size`, but for the last one and for one before an error."""
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

    Members of bgzip must end with its end block, be it in front of members of another kind: files of both kinds may
    be concatenated, and then each must be whole.

    Raises:
        CutShort: it ends inside a member, or members of bgzip end without their end block.
        Damaged: it cannot be decoded, or its checksum is wrong.
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
        size = _COMPRESSED_BYTES  # small as long as members may be: what comes after one is copied
        while not member.eof:
            if member.needs_input:
                content = content or stored.some(size := min(2 * size, _MOST_BYTES))
                if not content:
                    raise _ends_early(stored, "gzip")
            try:
                chunk = member.decompress(content, _MOST_BYTES)
            except Exception as error:  # isal's stub calls its error class an instance
                raise _damaged("gzip member", begin, stored.position, error) from error
            content = b""
            if chunk:
                yield chunk
        content = member.unused_data
        while not (content := content.lstrip(b"\0")):  # zeros fill the last block of a tape
            if not (content := stored.some(_COMPRESSED_BYTES)):
                if open_bgzip:
                    raise _without_end_block(stored.position)
                return


def _extra_end(head: bytes) -> int:
    """How many bytes of a gzip member show whether it is one of bgzip, and its end block."""
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
    """All frames of a zstd stream, four blocks at a time.

    The library has no bound on what it gives for what it gets, and does not say whether a frame was whole; a block
    becomes at most 128 kB, and which one is the last stands in its head (RFC 8878, 3.1.1).

    Raises:
        CutShort: it ends inside a frame.
        Damaged: it cannot be decoded, its checksum is wrong, or it needs a larger window or a dictionary.
    """
    import zstandard

    while head := stored.exactly(4):
        begin = stored.position - len(head)
        if len(head) == 4 and _skippable(head):
            left = int.from_bytes(_needed(stored, 4), "little")
            while left:
                left -= len(_needed(stored, min(left, _MOST_BYTES)))
            continue
        if not _ZSTD.startswith(head):
            raise _followed(head + stored.exactly(16), begin, "zstd")
        head += _needed(stored, 4 - len(head)) + _frame_header(stored)
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts, num_blocks, last = [head], 0, False
        while not last:
            block_head = _needed(stored, 3)
            fields = int.from_bytes(block_head, "little")
            last = bool(fields & 1)
            is_run = fields >> 1 & 3 == 1
            if fields >> 3 > _BLOCK_BYTES:  # taken at its word, a damaged length looks like a file that is cut short
                raise _damaged("zstd frame", begin, stored.position, "a block is too long")
            parts += [block_head, _needed(stored, 1 if is_run else fields >> 3)]
            num_blocks += 1
            if last and head[4] >> 2 & 1:
                parts.append(_needed(stored, 4))  # checksum of the content
            if last or num_blocks % 4 == 0:
                try:
                    chunk = frame.decompress(b"".join(parts))
                except zstandard.ZstdError as error:
                    raise _damaged("zstd frame", begin, stored.position, error) from error
                parts = []
                if chunk:
                    yield chunk


def _frame_header(stored: Stored) -> bytes:
    """Of a zstd frame, without its first 4 bytes (RFC 8878, 3.1.1.1)."""
    begin = stored.position - 4
    descriptor = _needed(stored, 1)
    bits = descriptor[0]
    single_segment = bits >> 5 & 1
    window = _needed(stored, 1 - single_segment)
    dictionary = _needed(stored, (0, 1, 2, 4)[bits & 3])
    size = _needed(stored, 1 << (bits >> 6) if bits >> 6 else single_segment)
    if any(dictionary):
        raise Damaged(
            f"the zstd frame at byte {begin} needs the dictionary {int.from_bytes(dictionary, 'little')}, which is no "
            "part of the file",
            "unpack it where the dictionary is (unzstd -D DICTIONARY), or pack it without one",
        )
    window_bytes = (8 + (window[0] & 7) << (window[0] >> 3) + 7) if window else int.from_bytes(size, "little")
    if window_bytes > _WINDOW_BYTES:
        raise Damaged(
            f"the zstd frame at byte {begin} was packed with a window of {window_bytes >> 20} MB, which takes as much "
            f"memory to unpack; {_WINDOW_BYTES >> 20} MB are allowed",
            "pack it again without --long or --ultra (unzstd --long=31 -c OLD | zstd > NEW)",
        )
    return descriptor + window + dictionary + size


def _needed(stored: Stored, size: int) -> bytes:
    content = stored.exactly(size)
    if len(content) < size:
        raise _ends_early(stored, "zstd")
    return content


def _ends_early(stored: Stored, kind: str) -> CutShort:
    return CutShort(
        f"the {kind} stream ends early, at byte {stored.position}", "the file was cut short; copy or download it again"
    )


def _without_end_block(at: int) -> CutShort:
    return CutShort(
        f"the bgzip stream ends at byte {at} without its end block",
        "the file was cut short; copy or download it again; if it is known to be whole, pack it again (gunzip -c OLD "
        "| bgzip > NEW)",
    )


def _damaged(what: str, begin: int, end: int, error: object) -> Damaged:
    said = re.sub(r"^(Error -?\d+|.* error:) ", "", str(error))
    return Damaged(f"is damaged in the {what} that begins at byte {begin}, before byte {end} ({said})")


def _followed(content: bytes, at: int, kind: str) -> Damaged:
    shown = content[:20].decode("latin-1").encode("unicode_escape").decode()
    return Damaged(
        f"what follows the {kind} data at byte {at} is no {kind} ('{shown}')",
        f"copy or download it again; if only this end is wrong, cut it off (head -c {at} OLD > NEW)",
    )
