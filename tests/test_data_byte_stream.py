"""Bytes of a source: every place and compression gives the same ones, and none that end early, or never."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem

from data.byte_stream import BrokenStream, ByteStream
from data.settings import IngestSettings

LIMITS = IngestSettings()
TEXT = np.random.default_rng(0).integers(0, 256, 700_000, np.uint8).tobytes() + b"ACDEFGHIKLMNPQRSTVWY\n" * 60_000
HEX = TEXT[:100_000].hex().encode()
REPEATS = b">a\n" + b"M" * (1 << 20)


def bgzip(content: bytes) -> bytes:
    """Blocks of at most 64 kB with their sizes in an extra field, and an empty block at the end (SAM format, 4.1)."""
    blocks = []
    for at in range(0, len(content), 65_280):
        part = content[at : at + 65_280]
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(part) + packer.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(5) + b"\xff\x06\x00BC\x02\x00" + struct.pack("<H", len(packed) + 25)
        blocks.append(head + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks) + bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def zstd(content: bytes, **options: int | bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(content)


def framed(content: bytes) -> bytes:
    """Frames of every kind: sized, unsized, with a checksum, empty; and ones that hold no data (RFC 8878, 3.1.2)."""
    third = len(content) // 3
    packer = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    unsized = packer.compress(content[third : 2 * third]) + packer.flush()
    skipped = b"\x5a\x2a\x4d\x18" + struct.pack("<I", 1_000_000) + bytes(1_000_000)
    return (
        skipped + zstd(content[:third], level=1) + zstd(b"") + skipped + unsized + zstd(content[2 * third :], level=9)
    )


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "gzip members": lambda c: gzip.compress(c[:99]) + gzip.compress(b"") + gzip.compress(c[99:]),
    "gzip filled with zeros": lambda c: gzip.compress(c[:-1]) + bytes(1000) + gzip.compress(c[-1:]) + bytes(700_000),
    "gzip with a name": lambda c: b"\x1f\x8b\x08\x08" + bytes(6) + b"a name\0" + gzip.compress(c)[10:],
    "bgzip": bgzip,
    "zstd": zstd,
    "zstd frames": framed,
    "zstd with a checksum": lambda c: zstd(c, write_checksum=True),
}


def written(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    return str(path)


def read(location: str, offset: int = 0, limits: IngestSettings = LIMITS) -> bytes:
    chunks = list(ByteStream(location, limits).chunks(offset))
    assert all(0 < len(chunk) < 1 << 21 for chunk in chunks)
    assert all(len(chunk) >= 1 << 20 for chunk in chunks[1:-1])
    return b"".join(chunks)


@pytest.mark.parametrize("packed", PACKED)
def test_compression_is_told_by_content(tmp_path: Path, packed: str) -> None:
    stored = PACKED[packed](TEXT)
    path = written(tmp_path, stored)
    for offset in (0, 1, 123_456, 700_003, len(TEXT) - 1, len(TEXT)):
        assert read(path, offset) == TEXT[offset:]
    stream = ByteStream(path, LIMITS)
    progress = [stream.bytes_read for _ in stream.chunks()]
    assert progress == sorted(progress)
    assert 0 < progress[0]
    assert stream.bytes_read == stream.num_bytes == len(stored)
    with pytest.raises(ValueError, match=r"a.bin: ends 5 bytes before the place up to which it was read before"):
        read(path, len(TEXT) + 5)


def test_small_and_empty(tmp_path: Path) -> None:
    for content in (b"", b"\n", b">", b"\x1f", b"\x28\xb5\x2f"):
        assert read(written(tmp_path, content)) == content
    for pack in (gzip.compress, zstd, bgzip):
        assert read(written(tmp_path, pack(b""))) == b""
        assert read(written(tmp_path, pack(b"M"))) == b"M"


@pytest.mark.parametrize("packed", ["gzip", "gzip with a name", "zstd", "zstd with a checksum"])
def test_no_cut_goes_unseen(tmp_path: Path, packed: str) -> None:
    stored = PACKED[packed](TEXT[690_000:712_000])
    for cut in sorted({5, 6, 9, 17, 18, len(stored) // 2, *range(len(stored) - 30, len(stored))}):
        with pytest.raises(BrokenStream) as caught:
            read(written(tmp_path, stored[:cut]))
        said = f"the {packed[:4]} stream ends early: the file was cut short; copy or download it again"
        assert str(caught.value) == f"{tmp_path}/a.bin: {said}"


def test_cuts_inside_the_last_member(tmp_path: Path) -> None:
    for pack in (lambda c: gzip.compress(c[:99]) + gzip.compress(c[99:]), framed):
        stored = pack(TEXT[:9000])
        for cut in range(len(stored) - 2500, len(stored), 31):
            with pytest.raises(BrokenStream, match="ends early"):
                read(written(tmp_path, stored[:cut]))


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (gzip.compress(TEXT)[:-5] + b"\0" * 5, "checksum"),
        (gzip.compress(TEXT) + b"not gzip", "what follows a gzip member is none"),
        (b"\x1f\x8b\x07" + gzip.compress(TEXT)[3:], "cannot be read"),
        (zstd(TEXT, write_checksum=True)[:-4] + b"\0" * 4, "checksum"),
        (zstd(TEXT) + b"not zstd", "what follows a zstd frame is none"),
        (zstd(HEX)[:14] + b"\xff" * 40 + zstd(HEX)[54:], "cannot be read"),
    ],
    ids=["gzip checksum", "behind gzip", "gzip method", "zstd checksum", "behind zstd", "zstd content"],
)
def test_damage(tmp_path: Path, stored: bytes, said: str) -> None:
    with pytest.raises(BrokenStream, match=said) as caught:
        read(written(tmp_path, stored))
    assert "a.bin: cannot be read: " in str(caught.value)
    assert str(caught.value.at("in record 3")).startswith(f"{tmp_path}/a.bin: cannot be read, in record 3: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", content)
    return archive.getvalue()


@pytest.mark.parametrize(("name", "pack"), [("bzip2", bz2.compress), ("xz", lzma.compress), ("zip", zipped)])
def test_other_compressions(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError, match=rf"a.bin: is a {name} file; plain text, gzip \(bgzip\) and zstd are read"):
        read(written(tmp_path, pack(b">a\nM\n")))


def test_places_that_are_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(ValueError, match=r"none: no such file; check data.sources"):
        read(missing)
    with pytest.raises(ValueError, match=r"none: No such file or directory; check data.sources"):
        ByteStream(missing, LIMITS).stamp()
    with pytest.raises(BrokenStream, match=r"cannot be read: .*directory"):
        read(str(tmp_path))
    with pytest.raises(ValueError, match=r"nowhere://a: cannot be opened: Protocol not known: nowhere; check data.sou"):
        read("nowhere://a")
    with pytest.raises(ValueError, match=r"memory://none: no such file; check data.sources"):
        read("memory://none")
    with pytest.raises(ValueError, match=r"memory://none: no such file"):
        ByteStream("memory://none", LIMITS).stamp()


def test_stamp_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, b"abc")
    link = tmp_path / "link"
    link.symlink_to(path)
    stamp = ByteStream(str(link), LIMITS).stamp()
    assert stamp == [path, 3, os.stat(path).st_mtime_ns]
    os.utime(path, ns=(1, 1))
    assert ByteStream(path, LIMITS).stamp() != stamp


def test_pipes(tmp_path: Path) -> None:
    program = (
        "import sys; from data.byte_stream import ByteStream; from data.settings import IngestSettings\n"
        "stream = ByteStream('-', IngestSettings())\n"
        "assert (stream.num_bytes, stream.stamp(), stream.name) == (None, ['-'], 'standard input')\n"
        "print(sum(map(len, stream.chunks())), stream.bytes_read)"
    )
    for stored in (TEXT, gzip.compress(TEXT), b""):
        done = subprocess.run([sys.executable, "-c", program], input=stored, capture_output=True, check=True)
        assert done.stdout.split() == [b"%d" % (len(TEXT) if stored else 0), b"%d" % len(stored)]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(gzip.compress(TEXT)))
    writer.start()
    assert read(str(fifo)) == TEXT
    writer.join()


def test_caps(tmp_path: Path) -> None:
    small = written(tmp_path, gzip.compress(b"M" * (15 << 20)))  # a thousandfold, but too little to judge by
    assert len(read(small)) == 15 << 20
    members = gzip.compress(REPEATS) * 40
    assert len(members) * 500 < len(REPEATS) * 40
    bomb = written(tmp_path, members)
    with pytest.raises(BrokenStream, match=r"gzip bytes become more than \d+: data.ingest.max_inflation allows 250"):
        read(bomb)
    assert read(bomb, limits=IngestSettings(max_inflation=2000)) == REPEATS * 40
    with pytest.raises(BrokenStream, match=r"has more than 1000000 bytes: .*max_source_bytes"):
        read(bomb, limits=IngestSettings(max_source_bytes=1_000_000))
    plain = written(tmp_path, TEXT)
    for most in (len(TEXT), len(TEXT) - 1):
        limits = IngestSettings(max_source_bytes=most)
        if most == len(TEXT):
            assert read(plain, 700_123, limits) == TEXT[700_123:]
        else:
            with pytest.raises(BrokenStream, match=f"has more than {most} bytes"):
                read(plain, 700_123, limits)


BOMBS: dict[str, tuple[bytes, dict[str, float], str]] = {
    "gzip": (gzip.compress(REPEATS) * 1024, {}, "max_inflation"),
    "zstd": (zstd(REPEATS) + zstd(b"M" * (1 << 26)) * 16, {}, "max_inflation"),
    "a line of 1 GB": (
        gzip.compress(REPEATS) + gzip.compress(REPEATS[3:]) * 1023,
        {"max_inflation": 1e6},
        "max_line_bytes",
    ),
    "a protein of 256 MB": (
        gzip.compress(REPEATS) + gzip.compress(b"M\n" * (1 << 19)) * 256,
        {"max_inflation": 1e6},
        "more than the 1000000 residues",
    ),
    "a header of 128 MB": (
        gzip.compress(REPEATS[:1] + REPEATS[3:]) + gzip.compress(REPEATS[3:]) * 128,
        {"max_inflation": 1e6, "max_line_bytes": 1 << 25},
        "max_line_bytes",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_is_bounded(tmp_path: Path, bomb: str) -> None:
    stored, limits, words = BOMBS[bomb]
    small = tmp_path / "small.fasta"
    small.write_bytes(b">a\nM\n")
    program = (
        "import resource, sys\n"
        "from data.fasta import FastaSource\n"
        "from data.settings import IngestSettings\n"
        "held = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        f"limits = IngestSettings(**{limits!r})\n"
        "list(FastaSource(sys.argv[1], 'refuse', limits).blocks())\n"
        "before = held()\n"
        "try:\n"
        "    blocks = FastaSource(sys.argv[2], 'refuse', limits).blocks()\n"
        "    said = [bad.reason for block in blocks for bad in block.rejected]\n"
        "except ValueError as error:\n"
        "    said = error\n"
        "print(held() - before, said)"
    )
    command = [sys.executable, "-c", program, str(small), written(tmp_path, stored)]
    grown, _, said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition(" ")
    assert words in said
    most = 160 if "header" in bomb or "line" in bomb else 64  # MB; a line may take max_line_bytes, and a copy of it
    assert int(grown) < most


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


@pytest.mark.parametrize(
    "habits", ["plain", "ranges", "chunked", "gz", "gz-ranges", "gz-chunked", "gz-encoded", "gz-encoded-chunked"]
)
def test_over_http(web: str, habits: str) -> None:
    url = f"{web}/{habits}"
    assert read(url) == TEXT
    assert read(url, 999_999) == TEXT[999_999:]
    stream = ByteStream(url, LIMITS)
    stored = len(gzip.compress(TEXT, mtime=0)) if "gz" in habits else len(TEXT)
    assert stream.num_bytes == (None if "chunked" in habits or "encoded" in habits else stored)
    assert stream.stamp()[:2] == [url, -1 if stream.num_bytes is None else stored]
    for _ in stream.chunks():
        pass
    assert stream.bytes_read == stored


def test_stamp_of_a_page(web: str) -> None:
    assert ByteStream(f"{web}/tag", LIMITS).stamp() == [f"{web}/tag", len(TEXT), 'ETag="v1"']


@pytest.mark.parametrize("habits", ["broken", "broken-chunked", "broken-gz", "broken-gz-chunked", "broken-ranges"])
def test_a_broken_connection_is_no_end(web: str, habits: str) -> None:
    for offset in (0, 800_000):
        with pytest.raises(BrokenStream, match=r"breaks off after \d+( of \d+)? bytes: .*; start again") as caught:
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
            ByteStream(nobody, LIMITS).stamp()


def test_any_other_file_system() -> None:
    for name, pack in PACKED.items():
        with fsspec.open(f"memory://{name}", "wb") as file:
            file.write(pack(TEXT))
        assert read(f"memory://{name}") == TEXT
        assert read(f"memory://{name}", 654_321) == TEXT[654_321:]
    url, size, created = ByteStream("memory://gzip", LIMITS).stamp()
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
            f"short://a: breaks off after {len(content)} of {len(content) + 1} bytes: there is more of it; start again"
        )
        with pytest.raises(BrokenStream) as caught:
            read("short://a")
        assert str(caught.value) == said


def test_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    pytest.importorskip("s3fs")
    import botocore.session

    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        client = botocore.session.get_session().create_client("s3")
        client.create_bucket(Bucket="proteins")
        client.put_object(Bucket="proteins", Key="a.fasta.gz", Body=gzip.compress(TEXT))
        tag = client.put_object(Bucket="proteins", Key="a.fasta", Body=TEXT)["ETag"]
        assert read("s3://proteins/a.fasta.gz") == read("s3://proteins/a.fasta") == TEXT
        assert read("s3://proteins/a.fasta", 1_000_000) == TEXT[1_000_000:]
        stamp = ByteStream("s3://proteins/a.fasta", LIMITS).stamp()
        assert stamp[:3] == ["s3://proteins/a.fasta", len(TEXT), f"ETag={tag}"]
        with pytest.raises(ValueError, match=r"s3://proteins/none: no such file; check data.sources"):
            read("s3://proteins/none")
        with pytest.raises(ValueError, match=r"s3://nobody/none: cannot be reached: .* bucket does not exist"):
            read("s3://nobody/none")
    finally:
        server.stop()
