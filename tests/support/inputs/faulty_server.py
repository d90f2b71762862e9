"""A web server on loopback that follows a program of faults, and the clock of whoever reads from it.

No test waits: a server that stalls turns the clock of the reading side until that gives up, and so does every pause
between two attempts.
"""

import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from httpcore2 import ReadTimeout
from httpcore2._backends.sync import SyncStream

from data.transport import retries

MODIFIED = "Sat, 21 Nov 2026 10:00:0{} GMT"


class Clock:
    """The time by which a remote reading waits and gives up: that of httpx2's sockets, and of the pauses.

    Args:
        patch: undoes it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        """Seconds of each pause so far."""
        self._ahead_s = 0.0
        self._read = SyncStream.read
        patch.setattr(SyncStream, "read", lambda stream, size, timeout=None: self._received(stream, size, timeout))
        patch.setattr(retries, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.turn(seconds)

    def turn(self, seconds: float) -> None:
        self._ahead_s += seconds

    def _received(self, stream: SyncStream, size: int, timeout_s: float | None) -> bytes:
        """What a socket receives, while this clock is watched."""
        begin_s, connection = self._ahead_s, stream.get_extra_info("socket")
        while not select.select([connection], [], [], 0.005)[0]:
            if timeout_s is not None and self._ahead_s - begin_s > timeout_s:
                raise ReadTimeout("timed out")
        return self._read(stream, size, timeout_s)


@dataclass(frozen=True)
class Fault:
    """What happens to one answer."""

    kind: str
    """drop, reset, stall: after `at` bytes of the body. hang-up: no answer. An HTTP status, as digits. whole: 200 to a
    Range. part: 206 with `at` bytes. elsewhere: 206 from another byte. change: of the file, before the answer."""
    at: int = 0
    retry_after: str = ""


@dataclass
class Site:
    """What the server has, how it answers, and what it was asked."""

    content: bytes
    after: bytes = b""
    """What the file becomes when it changes."""
    faults: list[Fault] = field(default_factory=list)
    """Of one GET after the other; then all goes well."""
    head_faults: list[Fault] = field(default_factory=list)
    says_etag: str = '"{}"'
    """Its ETag, in which braces stand for a hash; empty for none."""
    says_modified: bool = False
    framing: str = "length"
    """How the size is told: length; chunked, not at all; close, not at all, and the connection's end is that of it."""
    ranges: bool = True
    clock: Clock | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Of each GET: Range, If-Range and the status of the answer."""
    paths: list[str] = field(default_factory=list)
    """Of each GET, as it was sent, with its query."""
    authorizations: list[str] = field(default_factory=list)
    """Header of each GET; empty without one."""
    num_heads: int = 0
    sent: int = 0
    """Bytes of bodies."""
    url: str = ""

    def change(self) -> None:
        self.content, self.after = self.after, self.content

    @property
    def version(self) -> dict[str, str]:
        mark = blake2b(self.content, digest_size=6).hexdigest()
        said = {"ETag": self.says_etag.format(mark)} if self.says_etag else {}
        return said | ({"Last-Modified": MODIFIED.format(int(mark, 16) % 10)} if self.says_modified else {})


class _Handler(BaseHTTPRequestHandler):
    site: Site

    def do_HEAD(self) -> None:
        self.site.num_heads += 1
        fault = self.site.head_faults.pop(0) if self.site.head_faults else None
        if not self._failed(fault):
            self._head(200, len(self.site.content), {})

    def do_GET(self) -> None:
        site = self.site
        site.paths.append(self.path)
        site.authorizations.append(self.headers.get("Authorization", ""))
        fault = site.faults.pop(0) if site.faults else None
        if fault and fault.kind == "change":
            site.change()
            fault = None
        content, size = site.content, len(site.content)
        asked, if_range = self.headers.get("Range", ""), self.headers.get("If-Range", "")
        begin, stop, status = 0, size, 200
        takes_part = asked and site.ranges and (not if_range or if_range in site.version.values())
        if takes_part and not (fault and fault.kind == "whole"):
            begin, status = int(asked.removeprefix("bytes=").split("-")[0]), 206
        if fault and fault.kind == "elsewhere" and status == 206:
            begin //= 2
        if fault and fault.kind == "part" and status == 206:
            stop = min(size, begin + max(1, fault.at))
        status = 416 if begin >= size > 0 else status
        site.asked.append((asked, if_range, fault.kind if fault and fault.kind.isdecimal() else str(status)))
        if self._failed(fault):
            return
        if status == 416:
            self._head(416, 0, {"Content-Range": f"bytes */{size}"})
            return
        named = {"Content-Range": f"bytes {begin}-{stop - 1}/{size}"} if status == 206 else {}
        self._head(status, stop - begin, named)
        breaks = fault is not None and fault.kind in ("drop", "reset", "stall")
        body = content[begin : min(stop, begin + fault.at) if breaks else stop]
        for at in range(0, len(body), 60_000):
            piece = body[at : at + 60_000]
            site.sent += len(piece)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if site.framing == "chunked" else piece)
        if not breaks:
            if site.framing == "chunked":
                self.wfile.write(b"0\r\n\r\n")
        elif fault.kind == "stall":
            self._stall()
        else:
            self._end(reset=fault.kind == "reset")

    def _failed(self, fault: Fault | None) -> bool:
        """Whether the fault leaves nothing of the answer."""
        if fault is None:
            return False
        if fault.kind == "hang-up":
            self._end(reset=False)
        elif fault.kind == "silence":
            self._stall()
        elif fault.kind.isdecimal():
            self.send_response(int(fault.kind))
            self.send_header("Content-Length", "0")
            if fault.retry_after:
                self.send_header("Retry-After", fault.retry_after)
            self.end_headers()
        else:
            return False
        return True

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | self.site.version).items():
            self.send_header(name, value)
        if self.site.framing == "length":
            self.send_header("Content-Length", str(size))
        elif self.site.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
        self.end_headers()

    def _stall(self) -> None:
        self.close_connection = True
        self.connection.settimeout(0.01)
        assert self.site.clock is not None
        for _ in range(3000):  # until the other side has given up
            self.site.clock.turn(retries.SILENCE_S + 1)
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def _end(self, *, reset: bool) -> None:
        self.close_connection = True
        if reset:  # without the orderly end of a connection
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def handle(self) -> None:
        with suppress(OSError):  # the other side has closed, or was reset
            super().handle()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        super().__init__(address, handler)
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def let_go(self) -> None:
        """Of connections that are kept for more requests."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(site: Site, port: int = 0) -> Iterator[Site]:
    """Serve it at ``site.url``."""
    version = "HTTP/1.0" if site.framing == "close" else "HTTP/1.1"
    handler = type("Handler", (_Handler,), {"site": site, "protocol_version": version})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}/proteins.fasta"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        server.let_go()
        thread.join()
