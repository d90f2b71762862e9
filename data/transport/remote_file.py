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
from data.transport.attempts import SILENCE_S, WEB, Attempts, answered, said, tell_once, unreachable
from data.transport.broken_stream import BrokenOff, BrokenStream, Changed

_CONNECT_S = 30.0
"""How long connecting may take."""
_READ_BYTES = 1 << 17
"""How many bytes of a web page are read at a time; aiohttp reads twice as much ahead."""
_VERSION_FIELDS = (
    *("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "updated", "mtime", "created"),
    *("generation", "md5Hash", "Content-MD5", "checksum"),
)


class RemoteFile:
    """One file at a URL.

    Args:
        location: the URL, whole or as it is shown.
    """

    def __init__(self, location: str) -> None:
        self.location = remembered(location, "a source")
        self.is_web = location.startswith(WEB)
        self.total: int | None = None
        """Bytes of the file, by the headers of the first answer with content."""
        self.answered_version: dict[str, str] | None = None
        """ETag and Last-Modified of the first answer with content, as far as the server sends them."""
        self.ranges = True
        """Whether the server can be asked for a part of the file."""

    @property
    def num_bytes(self) -> int | None:
        """Its size; None if the server does not report it.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        size = self._info.get("size")
        return None if size is None else int(size)

    @property
    def version(self) -> list[str]:
        """The version that the server reports, as ``field=value``; empty if it reports none.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        return _version(self._info)

    def open(self, offset: int) -> "RemoteReader":
        """A reader of its bytes from `offset` on, or from 0 if the server sends only whole files.

        Raises:
            ValueError: it does not exist or cannot be reached.
        """
        if self.num_bytes is not None and offset > self.num_bytes:  # raises if the file does not exist
            offset = 0
        return RemoteReader(self, offset)

    def connect(self, offset: int, *, again: bool) -> tuple[Any, int]:
        """An open file of fsspec, and the offset at which it stands: `offset` or 0.

        Args:
            offset: where reading should begin.
            again: whether a part of the file was read before.

        Raises:
            Changed: the file changed since it was first opened.
            Exception: whatever its library raises.
        """
        filesystem, path = self._filesystem
        if not self.is_web:
            if again:
                self._require_same_info()
            file = filesystem.open(path, "rb")
            return file, file.seek(offset) if offset and file.seekable() else 0
        # The whole rest is one streamed answer: single pieces would need a server that supports ranges. Compression
        # during the transfer would make the size differ from the announced one.
        headers = {**filesystem.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
        if offset and self.ranges:
            headers["Range"] = f"bytes={offset}-"
            if again and (validator := self._validator()):
                headers["If-Range"] = validator
        try:
            # Given any size, fsspec does not ask the server for it first.
            file = filesystem.open(path, "rb", block_size=0, size=-1, headers=headers)
        except Exception as error:
            if getattr(error, "status", 0) == 416:  # no such part, for example if only the end of the answer was lost
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
        """Whether the server's answers show that two of them are of the same file."""
        return self._validator() is not None if self.is_web else bool(self.version)

    def _validator(self) -> str | None:
        """The value for If-Range, which must not be a weak ETag (RFC 9110, 13.1.5)."""
        version = self.answered_version or {}
        etag = version.get("ETag", "W/")
        return version.get("Last-Modified") if etag.startswith("W/") else etag

    def _checked(self, response: Any, offset: int) -> int:
        """The offset at which an answer begins, after a check that it is of the same file as the answers before."""
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
        """The error for a file that is no longer the one that was opened."""
        return Changed(self.location, "changed while it was read", "the same command reads it again")

    def _require_same_info(self) -> None:
        filesystem, path = self._filesystem
        filesystem.invalidate_cache()
        info = filesystem.info(path)
        if (info.get("size"), _version(info)) != (self._info.get("size"), self.version):
            raise self.changed()

    @cached_property
    def _filesystem(self) -> tuple[Any, str]:
        url = whole(self.location)
        try:
            import fsspec
            from fsspec.config import conf

            options: dict[str, Any] = {}
            if self.is_web:
                import aiohttp

                # aiohttp's own limit is 5 minutes for a whole answer; a corpus takes longer.
                patience = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=SILENCE_S)
                options["encoded"] = re.search("[^!-~]", url) is None  # sent byte for byte, as it may be signed
                given = conf.get(self.location.partition(":")[0], {}).get("client_kwargs", {})
                options["client_kwargs"] = {"timeout": patience, "auto_decompress": False, "trust_env": True, **given}
            filesystem, path = fsspec.url_to_fs(url, **options)
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
    """The bytes of a file at a URL, from an offset on.

    Args:
        file: the file to read.
        offset: where to begin. If the server sends only whole files, it begins at 0; `position` is the actual place.

    Raises:
        ValueError: it does not exist or cannot be reached.
    """

    def __init__(self, file: RemoteFile, offset: int) -> None:
        self.position = offset
        """Offset in the file of the next byte to be read."""
        self._remote = file
        self._begin = offset
        self._checksum = 0
        """CRC-32 of the bytes from `_begin` to `position`."""
        self._connection: Any = None
        self._was_connected = False
        self._lost: Exception | None = None
        """The error that ended the connection, kept until the bytes that came before it are handed out."""
        self._attempts = Attempts(file.location)
        self._retrying(self._connect)

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size` of them; empty at the end.

        Raises:
            BrokenOff: the connection was lost and cannot be opened again.
            Changed: the file changed since it was opened.
        """
        content: bytes = self._retrying(lambda: self._next(size))
        self._checksum = zlib.crc32(content, self._checksum)
        self.position += len(content)
        self._attempts.made = 0
        return content

    def close(self) -> None:
        """Close the connection."""
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
        """The bytes that arrived before a connection was lost: aiohttp raises the loss before it returns them."""
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
        tried = f", and {self._attempts.made} attempts to continue failed" if self._attempts.made else ""
        return BrokenOff(
            self._remote.location,
            self._happened,
            f"{said(error)}{tried}; start again when it can be reached, the same command continues",
        )


def _version(info: dict[str, Any]) -> list[str]:
    return [f"{key}={info[key]}" for key in _VERSION_FIELDS if info.get(key) is not None]
