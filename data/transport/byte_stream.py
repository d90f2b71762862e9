"""Bytes of a source, decompressed, in chunks: from a local file, or any URL that fsspec opens.

In: a location. Out: chunks of about 1 MB; the same as a binary file, for readers that take nothing else (Biopython, the
csv module). Kept: how many stored bytes were read, for the progress line.

Compression is recognized by the first bytes, never by the name: none, gzip (bgzip is a gzip of many members) or zstd.
The decompressed size has a limit, and memory holds only a few chunks at a time.
"""

import io
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from data.transport.compression import DECOMPRESS, HEAD_BYTES, UNPACK, CompressedStream, compression, in_pieces
from data.transport.remote_file import RemoteFile
from data.transport.retries import StreamError
from zymogen.files.suggestions import did_you_mean

_READ_BYTES = 1 << 18
"""How much is read at a time: little, as the rest of it is copied after each member of a compressed file."""
_LEAST_BYTES = 1 << 18
"""Smallest chunk, except for the last one and for one before an error."""
MAX_BYTES = 1 << 44
"""Most bytes of one source, decompressed: more than every public corpus, and less than a stream without end."""
MAX_INFLATION = 250
"""Most bytes that one compressed byte may become, over a whole source: those of proteins become some 2."""
_INFLATION_FROM = 16 << 20
"""Decompressed bytes from which the inflation ratio is checked, as a small file of repeats compresses very well."""


def is_inflated(size: int, packed: int) -> bool:
    """Whether compressed bytes become more than those of a file of proteins do."""
    return size > MAX_BYTES or (size > _INFLATION_FROM and size > MAX_INFLATION * max(1, packed))


def require_no_pipe(place: str, name: str) -> None:
    """Refuse standard input, a pipe or a device, or a name such as ``/dev/fd/63``: sources are read more than once.

    Args:
        place: a path, ``-``, or a URL, which is none of these.
        name: the setting that has it.

    Raises:
        ValueError: it is one.
    """
    is_other = os.path.exists(place) and not (os.path.isfile(place) or os.path.isdir(place))
    is_temporary = os.path.abspath(place).startswith(("/dev/fd/", "/dev/std", "/proc/"))
    if place == "-" or ("://" not in place and (is_other or is_temporary)):
        raise ValueError(
            f"{name}: {place!r} is standard input, a pipe or a device, which can be read once; write it to a file"
        )


class SingleFileSource:
    """The properties of a source (`data.sources.block.Source`) that is one file or URL."""

    __slots__ = ()
    location: str

    @property
    def name(self) -> str:
        """The location."""
        return self.location

    @property
    def num_bytes(self) -> int | None:
        """Size as stored; None if a server does not report it."""
        return ByteStream(self.location).num_bytes

    def stamp(self) -> list[str | int]:
        """Place, size and time of change."""
        return ByteStream(self.location).stamp()


class ByteStream:
    """One source of bytes.

    Args:
        location: a path, or a URL (``scheme://...``).
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.bytes_read = 0
        """Stored bytes of the source that were read so far."""
        self._remote = RemoteFile(location) if "://" in location else None

    @property
    def num_bytes(self) -> int | None:
        """Size as stored; None if a server does not report it.

        Raises:
            ValueError: a URL does not exist or cannot be reached.
        """
        if self._remote is not None:
            return self._remote.info()[0]
        return Path(self.location).stat().st_size

    def stamp(self) -> list[str | int]:
        """What distinguishes this source from another without reading it.

        Returns:
            Resolved path, size and time of change in ns. For a URL: the URL, its size, and the version that the server
            reports (ETag, time of change).

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        if self._remote is not None:
            size, version = self._remote.info()
            return [self.location, -1 if size is None else size, *(f"{key}={value}" for key, value in version.items())]
        try:
            status = Path(self.location).stat()
        except OSError as error:
            near = did_you_mean(Path(self.location)) if isinstance(error, FileNotFoundError) else ""
            raise ValueError(f"{self.location}: {error.strerror or error}; check data.sources{near}") from None
        return [str(Path(self.location).resolve()), status.st_size, status.st_mtime_ns]

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        """Its decompressed bytes from `offset` on, in chunks of 256 kB to 1.25 MB; the last one may be shorter.

        An uncompressed file or URL of known size is read from `offset` on. A compressed one, or one without a size, is
        read from its beginning, and the bytes before `offset` are dropped.

        Raises:
            ValueError: it does not exist, cannot be reached, has an unsupported compression or fewer bytes than
                `offset`.
            StreamError: it is cut short, damaged or above a limit.
            ConnectionLostError: the connection was lost and could not be opened again.
            SourceChangedError: the source changed while it was read.
        """
        at = 0
        with ExitStack() as files:
            stored = CompressedStream(self.location, files.enter_context(closing(self._stored())))
            head = stored.peek(HEAD_BYTES)
            kind = compression(head)
            if kind not in DECOMPRESS:
                raise ValueError(
                    f"{self.location}: is a {kind} file; plain text, gzip (bgzip) and zstd are read: unpack it "
                    f"({UNPACK[kind]})"
                )
            size = None if kind or offset <= len(head) else self.num_bytes
            if size is not None:
                files.close()
                at = min(offset, size)
                stored = CompressedStream(self.location, files.enter_context(closing(self._stored(at))))
            for chunk in in_pieces(DECOMPRESS[kind](stored), _LEAST_BYTES):
                if kind and not at:
                    self._require_plain(chunk, kind)
                at += len(chunk)
                self._require_within_limits(at, kind)
                if at > offset:
                    yield chunk[max(0, len(chunk) - at + offset) :]
        if at < offset:
            raise ValueError(
                f"{self.location}: ends {offset - at} bytes before the place up to which it was read before: it "
                "changed since; restore it, or build its store again"
            )

    def _require_plain(self, first: bytes, kind: str) -> None:
        """Refuse a compressed file that holds another compressed file."""
        if inner := compression(first[:HEAD_BYTES]):
            raise ValueError(
                f"{self.location}: holds a {inner} file inside its {kind}; what {kind} holds must be plain text: "
                f"unpack it ({UNPACK[kind]}, then {UNPACK[inner]})"
            )

    def _require_within_limits(self, size: int, kind: str) -> None:
        if size > MAX_BYTES:
            raise StreamError(self.location, f"has more than {MAX_BYTES} bytes", "divide it into several sources")
        if kind and is_inflated(size, self.bytes_read):
            raise StreamError(
                self.location,
                f"{self.bytes_read} {kind} bytes become more than {size}",
                f"at most {MAX_INFLATION} for one are read; unpack it if the file is to be trusted",
            )

    def _stored(self, offset: int = 0) -> Generator[bytes, None, None]:
        """Its bytes as stored, from `offset` on."""
        self.bytes_read = offset
        for chunk in self._remote.chunks(offset) if self._remote else self._local(offset):
            self.bytes_read += len(chunk)
            yield chunk

    def _local(self, offset: int) -> Iterator[bytes]:
        try:
            with io.FileIO(self.location) as file:
                if offset:
                    file.seek(offset)
                yield from iter(partial(file.read, _READ_BYTES), b"")
        except FileNotFoundError:
            raise ValueError(f"{self.location}: no such file; check data.sources") from None
        except OSError as error:
            raise StreamError(self.location, "cannot be read", str(error)) from error


class ChunkFile(io.RawIOBase):
    """A raw file that holds what an iterator gives.

    Args:
        chunks: bytes in order.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.failure: ValueError | None = None
        """The error of the source, for a caller whose parser replaces it with an error of its own."""

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current chunk, and return how many bytes were written; 0 at the end.

        Raises:
            ValueError: the source of the chunks raised it.
        """
        try:
            self._rest = self._rest or memoryview(next(self._chunks, b""))
        except ValueError as error:
            self.failure = error
            raise
        count = min(len(self._rest), len(buffer))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count
