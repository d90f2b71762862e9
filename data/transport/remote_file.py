"""A file at a URL, as stored: what the server reports about it, and its bytes from any offset on.

In: a URL that fsspec opens. Out: size, version, bytes. Kept: nothing.

A connection that fails is opened again, and reading continues at the byte that was reached (`data.transport.attempts`).
What was read before must belong to the same file as what comes after. If the server gives a version (a strong ETag or
Last-Modified; for an object store what its library knows), the versions must agree. If it gives none, or sends the file
from its beginning, what was read before is read again and compared.
"""

import re
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from data.safe_text import remembered, whole
from data.transport.attempts import (
    ATTEMPTS,
    SILENCE_S,
    WEB,
    answered,
    is_passing,
    said,
    tell_once,
    unreachable,
    wait,
)
from data.transport.broken_stream import BrokenOff, BrokenStream, Changed

_CONNECT_S = 30.0
"""How long connecting may take."""
_READ_BYTES = 1 << 17
"""How many bytes are read at a time; aiohttp reads twice as much ahead."""
_WEB_VERSION = ("ETag", "Last-Modified")
_VERSION_FIELDS = (
    *("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
    *("generation", "md5Hash", "Content-MD5", "checksum"),
)


class RemoteFile:
    """One file at a URL, which `seek` opens.

    Args:
        location: the URL, whole or as it is shown.

    Raises:
        ValueError: no installed package opens such a URL.
    """

    def __init__(self, location: str) -> None:
        self.location = remembered(location, "a source")
        self.is_web = location.startswith(WEB)
        self.position = 0
        """Offset in the file of the next byte to be read."""
        self._filesystem, self._path = _filesystem(self.location)
        self._file: Any = None
        self._is_new = True
        """Whether nothing was read since the last `seek`."""
        self._lost: Exception | None = None
        """The error that ended the connection, kept until the bytes that came before it are handed out."""
        self._begin = self._checksum = 0
        """Where reading began, and the CRC-32 of the bytes from there to `position`."""
        self._size: int | None = None
        self._version: dict[str, str] | None = None
        """Version by the first answer with content; None before it."""
        self._ranges = True
        """Whether the server can be asked for a part of the file."""

    @property
    def num_bytes(self) -> int | None:
        """Its size; None if the server does not report it.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        size: int | None = self._retrying(lambda: self._info).get("size")
        return size

    @property
    def version(self) -> list[str]:
        """The version that the server reports, as ``field=value``; empty if it reports none.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        info = self._retrying(lambda: self._info)
        return [f"{key}={value}" for key, value in _version(info, _VERSION_FIELDS).items()]

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int) -> int:
        """Continue at `offset`, or at 0 if the server sends only whole files; return that place.

        Raises:
            ValueError: it does not exist or cannot be reached.
            Changed: the file changed since it was opened.
        """
        self.close()
        self.position, self._is_new = offset, True
        self._retrying(self._connect)
        return self.position

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` of them; empty at the end.

        Raises:
            BrokenOff: the connection was lost and cannot be opened again.
            Changed: the file changed since it was opened.
        """
        content: bytes = self._retrying(lambda: self._next(size))
        self._checksum = zlib.crc32(content, self._checksum)
        self.position += len(content)
        return content

    def close(self) -> None:
        """Close the connection."""
        if self._file is not None:
            self._file.close()
        self._file = self._lost = None

    def _next(self, size: int) -> bytes:
        if self._lost is not None:
            raise self._lost
        if self._file is None:
            self._connect()
        try:
            content: bytes = self._file.read(min(size, _READ_BYTES)) or b""
        except Exception as error:
            content, self._lost = self._had_come(), error
            if not content:
                raise
        if not content and self._size is not None and self.position < self._size:
            raise ConnectionError("there is more of it")
        return content

    def _had_come(self) -> bytes:
        """The bytes that arrived before a connection was lost: aiohttp raises the loss before it returns them."""
        if not self.is_web or self._file.r.content.exception() is None:
            return b""
        self._file.r.content.set_exception(None)
        content: bytes = self._file.r.content.read_nowait(-1)
        return content

    def _connect(self) -> None:
        """Open it at `position`, after a check that it is still the same file."""
        goes_on = self._is_new or (self._ranges and self._validator is not None)
        at, size, version = self._open(self.position if goes_on else self._begin)
        if self._version is None:
            self._size, self._version = size, version
        both = next((key for key in version if key in self._version), None)
        is_other = both is not None and version[both] != self._version[both]
        if is_other or (None not in (size, self._size) and size != self._size):
            raise self._changed()
        if self._is_new:
            self.position = self._begin = at
            self._checksum, self._is_new = 0, False
            return
        checksum, compared = 0, at <= self._begin
        while at < self.position:
            content = self._file.read(min(_READ_BYTES, self.position - at))
            if not content:
                raise ConnectionError("it ends before the place that was reached")
            checksum = zlib.crc32(content[max(0, self._begin - at) :], checksum)
            at += len(content)
        if compared and checksum != self._checksum:
            raise self._changed()

    @property
    def _validator(self) -> str | None:
        """Shows that two answers are of the same file. A weak ETag does not (RFC 9110, 13.1.5)."""
        return next((value for value in (self._version or {}).values() if not value.startswith("W/")), None)

    def _changed(self) -> Changed:
        return Changed(self.location, "changed while it was read", "the same command reads it again")

    def _open(self, offset: int) -> tuple[int, int | None, dict[str, str]]:
        """Open it, and return the offset at which it stands, `offset` or 0, its size and its version.

        Raises:
            Exception: whatever its library raises.
        """
        if self.is_web:
            return self._open_web(offset)
        if self._version is not None:
            self._filesystem.invalidate_cache()
        info = self._filesystem.info(self._path)
        self._file = self._filesystem.open(self._path, "rb")
        at = self._file.seek(offset) if offset and self._file.seekable() else 0
        return at, info.get("size"), _version(info, _VERSION_FIELDS)

    def _open_web(self, offset: int) -> tuple[int, int | None, dict[str, str]]:
        # The whole rest is one streamed answer: single pieces would need a server that supports ranges. Compression
        # during the transfer would make the size differ from the announced one.
        headers = {**self._filesystem.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        if offset and self._ranges:
            headers["Range"] = f"bytes={offset}-"
            if self._validator:
                headers["If-Range"] = self._validator
        # Given any size, fsspec does not ask the server for it first.
        self._file = self._filesystem.open(self._path, "rb", block_size=0, size=-1, headers=headers)
        answered(self.location)
        answer = self._file.r
        version = _version(answer.headers, _WEB_VERSION)
        if answer.status == 206:
            part = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
            if part is None or int(part[1]) != offset:
                self._ranges = False
                raise ConnectionError("the server sends another part of the file than it was asked for")
            return offset, None if part[2] == "*" else int(part[2]), version
        if "Content-Length" in answer.headers and not answer.headers.get("Content-Encoding"):
            return 0, int(answer.headers["Content-Length"]), version
        size = self._info.get("size")
        if size is None and version and "Transfer-Encoding" not in answer.headers:
            tell_once(
                self.location,
                "the server does not say the size of this file: if the connection ends early, that is not noticed, "
                "unless the file is compressed",
            )
        return 0, size, version

    @cached_property
    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._filesystem.info(self._path)
        if self.is_web:
            answered(self.location)
            if info.get("size") is None and not _version(info, _VERSION_FIELDS):
                tell_once(
                    self.location,
                    "the server says neither size nor version of this file: if it changes, that is not noticed, and a "
                    "store that was built from it is used again; an early end is noticed only where the answer comes "
                    "in chunks or the file is compressed",
                )
        return info

    def _retrying(self, step: Callable[[], Any]) -> Any:
        """What `step` returns, with as many attempts as may help.

        Raises:
            ValueError: it cannot be reached.
            BrokenOff: it cannot be reached any more.
        """
        num_attempts = 0
        while True:
            try:
                return step()
            except BrokenStream:
                raise
            except Exception as error:
                self.close()
                if getattr(error, "status", 0) == 416:  # no such part, if only the end of the answer was lost
                    self._ranges = False
                may_help = (self.is_web or not self._is_new) and is_passing(self.location, error)
                if num_attempts == ATTEMPTS or not may_help:
                    raise self._refusal(error, num_attempts) from error
                num_attempts += 1
                wait(self.location, error, "cannot be reached" if self._is_new else self._happened, num_attempts)

    @property
    def _happened(self) -> str:
        return f"breaks off after {self.position}{'' if self._size is None else f' of {self._size}'} bytes"

    def _refusal(self, error: Exception, num_attempts: int) -> ValueError:
        if self._is_new:
            return unreachable(self.location, error, num_attempts)
        tried = f", and {num_attempts} attempts to continue failed" if num_attempts else ""
        return BrokenOff(
            self.location,
            self._happened,
            f"{said(error)}{tried}; start again when it can be reached, the same command continues",
        )


def _version(found: Any, fields: tuple[str, ...]) -> dict[str, str]:
    return {key: str(found[key]) for key in fields if found.get(key) is not None}


def _filesystem(location: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the file's path in it.

    Raises:
        ValueError: there is none.
    """
    url = whole(location)
    try:
        import fsspec
        from fsspec.config import conf

        options: dict[str, Any] = {}
        if location.startswith(WEB):
            import aiohttp

            # aiohttp's own limit is 5 minutes for a whole answer; a corpus takes longer.
            patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=SILENCE_S)
            options["encoded"] = re.search("[^!-~]", url) is None  # sent byte for byte, as it may be signed
            given = conf.get(location.partition(":")[0], {}).get("client_kwargs", {})
            options["client_kwargs"] = {"timeout": patience, "auto_decompress": False, "trust_env": True, **given}
        filesystem, path = fsspec.url_to_fs(url, **options)
        return filesystem, path
    except ImportError as error:
        raise ValueError(f"{location}: a package is missing to read it: {error}") from error
    except ValueError as error:
        raise ValueError(f"{location}: cannot be opened: {error}; check data.sources") from error
    except Exception as error:
        raise unreachable(location, error, 0) from error
