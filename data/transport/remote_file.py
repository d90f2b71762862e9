"""A file behind a URL, as stored: what a server says of it, and its bytes, from any of them on.

In: a URL that fsspec opens. Out: size, version, bytes. Kept: nothing.

A connection that fails is made anew and reading goes on at the byte that was reached (`data.transport.attempts`). What
was read before must belong to the same file as what comes after. Where the server gives a version (a strong ETag or
Last-Modified; for an object store what its library knows), the versions must agree; where it gives none, or sends the
file from its beginning, what was read is read again and compared.
"""

import re
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

from data.transport.attempts import SILENCE_S, WEB, Attempts, answered, said, tell_once, unreachable
from data.transport.broken_stream import BrokenOff, BrokenStream, Changed

_CONNECT_S = 30.0
"""How long it may take to be connected."""
_READ_BYTES = 1 << 17
"""Of a web page at a time; aiohttp reads twice as much ahead."""
_VERSION_FIELDS = (
    *("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
    *("generation", "md5Hash", "Content-MD5", "checksum"),
)


class RemoteFile:
    """One file behind a URL.

    Args:
        location: the URL.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.is_web = location.startswith(WEB)
        self.total: int | None = None
        """Bytes of the file, as the answers to reading say."""
        self.answered_version: dict[str, str] | None = None
        """ETag and Last-Modified of the first answer to reading it, by name, as far as the server says them."""
        self.ranges = True
        """Whether the server may be asked for a part of the file."""

    @property
    def num_bytes(self) -> int | None:
        """Its size; None where the server does not say.

        Raises:
            ValueError: it is not there, or not reachable.
        """
        size = self._info.get("size")
        return None if size is None else int(size)

    @property
    def version(self) -> list[str]:
        """What tells its version, as ``field=value``; empty where the server says nothing.

        Raises:
            ValueError: it is not there, or not reachable.
        """
        return _version(self._info)

    def open(self, offset: int) -> "RemoteReader":
        """Its bytes from `offset` on, or from 0 where the server sends no part of a file.

        Raises:
            ValueError: it is not there, or not reachable.
        """
        if self.num_bytes is not None and offset > self.num_bytes:  # also asks whether it is there
            offset = 0
        return RemoteReader(self, offset)

    def connect(self, offset: int, *, again: bool) -> tuple[Any, int]:
        """An open file of fsspec, and the place at which it stands: `offset` or 0.

        Args:
            offset: where to.
            again: whether it was read before.

        Raises:
            Changed: it is another one than before.
            Exception: whatever its library raises.
        """
        filesystem, path = self._filesystem
        if not self.is_web:
            if again:
                self._require_same_info()
            file = filesystem.open(path, "rb")
            return file, file.seek(offset) if offset and file.seekable() else 0
        # One streamed answer: pieces asked for one by one need a server that knows ranges. Packing on the way would
        # make its size another than the one announced.
        headers = {**filesystem.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        if offset and self.ranges:
            headers["Range"] = f"bytes={offset}-"
            if again and (validator := self._validator()):
                headers["If-Range"] = validator
        try:
            # Any size keeps fsspec from asking for one first.
            file = filesystem.open(path, "rb", block_size=0, size=-1, headers=headers)
        except Exception as error:
            if getattr(error, "status", 0) == 416:  # there is no such part, as where only the end was lost
                self.ranges = False
            raise
        answered(self.location)
        try:
            return file, self._checked(file.r, offset)
        except BaseException:
            file.close()
            raise

    @property
    def has_version(self) -> bool:
        """Whether the server vouches that two answers are of one file."""
        return self._validator() is not None if self.is_web else bool(self.version)

    def _validator(self) -> str | None:
        """What may stand in If-Range: no weak ETag (RFC 9110, 13.1.5)."""
        version = self.answered_version or {}
        etag = version.get("ETag", "W/")
        return version.get("Last-Modified") if etag.startswith("W/") else etag

    def _checked(self, response: Any, offset: int) -> int:
        """Where the bytes of an answer begin, which must be of the same file as those of the answers before."""
        begin, total = 0, None
        if response.status == 206:
            named = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if named is None or int(named[1]) != offset:
                self.ranges = False
                raise ConnectionError("the server sends another part of the file than it was asked for")
            begin, total = offset, None if named[2] == "*" else int(named[2])
        elif "Content-Length" in response.headers and not response.headers.get("Content-Encoding"):
            total = int(response.headers["Content-Length"])
        version = {key: response.headers[key] for key in ("ETag", "Last-Modified") if key in response.headers}
        if self.answered_version is None:
            self.total, self.answered_version = self.num_bytes if total is None else total, version
            if self.total is None and "Transfer-Encoding" not in response.headers:
                tell_once(
                    self.location,
                    "the server does not say the size of this file: if the connection ends early, that is not noticed, "
                    "unless the file is compressed",
                )
            return begin
        both = [key for key in ("ETag", "Last-Modified") if key in version and key in self.answered_version]
        if both and version[both[0]] != self.answered_version[both[0]]:
            raise self.changed()
        if None not in (total, self.total) and total != self.total:
            raise self.changed()
        return begin

    def changed(self) -> Changed:
        """The error."""
        return Changed(self.location, "changed while it was read", "the same command reads it anew")

    def _require_same_info(self) -> None:
        filesystem, path = self._filesystem
        filesystem.invalidate_cache()
        info = filesystem.info(path)
        if (info.get("size"), _version(info)) != (self._info.get("size"), self.version):
            raise self.changed()

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        try:
            import fsspec
            from fsspec.config import conf

            options: dict[str, Any] = {}
            if self.is_web:
                import aiohttp

                # aiohttp's own limit is 5 minutes for a whole answer, which no corpus keeps.
                patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=SILENCE_S)
                given = conf.get(self.location.partition(":")[0], {}).get("client_kwargs", {})
                options["client_kwargs"] = {"timeout": patience, "auto_decompress": False, **given}
            filesystem, path = fsspec.url_to_fs(self.location, **options)
            return filesystem, path
        except ImportError as error:
            raise ValueError(f"{self.location}: a package is missing to read it: {error}") from error
        except ValueError as error:
            raise ValueError(f"{self.location}: cannot be opened: {error}; check data.sources") from error
        except Exception as error:
            raise unreachable(self.location, error, 0) from error

    @cached_property
    def _info(self) -> dict[str, Any]:
        filesystem, path = self._filesystem
        attempts = Attempts(self.location)
        while True:
            try:
                info: dict[str, Any] = filesystem.info(path)
            except Exception as error:
                if not (self.is_web and attempts.may_help(error)):
                    raise unreachable(self.location, error, attempts.made) from error
                attempts.wait(error, "cannot be reached")
            else:
                break
        if self.is_web:
            answered(self.location)
            if info.get("size") is None and not _version(info):
                tell_once(
                    self.location,
                    "the server says neither size nor version of this file: if it changes, that is not noticed, and a "
                    "store that was built from it is used again; an early end is noticed only where the answer comes "
                    "in chunks or the file is compressed",
                )
        return info


class RemoteReader:
    """The bytes of a file behind a URL, from one of them on.

    Args:
        file: what is read.
        offset: from where on; `position` says where it begins, which may be 0 instead.

    Raises:
        ValueError: it is not there, or not reachable.
    """

    def __init__(self, file: RemoteFile, offset: int) -> None:
        self.position = offset
        """How many bytes of the file lie before the next one that is read."""
        self._remote = file
        self._begin = offset
        self._checksum = 0
        """Of the bytes from `_begin` to `position`."""
        self._connection: Any = None
        self._was_connected = False
        self._lost: Exception | None = None
        """What ended the connection, while there was still something to give of it."""
        self._attempts = Attempts(file.location)
        self._retrying(self._connect)

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` of them; empty at the end.

        Raises:
            BrokenOff: the connection was lost, and it cannot be made anew.
            Changed: the file is another one than the one that was begun.
        """
        content: bytes = self._retrying(lambda: self._next(size))
        self._checksum = zlib.crc32(content, self._checksum)
        self.position += len(content)
        self._attempts.made = 0
        return content

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _next(self, size: int) -> bytes:
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error
        if self._connection is None:
            self._connect()
        try:
            content: bytes = self._connection.read(min(size, _READ_BYTES) if self._remote.is_web else size) or b""
        except Exception as error:
            content = self._had_come() if self._remote.is_web else b""
            if not content:
                raise
            self._lost = error
        if not content and self._expected is not None and self.position < self._expected:
            raise ConnectionError("there is more of it")
        return content

    def _had_come(self) -> bytes:
        """What came before a connection was lost: aiohttp raises the loss first."""
        stream = self._connection.r.content
        if stream.exception() is None:
            return b""
        stream.set_exception(None)
        content: bytes = stream.read_nowait(-1)
        return content

    @property
    def _expected(self) -> int | None:
        return self._remote.total if self._remote.is_web else self._remote.num_bytes

    def _connect(self) -> None:
        remote = self._remote
        if not self._was_connected:
            self._connection, self._begin = remote.connect(self.position, again=False)
            self.position, self._was_connected = self._begin, True
            return
        from_here = remote.has_version and remote.ranges
        self._connection, at = remote.connect(self.position if from_here else self._begin, again=True)
        checksum, compared = 0, at <= self._begin
        while at < self.position:
            content = self._connection.read(min(_READ_BYTES, self.position - at))
            if not content:
                raise ConnectionError("it ends before the place that was reached")
            checksum = zlib.crc32(content[max(0, self._begin - at) :], checksum)
            at += len(content)
        if compared and checksum != self._checksum:
            raise remote.changed()

    def _retrying(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except Exception as error:
                self.close()
                if isinstance(error, BrokenStream):
                    raise
                if not (self._was_connected or self._remote.is_web) or not self._attempts.may_help(error):
                    raise self._refusal(error) from error
                self._attempts.wait(error, self._happened if self._was_connected else "cannot be reached")

    @property
    def _happened(self) -> str:
        return f"breaks off after {self.position}{'' if self._expected is None else f' of {self._expected}'} bytes"

    def _refusal(self, error: Exception) -> ValueError:
        if not self._was_connected:
            return unreachable(self._remote.location, error, self._attempts.made)
        tried = f", and {self._attempts.made} attempts to go on failed" if self._attempts.made else ""
        return BrokenOff(
            self._remote.location,
            self._happened,
            f"{said(error)}{tried}; start again when it can be reached, the same command goes on",
        )


def _version(info: dict[str, Any]) -> list[str]:
    return [f"{key}={info[key]}" for key in _VERSION_FIELDS if info.get(key) is not None]
