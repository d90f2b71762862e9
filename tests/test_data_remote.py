"""Sources behind a network: an HTTP server and an S3 server, both real and both on this machine."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from protein_files import (
    LETTERS,
    LIMITS,
    PROTEINS,
    contents,
    fasta,
    genpept,
    packed,
    stockholm,
    swiss_dat,
    table,
    uniprot_xml,
)

from data.block import Position, Source
from data.settings import CorpusSettings
from data.source import resolve

# One worker starts the servers, once.
pytestmark = pytest.mark.xdist_group("data_remote")

FILES: dict[str, bytes] = {
    **{f"x.fasta{packing}": packed(fasta(), packing) for packing in ("", ".gz", ".bgz", ".zst")},
    "x.xml.gz": packed(uniprot_xml(), ".gz"),
    "x.dat.zst": packed(swiss_dat(), ".zst"),
    "x.gp": genpept(),
    "x.sto.bgz": packed(stockholm(), ".bgz"),
    "x.csv.gz": packed(table(".csv"), ".gz"),
    **{f"x{suffix}": table(suffix) for suffix in (".parquet", ".csv", ".tsv", ".json", ".jsonl")},
}

NAMED = list(zip(PROTEINS, LETTERS, strict=True))
ANNOTATED = [(f"{name} {PROTEINS[name][0]}", letters) for name, letters in NAMED]


def expected(name: str) -> list[tuple[str, str]]:
    return NAMED if any(part in name for part in (".csv", ".tsv", ".json", ".parquet")) else ANNOTATED


class Handler(BaseHTTPRequestHandler):
    """``/range/NAME`` answers ranges, ``/plain/NAME`` does not, ``/cut/NAME`` closes in the middle of the body."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path, _, self.server.last_query = self.path.partition("?")
        _, way, name = path.split("/", 2)
        content = FILES.get(name)
        if way == "list":
            content = "".join(f'<a href="{file}">{file}</a>\n' for file in FILES).encode()
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range") if way == "range" else None
        begin, end = 0, len(content)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, end) if last else end
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        else:
            self.send_response(200)
        if way == "range":
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if body:
            self.wfile.write(content[begin:end] if way != "cut" else content[: len(content) // 2])
            self.close_connection = way == "cut"


@pytest.fixture(scope="module")
def http() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket that holds `FILES`, some of them in a folder; its server's address stands in the environment."""
    from moto.server import ThreadedMotoServer
    from s3fs import S3FileSystem

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "someone")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "something")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        S3FileSystem.clear_instance_cache()
        bucket = S3FileSystem()
        bucket.mkdir("proteins")
        for name, content in FILES.items():
            bucket.pipe(f"proteins/{name}", content)
        bucket.pipe("proteins/shards/1/a.fasta", fasta())
        bucket.pipe("proteins/shards/2/b.fasta.gz", packed(fasta(), ".gz"))
        yield "s3://proteins"
        S3FileSystem.clear_instance_cache()
    server.stop()


def sources(*named: str) -> tuple[Source, ...]:
    return resolve(CorpusSettings(sources=named), "refuse", LIMITS, Path("unused")).sources


def source(named: str) -> Source:
    (found,) = sources(named)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_file_from_a_server_with_ranges(http: str, name: str) -> None:
    found = source(f"{http}/range/{name}")
    assert contents(found) == expected(name)
    assert contents(found, Position(50)) == expected(name)[50:] or ".fasta" in name  # FASTA goes on by offset


@pytest.mark.parametrize("name", FILES)
def test_every_file_from_a_server_without_ranges(http: str, name: str) -> None:
    assert contents(source(f"{http}/plain/{name}")) == expected(name)


@pytest.mark.parametrize("way", ["range", "plain"])
@pytest.mark.parametrize("name", ["x.fasta", "x.fasta.gz", "x.fasta.bgz", "x.fasta.zst", "x.xml.gz"])
def test_reading_goes_on_behind_a_block(http: str, way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.entries.BLOCK_RECORDS", 10)
    found = source(f"{http}/{way}/{name}")
    for block in found.blocks():
        assert contents(found, block.end) == expected(name)[block.end.records :]


@pytest.mark.parametrize("name", ["none.fasta", "none.xml.gz", "none.parquet", "none.csv"])
def test_not_found(http: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{http}/range/{name}: "):
        contents(source(f"{http}/range/{name}"))
    with pytest.raises(ValueError, match=rf"{http}/range/{name}: "):
        source(f"{http}/range/{name}").stamp()


@pytest.mark.parametrize("name", ["x.fasta", "x.fasta.gz", "x.fasta.zst", "x.xml.gz", "x.gp", "x.csv", "x.parquet"])
def test_a_connection_that_breaks_in_the_middle(http: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "STREAMING_READ_MAX_RETRIES", 1)
    monkeypatch.setattr(datasets.config, "STREAMING_READ_RETRY_INTERVAL", 0)
    with pytest.raises(ValueError, match=rf"{http}/cut/{name}: "):
        contents(source(f"{http}/cut/{name}"))


def test_nobody_listens() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        port = server.server_port
    with pytest.raises(ValueError, match=rf"127\.0\.0\.1:{port}/x\.fasta: "):
        contents(source(f"http://127.0.0.1:{port}/x.fasta"))


def test_stamps_of_urls(http: str, s3: str) -> None:
    for place in (f"{http}/range", s3):
        stamps = [source(f"{place}/{name}").stamp() for name in ("x.fasta", "x.fasta.gz", "x.xml.gz", "x.csv")]
        assert len(set(map(str, stamps))) == 4
        assert stamps[0] == source(f"{place}/x.fasta").stamp()


def test_a_glob_over_a_web_page_of_links(http: str) -> None:
    found = sources(f"{http}/list/*.fasta.*")
    assert [one.name for one in found] == [f"{http}/list/x.fasta.{packing}" for packing in ("bgz", "gz", "zst")]


@pytest.mark.parametrize("name", [name for name in FILES if name != "x.csv.gz"])
def test_every_file_from_s3(s3: str, name: str) -> None:
    assert contents(source(f"{s3}/{name}")) == expected(name)


def test_a_compressed_table_on_s3(s3: str) -> None:
    with pytest.raises(ValueError, match=r"x\.csv\.gz: `datasets` reads compressed tables from disk and the web alone"):
        contents(source(f"{s3}/x.csv.gz"))


def test_globs_over_s3(s3: str) -> None:
    found = sources(f"{s3}/shards/**/*.fasta*")
    assert [one.name for one in found] == [f"{s3}/shards/1/a.fasta", f"{s3}/shards/2/b.fasta.gz"]
    assert [contents(one) for one in found] == [ANNOTATED, ANNOTATED]
    assert [one.name for one in sources(f"{s3}/?.tsv?id=id")] == [f"{s3}/x.tsv?id=id"]
    with pytest.raises(ValueError, match=r"shards\*: no file matches this pattern"):  # a folder is no file
        sources(f"{s3}/shards*")


def test_what_s3_does_not_have(s3: str) -> None:
    for name in ("none.fasta", "none.parquet", "none.xml"):
        with pytest.raises(ValueError, match=rf"{s3}/{name}: "):
            contents(source(f"{s3}/{name}"))
    with pytest.raises(ValueError, match=r"none\*: no file matches this pattern"):
        sources(f"{s3}/none*")
    with pytest.raises(ValueError, match=r"s3://nobucket/x\*: "):
        sources("s3://nobucket/x*")


def test_patterns_that_cannot_be_listed(http: str) -> None:
    with pytest.raises(ValueError, match=r"nothing://x/\*: the files of this pattern cannot be listed .*one by one"):
        sources("nothing://x/*")
    with pytest.raises(ValueError, match=r"a chain of file systems has no listing"):
        sources("simplecache::s3://bucket/*.fasta")
    with pytest.raises(ValueError, match=r"cannot be listed|no file matches"):
        sources(f"{http}/range/*.fasta")


def test_a_table_keeps_the_parameters_of_its_server(http: str) -> None:
    assert contents(source(f"{http}/range/x.csv?token=a%2Fb&sequence=sequence&id=about"))[0] == (
        PROTEINS["P12345"][0],
        PROTEINS["P12345"][1],
    )
