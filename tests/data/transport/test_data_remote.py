"""Sources at a URL: web servers with their habits, an object store, and any file system of fsspec."""

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from data.transport.byte_stream import ByteStream
from data.transport.retries import StreamError
from support.inputs.faulty_server import Clock
from support.inputs.packed_bytes import PACKED, TEXT, read
from support.object_store.server import BUCKET, S3Server


class Server(BaseHTTPRequestHandler):
    """A web server with habits, one for each path."""

    protocol_version = "HTTP/1.1"
    content = TEXT

    def do_HEAD(self) -> None:
        self.answer(send=False)

    def do_GET(self) -> None:
        self.answer(send=True)

    def answer(self, send: bool) -> None:
        habits = self.path.strip("/").split("-")
        body = gzip.compress(self.content, mtime=0) if "gz" in habits else self.content
        status, begin = 200, 0
        if "missing" in habits or "forbidden" in habits:
            self.send_response(404 if "missing" in habits else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if "ranges" in habits and "Range" in self.headers:
            status, begin = 206, int(self.headers["Range"].removeprefix("bytes=").rstrip("-").split("-")[0])
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        if "encoded" in habits:  # as servers that know .gz announce a file that is stored packed
            self.send_header("Content-Encoding", "gzip")
        if "tag" in habits:
            self.send_header("ETag", '"v1"')
        rest = body[begin:]
        if "chunked" in habits:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if not send:
            return
        if "broken" in habits:
            rest = rest[: len(rest) // 2]
        if "chunked" in habits:
            for at in range(0, len(rest), 50_000):
                part = rest[at : at + 50_000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if "broken" not in habits:
                self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(rest)
        self.close_connection = "broken" in habits

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    "habits", ["plain", "ranges", "chunked", "gz", "gz-ranges", "gz-chunked", "gz-encoded", "gz-encoded-chunked"]
)
def test_over_http(web: str, habits: str) -> None:
    url = f"{web}/{habits}"
    assert read(url) == TEXT
    assert read(url, 999_999) == TEXT[999_999:]
    with pytest.raises(ValueError, match="ends 5 bytes before the place up to which it was read before"):
        read(url, len(TEXT) + 5)
    stream = ByteStream(url)
    stored = len(gzip.compress(TEXT, mtime=0)) if "gz" in habits else len(TEXT)
    assert stream.num_bytes == (None if "chunked" in habits or "encoded" in habits else stored)
    assert stream.stamp()[:2] == [url, -1 if stream.num_bytes is None else stored]
    for _ in stream.chunks():
        pass
    assert stream.bytes_read == stored


def test_stamp_of_a_page(web: str) -> None:
    assert ByteStream(f"{web}/tag").stamp() == [f"{web}/tag", len(TEXT), 'ETag="v1"']


@pytest.mark.parametrize("habits", ["broken", "broken-chunked", "broken-gz", "broken-gz-chunked", "broken-ranges"])
def test_a_broken_connection_is_no_end(web: str, habits: str) -> None:
    for offset in (0, 800_000):
        with pytest.raises(StreamError, match=r"breaks off after \d+( of \d+)? bytes: .*; start again") as caught:
            read(f"{web}/{habits}", offset)
        assert "\n" not in str(caught.value)


def test_pages_that_are_not_there(web: str) -> None:
    with pytest.raises(ValueError, match=r"/missing: no such file; check data.sources"):
        read(f"{web}/missing")
    with pytest.raises(ValueError, match=r"/forbidden: cannot be reached: 403.*check the address, network and creden"):
        read(f"{web}/forbidden")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}/a"
        with pytest.raises(ValueError, match=r"/a: cannot be reached: .*check the address, network"):
            read(nobody)
        with pytest.raises(ValueError, match=r"/a: cannot be reached: "):
            ByteStream(nobody).stamp()


def test_any_other_file_system() -> None:
    for name, pack in PACKED.items():
        with fsspec.open(f"memory://{name}", "wb") as file:
            file.write(pack(TEXT))
        assert read(f"memory://{name}") == TEXT
        assert read(f"memory://{name}", 654_321) == TEXT[654_321:]
    url, size, created = ByteStream("memory://gzip").stamp()
    assert (url, size) == ("memory://gzip", len(gzip.compress(TEXT)))
    assert str(created).startswith("created=")


def test_a_file_system_that_ends_early() -> None:
    class Short(MemoryFileSystem):
        protocol = "short"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("short:/")

        def info(self, path: str, **options: object) -> dict[str, object]:
            info = super().info(path, **options)
            return info | {"size": info["size"] + 1}

    fsspec.register_implementation("short", Short, clobber=True)
    for content in (TEXT, gzip.compress(TEXT)):
        Short().pipe_file("/a", content)
        said = (
            f"short://a: breaks off after {len(content)} of {len(content) + 1} bytes: there is more of it, and 5 "
            "attempts to continue failed; start again when it can be reached, the same command continues"
        )
        with pytest.raises(StreamError) as caught:
            read("short://a")
        assert str(caught.value) == said


def test_object_store() -> None:
    with S3Server() as server:
        server.put("a.fasta.gz", gzip.compress(TEXT))
        tag = server.put("a.fasta", TEXT)
        url = f"s3://{BUCKET}/a.fasta"
        assert read(f"{url}.gz") == read(url) == TEXT
        assert read(url, 1_000_000) == TEXT[1_000_000:]
        assert ByteStream(url).stamp()[:3] == [url, len(TEXT), f"ETag={tag}"]
        with pytest.raises(ValueError, match=rf"s3://{BUCKET}/none: no such file; check data.sources"):
            read(f"s3://{BUCKET}/none")
        with pytest.raises(ValueError, match=r"s3://nobody/none: cannot be reached: .* bucket does not exist"):
            read("s3://nobody/none")
