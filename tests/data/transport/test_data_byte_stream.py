"""Bytes of a source: every compression gives the same ones, and none that end early, or never."""

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from data.transport.byte_stream import ByteStream
from data.transport.compression import CompressedStream, gunzip, unzstd
from data.transport.retries import StreamError
from support.inputs.packed_bytes import PACKED, TEXT, bgzip, framed, read, zstd
from support.inputs.protein_files import lower

HEX = TEXT[:100_000].hex().encode()
REPEATS = b">a\n" + b"M" * (1 << 20)


def written(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("packed", PACKED)
def test_compression_is_told_by_content(tmp_path: Path, packed: str) -> None:
    stored = PACKED[packed](TEXT)
    path = written(tmp_path, stored)
    for offset in (0, 1, 123_456, 700_003, len(TEXT) - 1, len(TEXT)):
        assert read(path, offset) == TEXT[offset:]
    stream = ByteStream(path)
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
        with pytest.raises(StreamError) as caught:
            read(written(tmp_path, stored[:cut]))
        said = f"the {packed[:4]} stream ends early, at byte {cut}: the file was cut short; copy or download it again"
        assert str(caught.value) == f"{tmp_path}/a.bin: {said}"


def test_cuts_inside_the_last_member(tmp_path: Path) -> None:
    for pack in (lambda c: gzip.compress(c[:99]) + gzip.compress(c[99:]), framed):
        stored = pack(TEXT[:9000])
        for cut in range(len(stored) - 2500, len(stored), 31):
            with pytest.raises(StreamError, match="ends early"):
                read(written(tmp_path, stored[:cut]))


def test_places_that_are_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(ValueError, match=r"none: no such file; check data.sources"):
        read(missing)
    with pytest.raises(ValueError, match=r"none: No such file or directory; check data.sources"):
        ByteStream(missing).stamp()
    with pytest.raises(StreamError, match=r"cannot be read: .*directory"):
        read(str(tmp_path))
    with pytest.raises(ValueError, match=r"nowhere://a: cannot be opened: Protocol not known: nowhere; check data.sou"):
        read("nowhere://a")
    with pytest.raises(ValueError, match=r"memory://none: no such file; check data.sources"):
        read("memory://none")
    with pytest.raises(ValueError, match=r"memory://none: no such file"):
        ByteStream("memory://none").stamp()


def test_stamp_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, b"abc")
    link = tmp_path / "link"
    link.symlink_to(path)
    stamp = ByteStream(str(link)).stamp()
    assert stamp == [path, 3, os.stat(path).st_mtime_ns]
    os.utime(path, ns=(1, 1))
    assert ByteStream(path).stamp() != stamp


def test_pipes(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(gzip.compress(TEXT)))
    writer.start()
    assert read(str(fifo)) == TEXT
    writer.join()


def test_caps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = written(tmp_path, gzip.compress(b"M" * (15 << 20)))  # a thousandfold, but too little to judge by
    assert len(read(small)) == 15 << 20
    members = gzip.compress(REPEATS) * 40
    assert len(members) * 500 < len(REPEATS) * 40
    bomb = written(tmp_path, members)
    with pytest.raises(StreamError, match=r"gzip bytes become more than \d+: at most 250 for one are read; unpack it"):
        read(bomb)
    lower(monkeypatch, inflation=2000)
    assert read(bomb) == REPEATS * 40
    lower(monkeypatch, size=1_000_000)
    with pytest.raises(StreamError, match=r"has more than 1000000 bytes: divide it into several sources"):
        read(bomb)
    plain = written(tmp_path, TEXT)
    for most in (len(TEXT), len(TEXT) - 1):
        lower(monkeypatch, size=most)
        if most == len(TEXT):
            assert read(plain, 700_123) == TEXT[700_123:]
        else:
            with pytest.raises(StreamError, match=f"has more than {most} bytes"):
                read(plain, 700_123)


@pytest.mark.parametrize(("pack", "unpack"), [(gzip.compress, gunzip), (zstd, unzstd)], ids=["gzip", "zstd"])
def test_much_is_unpacked_in_steps(pack: Callable[[bytes], bytes], unpack: Callable) -> None:
    chunks = list(unpack(CompressedStream("a", iter([pack(b"M" * (16 << 20))]))))
    assert b"".join(chunks) == b"M" * (16 << 20)
    assert max(map(len, chunks)) <= 1 << 19


BOMBS: dict[str, tuple[bytes, dict[str, int], str]] = {
    "gzip": (gzip.compress(REPEATS) * 1024, {}, "at most 250 for one"),
    "zstd": (zstd(REPEATS) + zstd(b"M" * (1 << 26)) * 16, {}, "at most 250 for one"),
    "a line of 1 GB": (
        gzip.compress(REPEATS) + gzip.compress(REPEATS[3:]) * 1023,
        {"transport.byte_stream.MAX_INFLATION": 10**6},
        "break the line",
    ),
    "a protein of 256 MB": (
        gzip.compress(REPEATS) + gzip.compress(b"M\n" * (1 << 19)) * 256,
        {"transport.byte_stream.MAX_INFLATION": 10**6},
        "more than the 1000000 that",
    ),
    "a header of 128 MB": (
        gzip.compress(REPEATS[:1] + REPEATS[3:]) + gzip.compress(REPEATS[3:]) * 128,
        {"transport.byte_stream.MAX_INFLATION": 10**6, "sources.fasta_text.MAX_LINE_BYTES": 1 << 25},
        "break the line",
    ),
}


SHOWN = "a line of 1 GB"
REST = [pytest.param(bomb, marks=pytest.mark.slow) for bomb in BOMBS if bomb != SHOWN]


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [SHOWN, *REST])
def test_memory_is_bounded(tmp_path: Path, bomb: str) -> None:
    stored, bounds, words = BOMBS[bomb]
    small = tmp_path / "small.fasta"
    small.write_bytes(b">a\nM\n")
    program = (
        "import resource, sys\n"
        "import data.sources.fasta_text\n"
        "import data.transport.byte_stream\n"
        "from data.sources.fasta import FastaSource\n"
        "held = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        + "".join(f"data.{name} = {value}\n" for name, value in bounds.items())
        + "list(FastaSource(sys.argv[1], 'refuse').blocks())\n"
        "before = held()\n"
        "try:\n"
        "    blocks = FastaSource(sys.argv[2], 'refuse').blocks()\n"
        "    said = [bad.reason for block in blocks for bad in block.rejected]\n"
        "except ValueError as error:\n"
        "    said = error\n"
        "print(held() - before, said)"
    )
    command = [sys.executable, "-c", program, str(small), written(tmp_path, stored)]
    grown, _, said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition(" ")
    assert words in said
    most = 160 if "header" in bomb or "line" in bomb else 64  # MB; a line may take MAX_LINE_BYTES, and a copy of it
    assert int(grown) < most
