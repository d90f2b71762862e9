"""Decompression: gzip (bgzip too) and zstd, in bounded pieces, with an error where a stream is cut short or damaged.

In: a function that reads stored bytes. Out: decompressed pieces, none above 1 MB. Kept: nothing.
"""

from collections.abc import Callable, Iterator

PIECE_BYTES = 1 << 20
"""What one read of a plain file gives: enough for what is done once for each piece not to count."""
_MOST_BYTES = 1 << 19
_COMPRESSED_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a zstd frame that holds no data; byte 0 is 0x50 to 0x5f."""
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4", b"7z\xbc\xaf": "7z"}


def compression(head: bytes) -> str:
    """What a source is packed with, by its first 5 bytes: "" for nothing, "gzip", "zstd", or what is not read."""
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_ZSTD) or _skippable(head):
        return "zstd"
    return next((name for magic, name in _OTHERS.items() if head.startswith(magic)), "")


def _skippable(head: bytes) -> bool:
    return head[1:4] == _SKIPPABLE and head[0] >> 4 == 5


class Damaged(Exception):
    """A compressed stream that cannot be decoded."""


class Stored:
    """Stored bytes, some of which were read already."""

    def __init__(self, head: bytes, read: Callable[[int], bytes]) -> None:
        self._head = head
        self._read = read

    def some(self, size: int) -> bytes:
        """The next bytes, about `size` of them; empty at the end."""
        if self._head:
            content, self._head = self._head, b""
            return content
        return self._read(size)

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes; empty at the end.

        Raises:
            EOFError: there are some, but fewer.
        """
        parts, missing = [], size
        while missing > 0:
            content = self.some(max(missing, _COMPRESSED_BYTES))
            if not content:
                if missing < size:
                    raise EOFError
                return b""
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
    """All members of a gzip stream, one behind the other.

    Raises:
        EOFError: it is cut short.
        Damaged: it cannot be decoded, or its checksum is wrong.
    """
    from isal import igzip_lib

    content = stored.some(_COMPRESSED_BYTES)
    while content:
        if content[:2] != _GZIP[: len(content)]:
            raise Damaged("what follows a gzip member is none")
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        size = _COMPRESSED_BYTES  # small as long as members may be: what is behind one is copied
        while not member.eof:
            if member.needs_input:
                content = content or stored.some(size := min(2 * size, _MOST_BYTES))
                if not content:
                    raise EOFError
            try:
                chunk = member.decompress(content, _MOST_BYTES)
            except Exception as error:  # isal's stub calls its error class an instance
                raise Damaged from error
            content = b""
            if chunk:
                yield chunk
        content = member.unused_data
        while not (content := content.lstrip(b"\0")):  # zeros fill the last block of a tape
            if not (content := stored.some(_COMPRESSED_BYTES)):
                return


def unzstd(stored: Stored) -> Iterator[bytes]:
    """All frames of a zstd stream, four blocks at a time.

    The library has no bound on what it gives for what it gets, and does not say whether a frame was whole; a block
    becomes at most 128 kB, and which one is the last stands in its head (RFC 8878, 3.1.1).

    Raises:
        EOFError: it is cut short.
        Damaged: it cannot be decoded, or its checksum is wrong.
    """
    import zstandard

    while head := stored.exactly(4):
        if _skippable(head):
            left = int.from_bytes(_needed(stored, 4), "little")
            while left:
                left -= len(_needed(stored, min(left, _MOST_BYTES)))
            continue
        if head != _ZSTD:
            raise Damaged("what follows a zstd frame is none")
        descriptor = _needed(stored, 1)
        bits = descriptor[0]
        single_segment = bits >> 5 & 1
        content_size = 1 << (bits >> 6) if bits >> 6 else single_segment
        head += descriptor + _needed(stored, 1 - single_segment + (0, 1, 2, 4)[bits & 3] + content_size)
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts, num_blocks, last = [head], 0, False
        while not last:
            block_head = _needed(stored, 3)
            fields = int.from_bytes(block_head, "little")
            last = bool(fields & 1)
            is_run = fields >> 1 & 3 == 1
            parts += [block_head, _needed(stored, 1 if is_run else fields >> 3)]
            num_blocks += 1
            if last and bits >> 2 & 1:
                parts.append(_needed(stored, 4))  # checksum of the content
            if last or num_blocks % 4 == 0:
                try:
                    chunk = frame.decompress(b"".join(parts))
                except zstandard.ZstdError as error:
                    raise Damaged from error
                parts = []
                if chunk:
                    yield chunk


def _needed(stored: Stored, size: int) -> bytes:
    content = stored.exactly(size)
    if size and not content:
        raise EOFError
    return content
