"""A file at a URL, as stored: what the server reports about it, and its bytes from any offset on.

In: a URL of the web, or another that fsspec opens. Out: size, version, bytes. Kept: nothing.

A connection that fails is opened again, and reading continues at the byte that was reached (`data.transport.retries`).
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

from data.transport.retries import (
    SILENCE_S,
    WEB,
    SourceChangedError,
    StreamError,
    log_once,
    refusal,
    retry_delay,
    retrying,
)
from zymogen.console.safe_text import redact_later, unredacted

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


class RemoteResponse(NamedTuple):
    """A file that is open to be read, and what a server reports about it."""

    size: int | None
    """In bytes, as stored."""
    version: dict[str, str]
    """By field; the first is the one to compare."""
    begin: int
    """Offset of the first byte; not the one that was asked for if a server sends only whole files."""
    chunks: Iterator[bytes]


class RemoteFile:
    """One file at a URL.

    Args:
        location: the URL, whole or as it is shown.

    Raises:
        ValueError: no installed package opens such a URL.
    """

    def __init__(self, location: str) -> None:
        self.location = redact_later(location, "a source")
        self._url = unredacted(self.location)
        self._is_web = location.startswith(WEB)
        if not self._is_web:
            self._filesystem, self._path = _filesystem(self.location, self._url)
        self._size: int | None = None
        self._version: dict[str, str] | None = None
        """By the first answer with content; later ones must agree with it. None before it."""
        self._ranges = True
        """Whether the server can be asked for a part of the file."""

    def info(self) -> tuple[int | None, dict[str, str]]:
        """Its size and version, without its content.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        number = 0
        while True:
            try:
                return self._info
            except Exception as error:
                retry_delay(self.location, error, number := number + 1)

    def chunks(self, offset: int = 0) -> Generator[bytes, None, None]:
        """Its bytes from `offset` on, as they come.

        Raises:
            ValueError: it does not exist or cannot be reached.
            ConnectionLostError: the connection was lost and cannot be opened again.
            SourceChangedError: the file changed since it was opened.
        """
        number, checksum, position = 0, 0, offset
        begin: int | None = None  # where reading began; the checksum is that of the bytes from there to `position`
        while True:
            try:
                goes_on = begin is None or (self._ranges and self._validator)
                with self._open(position if goes_on else begin or 0) as answer:
                    self._require_same(answer)
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
                    if at < max(position, self._size or 0):
                        raise ConnectionError("there is more of it")
                    return
            except StreamError:
                raise
            except Exception as error:
                of = "" if self._size is None else f" of {self._size}"
                happened = "" if begin is None else f"breaks off after {position}{of} bytes"
                retry_delay(self.location, error, number := number + 1, happened)

    def _require_same(self, answer: RemoteResponse) -> None:
        """Refuse an answer of another file, or of another version, than the first answer's."""
        size = self._info[0] if answer.size is None else answer.size
        if self._version is None:
            self._size, self._version = size, answer.version
        both = next((key for key in answer.version if key in self._version), None)
        is_other = both is not None and answer.version[both] != self._version[both]
        if is_other or (None not in (size, self._size) and size != self._size):
            raise self._changed()

    @property
    def _validator(self) -> str | None:
        """Shows that two answers are of the same file. A weak ETag does not (RFC 9110, 13.1.5)."""
        return next((value for value in (self._version or {}).values() if not value.startswith("W/")), None)

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(self.location, "changed while it was read", "the same command reads it again")

    @cached_property
    def _info(self) -> tuple[int | None, dict[str, str]]:
        if not self._is_web:
            return _described(self._filesystem.info(self._path))
        import httpx2

        size, version = None, dict[str, str]()
        with suppress(httpx2.HTTPError), self._request("HEAD") as answer:
            size, version = answer.size, answer.version
        if size is None:  # some servers do not answer HEAD, or without the size
            with self._request("GET") as answer:
                size, version = answer.size, version | answer.version
        if size is None:
            unseen = "" if version else "if it changes, that is not noticed, and a store that was built is used again; "
            log_once(
                self.location,
                f"the server does not say the size of this file: {unseen}an early end is noticed only where the answer "
                "comes in chunks or the file is compressed",
            )
        return size, version

    def _open(self, offset: int) -> AbstractContextManager[RemoteResponse]:
        return self._request("GET", offset) if self._is_web else self._stored(offset)

    @contextmanager
    def _request(self, method: str, offset: int = 0) -> Iterator[RemoteResponse]:
        """Ask a web server.

        The whole rest is one streamed answer: single pieces would need a server that supports ranges.
        """
        import httpx2

        # Compression during the transfer would make the size differ from the announced one.
        headers = {"Accept-Encoding": "identity"}
        if offset and self._ranges:
            headers["Range"] = f"bytes={offset}-"
            if self._validator:
                headers["If-Range"] = self._validator
        # There is no limit to the time of a whole answer, as a corpus takes hours.
        options: dict[str, Any] = {"timeout": httpx2.Timeout(SILENCE_S, connect=_CONNECT_S), "verify": _certificates()}
        with suppress(FileNotFoundError):
            options["auth"] = httpx2.NetRCAuth(os.path.expanduser(os.environ.get("NETRC", "~/.netrc")))
        with httpx2.stream(method, self._url, headers=headers, follow_redirects=True, **options) as answer:
            retrying(self.location)
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
            version = {field: answer.headers[field] for field in _WEB_VERSION if field in answer.headers}
            yield RemoteResponse(int(size) if size else None, version, begin, answer.iter_raw())

    @contextmanager
    def _stored(self, offset: int) -> Iterator[RemoteResponse]:
        """Open a file of another file system than the web."""
        if self._version is not None:
            self._filesystem.invalidate_cache()
        info = self._filesystem.info(self._path)
        with self._filesystem.open(self._path, "rb") as file:
            at = file.seek(offset) if offset and file.seekable() else 0
            yield RemoteResponse(*_described(info), at, iter(partial(file.read, _READ_BYTES), b""))


@cache
def _certificates() -> "SSLContext":
    """The authorities that are trusted; reading them takes longer than a short answer."""
    import httpx2

    return httpx2.create_ssl_context()


def _described(info: Any) -> tuple[int | None, dict[str, str]]:
    """Size and version in what a file system reports."""
    return info.get("size"), {key: str(info[key]) for key in _VERSION_FIELDS if info.get(key) is not None}


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
