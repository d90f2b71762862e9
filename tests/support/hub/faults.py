"""What a local hub does wrong, by name: statuses, lost connections, clients that are killed while it answers."""

import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

STATUSES = ("401", "403", "409", "412", "429", "500", "503")
RESET_S = 7
"""Seconds after which a 429 allows requests again."""

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass
class Fault:
    """What happens to one request, and from then on to each of its kind.

    Its name is a status; "cut", the connection is reset after `at` bytes of the request, which is not carried out;
    "lost", it is carried out, and the connection ends after `at` bytes of the answer; "killed", the client is killed
    before the request is carried out; "killed late", after that, before the answer.
    """

    name: str
    request: int = 0
    """Number of the first request that it happens to, from 0."""
    at: int = 0
    times: int = 1_000_000
    """How often it happens."""
    kind: tuple[str, str] | None = None
    """Method and kind of the request that it happened to first; None until then."""

    def meets(self, number: int, kind: tuple[str, str]) -> bool:
        """Whether it happens to this request."""
        if self.kind is None and number >= self.request:
            self.kind = kind
        if self.kind != kind or self.times < 1:
            return False
        self.times -= 1
        return True


@dataclass
class Faulty:
    """A WSGI application with faults.

    Args:
        application: what works.
        kind_of: the kind of a request, from its environment.
    """

    application: Application
    kind_of: Callable[[dict[str, Any]], str]
    fault: Fault | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and kind of each request since `begin`."""
    victims: "Queue[int]" = field(default_factory=Queue)
    """Process number of the client that a fault kills."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, fault: Fault | None = None) -> None:
        """Count requests from 0, with another fault or none."""
        with self._lock:
            self.fault = fault
            self.requests.clear()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = environ["REQUEST_METHOD"], self.kind_of(environ)
        with self._lock:
            number = len(self.requests)
            self.requests.append(kind)
            fault = self.fault if self.fault and self.fault.meets(number, kind) else None
        if fault is None:
            return self.application(environ, start_response)
        if fault.name.isdecimal():
            _drain(environ)
            return _refuse(int(fault.name), start_response)
        if fault.name == "cut":
            _drain(environ, fault.at)
            return _hang_up(environ, start_response, b"", reset=True)
        if fault.name == "killed":
            _drain(environ)
            os.kill(self.victims.get(timeout=20), signal.SIGKILL)
            return _hang_up(environ, start_response, b"", reset=True)
        answer = _answer(self.application, environ)
        if fault.name == "killed late":
            os.kill(self.victims.get(timeout=20), signal.SIGKILL)
            return _hang_up(environ, start_response, b"", reset=True)
        assert fault.name == "lost", fault.name
        return _hang_up(environ, start_response, answer[: fault.at], reset=False)


def _refuse(status: int, start_response: Any) -> Iterable[bytes]:
    body = json.dumps({"error": f"fault {status}"}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if status == 429:
        headers += [("RateLimit", f'"api";r=0;t={RESET_S}'), ("RateLimit-Policy", '"fixed window";"api";q=500;w=300')]
    start_response(f"{status} Fault", headers)
    return [body]


def _drain(environ: dict[str, Any], at_most: int = 1 << 40) -> None:
    """Read the body of a request, or its first bytes."""
    if not environ.get("wsgi.input_terminated"):  # then it is as long as it says, and more would not come
        at_most = min(at_most, int(environ.get("CONTENT_LENGTH") or 0))
    while at_most > 0 and (piece := environ["wsgi.input"].read(min(at_most, 1 << 20))):
        at_most -= len(piece)


def _answer(application: Application, environ: dict[str, Any]) -> bytes:
    """The whole answer of an application, as it would be on the wire."""
    heads: list[bytes] = []

    def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
        heads.append("\r\n".join(lines).encode())

    body = b"".join(application(environ, start))
    return heads[0] + body


def _hang_up(environ: dict[str, Any], start_response: Any, sent: bytes, *, reset: bool) -> Iterable[bytes]:
    """End the connection after these bytes; what the server then writes finds it closed."""
    connection: socket.socket = environ["werkzeug.socket"]
    with suppress(OSError):
        if sent:
            connection.sendall(sent)
        if reset:  # without the orderly end of a connection
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]
