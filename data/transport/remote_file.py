"""A file at a URL, as stored: what the server reports about it, and its bytes from any offset on.

In: a URL of the web, or another that fsspec opens. Out: size, version, bytes. Kept: nothing.

A connection that fails is opened again, and reading continues at the byte that was reached (`data.transport.attempts`).
What was read before must belong to the same file as what comes after. If the server gives a version (a strong ETag or
Last-Modified; for an object store what its library knows), the versions must agree. If it gives none, or sends the file
from its beginning, what was read before is read again and compared.
"""

import os
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from data.safe_text import remembered, whole
from data.transport.attempts import SILENCE_S, WEB, answered, refusal, tell_once, wait
from data.transport.broken_stream import BrokenStream, Changed

if TYPE_CHECKING:
    from ssl import SSLContext

_CONNECT_S = 30.0
"""How long connecting may take."""
_READ_BYTES = 1 << 17
_WEB_VERSION = ("ETag", "Last-Modified")
_VERSION_FIELDS = (
    *("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
    *("generation", "md5Hash", "Content-MD5", "checksum"),
)


class FileInfo(NamedTuple):
    """What a server reports about a file."""

    size: int | None
    """In bytes, as stored."""
    version: dict[str, str]
    """By field; the first is the one to compare."""

    @property
    def validator(self) -> str | None:
        """Shows that two answers are of the same file. A weak ETag does not (RFC 9110, 13.1.5)."""
        return next((value for value in self.version.values() if not value.startswith("W/")), None)

    def is_other(self, later: "FileInfo") -> bool:
        """Whether `later` is of another file, or of another version of this one."""
        both = next((key for key in later.version if key in self.version), None)
        has_other_size = None not in (self.size, later.size) and self.size != later.size
        return has_other_size or (both is not None and self.version[both] != later.version[both])


class Answer(NamedTuple):
    """A file that is open to be read."""

    begin: int
    """Offset of the first byte; not the one that was asked for if a server sends only whole files."""
    info: FileInfo
    chunks: Iterator[bytes]
    shows_end: bool = True
    """Whether an early end is an error although the size is not known."""


class RemoteFile:
    """One file at a URL.

    Args:
        location: the URL, whole or as it is shown.

    Raises:
        ValueError: no installed package opens such a URL.
    """

    def __init__(self, location: str) -> None:
        self.location = remembered(location, "a source")
        self._url = whole(self.location)
        self._is_web = location.startswith(WEB)
        if not self._is_web:
            self._filesystem, self._path = _filesystem(self.location, self._url)
        self._first: FileInfo | None = None
        """By the first answer with content; later ones must agree with it."""
        self._ranges = True
        """Whether the server can be asked for a part of the file."""

    def info(self) -> FileInfo:
        """Its size and version, without its content.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        number = 0
        while True:
            try:
                return self._info
            except Exception as error:
                wait(self.location, error, number := number + 1)

    def chunks(self, offset: int = 0) -> Generator[bytes, None, None]:
        """Its bytes from `offset` on, as they come.

        Raises:
            ValueError: it does not exist or cannot be reached.
            BrokenOff: the connection was lost and cannot be opened again.
            Changed: the file changed since it was opened.
        """
        number, checksum, position = 0, 0, offset
        begin: int | None = None  # where reading began; the checksum is that of the bytes from there to `position`
        while True:
            try:
                goes_on = begin is None or (self._ranges and self._first and self._first.validator)
                with self._open(position if goes_on else begin or 0) as answer:
                    size = self._agreed_size(answer)
                    at, again = answer.begin, 0
                    if begin is None:
                        begin = position = at
                    for chunk in answer.chunks:
                        known = max(0, position - at)
                        again = zlib.crc32(chunk[max(0, begin - at) : known], again)
                        at += len(chunk)
                        if 0 < known <= len(chunk) and again != checksum:
                            raise self._changed()
                        if fresh := chunk[known:]:
                            number, checksum, position = 0, zlib.crc32(fresh, checksum), at
                            if wanted := fresh[max(0, offset - at + len(fresh)) :]:
                                yield wanted
                    if at < max(position, size or 0):
                        raise ConnectionError("there is more of it")
                    return
            except BrokenStream:
                raise
            except Exception as error:
                of = f" of {self._first.size}" if self._first and self._first.size is not None else ""
                happened = "" if begin is None else f"breaks off after {position}{of} bytes"
                wait(self.location, error, number := number + 1, happened)

    def _agreed_size(self, answer: Answer) -> int | None:
        """The size of the file, if this answer is of the same file as the first one."""
        size = self._info.size if answer.info.size is None else answer.info.size
        if size is None and answer.info.version and not answer.shows_end:
            tell_once(
                self.location,
                "the server does not say the size of this file: if the connection ends early, that is not noticed, "
                "unless the file is compressed",
            )
        info = answer.info._replace(size=size)
        self._first = self._first or info
        if self._first.is_other(info):
            raise self._changed()
        return self._first.size

    def _changed(self) -> Changed:
        return Changed(self.location, "changed while it was read", "the same command reads it again")

    @cached_property
    def _info(self) -> FileInfo:
        if not self._is_web:
            return self._stored_info()
        import httpx2

        info = FileInfo(None, {})
        with suppress(httpx2.HTTPError), self._request("HEAD") as answer:
            info = answer.info
        if info.size is None:  # some servers do not answer HEAD, or without the size
            with self._request("GET") as answer:
                info = FileInfo(answer.info.size, info.version | answer.info.version)
        if info == (None, {}):
            tell_once(
                self.location,
                "the server says neither size nor version of this file: if it changes, that is not noticed, and a "
                "store that was built from it is used again; an early end is noticed only where the answer comes "
                "in chunks or the file is compressed",
            )
        return info

    def _open(self, offset: int) -> AbstractContextManager[Answer]:
        return self._request("GET", offset) if self._is_web else self._stored(offset)

    @contextmanager
    def _request(self, method: str, offset: int = 0) -> Iterator[Answer]:
        """Ask a web server.

        The whole rest is one streamed answer: single pieces would need a server that supports ranges.
        """
        import httpx2

        # Compression during the transfer would make the size differ from the announced one.
        headers = {"Accept-Encoding": "identity"}
        if offset and self._ranges:
            headers["Range"] = f"bytes={offset}-"
            if self._first and self._first.validator:
                headers["If-Range"] = self._first.validator
        # There is no limit to the time of a whole answer, as a corpus takes hours.
        options: dict[str, Any] = {"timeout": httpx2.Timeout(SILENCE_S, connect=_CONNECT_S), "verify": _certificates()}
        with suppress(FileNotFoundError):
            options["auth"] = httpx2.NetRCAuth(os.path.expanduser(os.environ.get("NETRC", "~/.netrc")))
        with httpx2.stream(method, self._url, headers=headers, follow_redirects=True, **options) as answer:
            answered(self.location)
            if answer.status_code == 416:  # no such part, if only the end of the answer was lost
                self._ranges = False
            answer.raise_for_status()
            begin, size = 0, answer.headers.get("Content-Length")
            if answer.status_code == 206:
                part = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
                if part is None or int(part[1]) != offset:
                    self._ranges = False
                    raise ConnectionError("the server sends another part of the file than it was asked for")
                begin, size = offset, part[2].strip("*")
            elif answer.headers.get("Content-Encoding"):
                size = None
            info = FileInfo(int(size) if size else None, _version(answer.headers, _WEB_VERSION))
            yield Answer(begin, info, answer.iter_raw(), "Transfer-Encoding" in answer.headers)

    @contextmanager
    def _stored(self, offset: int) -> Iterator[Answer]:
        """Open a file of another file system than the web."""
        if self._first is not None:
            self._filesystem.invalidate_cache()
        info = self._stored_info()
        with self._filesystem.open(self._path, "rb") as file:
            at = file.seek(offset) if offset and file.seekable() else 0
            yield Answer(at, info, iter(partial(file.read, _READ_BYTES), b""))

    def _stored_info(self) -> FileInfo:
        info = self._filesystem.info(self._path)
        return FileInfo(info.get("size"), _version(info, _VERSION_FIELDS))


@cache
def _certificates() -> "SSLContext":
    """The authorities that are trusted; reading them takes longer than a short answer."""
    import httpx2

    return httpx2.create_ssl_context()


def _version(found: Any, fields: tuple[str, ...]) -> dict[str, str]:
    return {key: str(found[key]) for key in fields if found.get(key) is not None}


def _filesystem(location: str, url: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the file's path in it.

    Raises:
        ValueError: there is none.
    """
    try:
        import fsspec

        filesystem, path = fsspec.url_to_fs(url)
        return filesystem, path
    except ImportError as error:
        raise ValueError(f"{location}: a package is missing to read it: {error}") from error
    except ValueError as error:
        raise ValueError(f"{location}: cannot be opened: {error}; check data.sources") from error
    except Exception as error:
        raise refusal(location, error) from error
