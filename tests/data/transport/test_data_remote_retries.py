"""What each fault of a network does: what is asked again, after which wait, and what is said and kept in the end."""

import gzip
import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from data.sources.fasta import FastaSource
from data.sources.tables import TableSource
from data.store import growing as stream
from data.store.build import build_into, open_or_build
from data.store.growing import GrowingStore
from data.store.journal import read_journal
from data.store.token_store import TokenStore
from data.transport import retries
from data.transport.byte_stream import ByteStream
from data.transport.retries import ConnectionLostError, SourceChangedError
from support.inputs.fasta_content import many
from support.inputs.faulty_server import Clock, Fault, Site, serving
from support.inputs.packed_bytes import LIMITS, PACKED, TEXT, read
from support.inputs.seeded_source import contents
from support.inputs.stream_builders import start_builder_of

FASTA = many(seed=3, count=4000).replace(b"?", b"") * 8
"""32,000 records, 8 MB: more than one block."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(retries, "_answered", set())
    retries.log_once.cache_clear()
    return Clock(monkeypatch)


def waits_double(waits: list[float]) -> None:
    for number, wait_s in enumerate(waits):
        longest = retries.FIRST_WAIT_S * 2**number
        assert longest / 2 <= wait_s <= longest


def source(site: Site) -> FastaSource:
    return FastaSource(site.url, "refuse")


def parquet() -> bytes:
    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"id": ["a"], "sequence": ["MKLV"]}), written)
    return written.getvalue()


def test_a_table_is_opened_with_the_same_patience(clock: Clock) -> None:
    with serving(Site(parquet(), faults=[Fault("503")] * 4)) as site:
        (block,) = TableSource(site.url, ".parquet", "refuse").blocks()
        assert (block.headers.tobytes(), block.lengths.tolist()) == (b"a", [4])
        waits_double(clock.waits)
        assert len(clock.waits) == 3  # the first of them met `datasets`
    with (
        serving(Site(parquet(), faults=[Fault("503")] * 9)) as site,
        pytest.raises(ValueError, match=r"cannot be reached: 503 .*, also after 5 more attempts"),
    ):
        list(TableSource(site.url, ".parquet", "refuse").blocks())


# Going on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", ["plain", "gzip", "bgzip", "zstd"])
def test_it_goes_on_at_the_byte_that_was_reached(clock: Clock, packed: str, capfd: pytest.CaptureFixture[str]) -> None:
    stored = PACKED[packed](TEXT)
    with serving(Site(stored, faults=[Fault("drop", 300_000), Fault("503"), Fault("reset", 200_000)])) as site:
        assert read(site.url) == TEXT
        reached = [int(asked.removeprefix("bytes=")[:-1] or 0) if asked else 0 for asked, _, _ in site.asked]
        assert [status for _, _, status in site.asked] == ["200", "503", "206", "206"]
        assert reached[:3] == [0, 300_000, 300_000]
        assert 300_000 <= reached[3] <= 500_000  # a reset may take with it what was under way
        assert {if_range for _, if_range, _ in site.asked} == {"", site.version["ETag"]}
        assert site.sent <= len(stored) + 200_000
    waits_double(clock.waits[:2])
    assert len(clock.waits) == 3
    if reached[3] > 300_000:
        waits_double(clock.waits[2:])  # counted from the start after a byte
        assert capfd.readouterr().err == ""  # they were short


@pytest.mark.parametrize(
    ("says", "named_by"),
    [
        ({"says_modified": True}, "ETag"),
        ({"says_modified": True, "says_etag": ""}, "Last-Modified"),
        ({"says_modified": True, "says_etag": 'W/"{}"'}, "Last-Modified"),
    ],
    ids=["etag", "modified", "weak etag"],
)
def test_if_range_names_the_version(clock: Clock, says: dict[str, Any], named_by: str) -> None:
    with serving(Site(TEXT, faults=[Fault("drop", 500_000)], **says)) as site:
        assert read(site.url) == TEXT
        asked, named, status = site.asked[1]
        assert re.fullmatch(r"bytes=[1-9]\d+-", asked)
        assert named == site.version[named_by]
        assert status == "206"


@pytest.mark.parametrize("says", ['W/"{}"', ""], ids=["weak etag", "nothing"])
def test_without_a_version_what_was_read_is_read_again(clock: Clock, says: str) -> None:
    with serving(Site(TEXT, faults=[Fault("drop", 900_000)], says_etag=says)) as site:
        assert read(site.url) == TEXT
        assert [asked for asked, _, _ in site.asked] == ["", ""]
    other = TEXT[:1000] + b"X" + TEXT[1001:]  # of the same size, and equal from the byte on that was reached
    with serving(Site(TEXT, after=other, faults=[Fault("drop", 900_000), Fault("change")], says_etag=says)) as site:
        with pytest.raises(
            SourceChangedError, match=r"/proteins.fasta: changed while it was read: the same command reads it"
        ):
            read(site.url)
        assert len(site.asked) == 2


def test_a_server_that_sends_no_part_or_another_one(clock: Clock) -> None:
    drop = Fault("drop", 900_000)
    for faults, statuses in (
        ([drop, Fault("whole")], ["200", "200"]),
        ([drop, Fault("elsewhere")], ["200", "206", "200"]),
        ([drop, Fault("part", 10_000), Fault("part", 300_000)], ["200", "206", "206", "206"]),
    ):
        with serving(Site(TEXT, faults=list(faults))) as site:
            assert read(site.url) == TEXT
            assert [status for _, _, status in site.asked] == statuses
    with serving(Site(TEXT, faults=[drop], ranges=False)) as site:
        assert read(site.url) == TEXT
        assert [status for _, _, status in site.asked] == ["200", "200"]


def test_a_connection_that_is_lost_at_the_very_end(clock: Clock) -> None:
    """Of a file without size, whether it was the end shows in reading it once more: no part of it begins there."""
    with serving(Site(TEXT, faults=[Fault("drop", len(TEXT))], framing="chunked")) as site:
        assert read(site.url) == TEXT
        asked = [(asked, status) for asked, _, status in site.asked]
        assert asked == [("", "200"), ("", "200"), (f"bytes={len(TEXT)}-", "416"), ("", "200")]


@pytest.mark.parametrize("packed", ["plain", "gzip"])
def test_a_server_that_stalls_is_left(clock: Clock, packed: str) -> None:
    stored = PACKED[packed](TEXT)
    faults = [Fault("stall", 400_000), Fault("silence"), Fault("stall", 0), Fault("stall", 100_000)]
    with serving(Site(stored, faults=faults, head_faults=[Fault("silence")], clock=clock)) as site:
        assert read(site.url) == TEXT
        assert not site.faults
    said = r"breaks off after \d+ of \d+ bytes: nothing came for 120 s, and 5 attempts to continue failed; start again"
    dead = Site(stored, faults=[Fault("stall", 400_000), *[Fault("silence")] * 5], clock=clock)
    with serving(dead) as site, pytest.raises(ConnectionLostError, match=said):
        read(site.url)


def test_which_answers_are_tried_again(clock: Clock) -> None:
    for status in ("408", "425", "429", "500", "502", "503", "504"):
        with serving(Site(TEXT, faults=[Fault(status), Fault("drop", 700_000), Fault(status)])) as site:
            assert read(site.url) == TEXT
            assert len(site.asked) == 4, status
    for status in ("400", "401", "403", "404", "410"):
        clock.waits.clear()
        said = "no such file" if status == "404" else f"cannot be reached: {status} "
        with serving(Site(TEXT, faults=[Fault(status)])) as site, pytest.raises(ValueError, match=said):
            read(site.url)
        with serving(Site(TEXT, faults=[Fault("drop", 700_000), Fault(status)])) as site:
            with pytest.raises(ConnectionLostError, match=r"breaks off after \d+ of \d+ bytes: .*; start again"):
                read(site.url)
            assert len(site.asked) == 2
        assert len(clock.waits) == 1


def test_a_server_says_how_long_to_wait(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    asked = [Fault("503", retry_after=after) for after in ("17", at, "3600", "soon")]
    with serving(Site(TEXT, faults=[Fault("drop", 700_000), *asked])) as site:
        assert read(site.url) == TEXT
        told = capfd.readouterr().err.splitlines()
        assert re.fullmatch(
            rf"{site.url}: breaks off after \d+ of {len(TEXT)} bytes \(503 Service Unavailable\); waiting 17 s, then "
            r"trying again \(2 of 5\)",
            told[0],
        )
    first, second, until, most, none = clock.waits
    assert 1 <= first <= 2
    assert second == 17
    assert 50 < until <= 60
    assert most == retries.MOST_WAIT_S
    assert 16 <= none <= 32
    assert len(told) == 4


def test_a_server_that_is_away_for_a_while(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused at the first contact, it is the wrong address; later, it is likely to come back."""
    with ExitStack() as servers:
        before = servers.enter_context(serving(Site(TEXT)))
        size = ByteStream(before.url).num_bytes
        port = int(before.url.split(":")[2].split("/")[0])
        servers.close()
        attempts_made = []

        def back_at_the_third(seconds: float) -> None:
            attempts_made.append(seconds)
            if len(attempts_made) == 3:
                servers.enter_context(serving(Site(TEXT), port))

        monkeypatch.setattr(retries, "sleep", back_at_the_third)
        assert size == len(TEXT)
        assert read(before.url) == TEXT
        assert len(attempts_made) == 3
    monkeypatch.setattr(retries, "_answered", set())
    with pytest.raises(ValueError, match="cannot be reached: "):
        read(before.url)
    assert len(attempts_made) == 3


# The end ------------------------------------------------------------------------------------------


def test_in_the_end_it_is_one_error_and_what_was_read_is_kept(clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "a.fasta").write_bytes(FASTA)
    whole = build_into(tmp_path / "whole", [FastaSource(str(tmp_path / "a.fasta"), "refuse")], "refuse", LIMITS)
    for name, stored in (("plain", FASTA), ("gzip", gzip.compress(FASTA, 1))):
        folder, reached = tmp_path / name, len(stored) // 2
        with serving(Site(stored, faults=[Fault("drop", reached), *[Fault("503")] * 5])) as site:
            with pytest.raises(ConnectionLostError) as caught:
                build_into(folder, [source(site)], "refuse", LIMITS)
            said = re.fullmatch(
                rf"{site.url}: breaks off after (\d+) of {len(stored)} bytes, in or after record (\d+) \('r\d+ x*'\): "
                r"503 Service Unavailable, and 5 attempts to continue failed; start again when it can be reached, the "
                r"same command continues",
                str(caught.value),
            )
            assert said is not None
            assert len(site.asked) == 6
            journal = read_journal(folder)
            assert journal is not None
            assert journal.num_read >= int(said[2]) - 1  # all but the record that was broken off
            assert int(said[1]) == reached
            site.asked.clear()
            store = build_into(folder, [source(site)], "refuse", LIMITS)
            if name == "plain":
                assert [asked for asked, _, _ in site.asked] == ["", f"bytes={journal.position.offset}-"]
            assert store.fingerprint == whole.fingerprint
            found, expected = contents(folder), contents(whole.folder)
            assert [n for n in expected if found[n] != expected[n]] == ["store.json"]


@pytest.mark.slow
def test_a_file_that_changes_is_read_anew_by_the_same_command(clock: Clock, tmp_path: Path) -> None:
    changed = [Fault("drop", 900_000), Fault("change")]
    grown, other = FASTA + b">one\nMKV\n", FASTA.replace(b"A", b"G")
    for says, after in (('"{}"', other), ('"{}"', grown), ("", grown), ("", other)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        with serving(Site(FASTA, after=after, faults=list(changed), says_etag=says)) as site:
            with pytest.raises(ValueError, match=r"changed while it was read, .*: the same command reads it again"):
                build_into(folder, [source(site)], "refuse", LIMITS)
            assert not folder.exists()  # it would be the store of neither file
            store = build_into(folder, [source(site)], "refuse", LIMITS)
            assert store.num_records == after.count(b">")


def test_a_server_that_says_neither_size_nor_version(
    clock: Clock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small, other = FASTA[: FASTA.index(b"\n>", 5000) + 1], FASTA[: FASTA.index(b"\n>", 9000) + 1]
    for framing in ("chunked", "close"):
        with serving(Site(small, after=other, says_etag="", framing=framing)) as site:
            said = (
                f"{site.url}: the server does not say the size of this file: if it changes, that is not noticed, and a "
                "store that was built is used again; an early end is noticed only where the answer comes in chunks or "
                "the file is compressed\n"
            )
            store = open_or_build([source(site)], tmp_path, "refuse", LIMITS, progress=lambda *_: None)
            assert capfd.readouterr().err == said  # once
            site.change()
            again = open_or_build([source(site)], tmp_path, "refuse", LIMITS, progress=lambda *_: None)
            assert (again.folder, again.num_records) == (store.folder, small.count(b">"))
            assert capfd.readouterr().err == ""
    with serving(Site(small, framing="close")) as site:
        assert read(site.url) == small
        said = capfd.readouterr().err
        assert said.startswith(
            f"{site.url}: the server does not say the size of this file: an early end is noticed only"
        )
        assert said.count("\n") == 1
    with serving(Site(small, says_etag="")) as site:
        assert read(site.url) == small
        assert capfd.readouterr().err == ""


# Other file systems, and streaming ----------------------------------------------------------------


class Shaky(MemoryFileSystem):
    """Files whose reading fails at times, by program."""

    protocol = "shaky"
    store: ClassVar[dict[str, Any]] = {}
    fails_at: ClassVar[list[int]] = []
    opened_at: ClassVar[list[int]] = []
    changes = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("shaky:/")

    def _open(self, path: str, *arguments: object, **options: object) -> Any:
        file = super()._open(path, *arguments, **options)
        return ShakyFile(file.getvalue()) if isinstance(file, MemoryFile) else file


class ShakyFile(MemoryFile):
    def __init__(self, content: bytes) -> None:
        super().__init__(data=content)
        Shaky.opened_at.append(0)

    def seek(self, place: int, whence: int = 0) -> int:
        if Shaky.opened_at and place:
            Shaky.opened_at[-1] = place
        return super().seek(place, whence)

    def read(self, size: int = -1) -> bytes:
        if Shaky.fails_at and self.tell() + size > Shaky.fails_at[0]:
            size = Shaky.fails_at[0] - self.tell()
            if size <= 0:
                Shaky.fails_at.pop(0)
                if Shaky.changes:
                    Shaky().pipe_file("/a", TEXT[::-1])
                raise RuntimeError("whatever a library raises")
        return super().read(size)


@pytest.fixture
def shaky() -> Iterator[type[Shaky]]:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    Shaky.fails_at, Shaky.opened_at, Shaky.changes = [], [], False
    yield Shaky
    Shaky.store.clear()


@pytest.mark.parametrize("packed", ["plain", "gzip", "bgzip", "zstd"])
def test_any_file_system_is_opened_again_where_it_broke_off(clock: Clock, shaky: type[Shaky], packed: str) -> None:
    Shaky().pipe_file("/a", PACKED[packed](TEXT))
    shaky.fails_at = [100_000, 100_000, 654_321]
    shaky.opened_at.clear()
    assert read("shaky://a") == TEXT
    assert shaky.opened_at == [0, 100_000, 100_000, 654_321]
    assert len(clock.waits) == 3
    shaky.fails_at, shaky.changes = [100_000], True
    with pytest.raises(SourceChangedError, match="shaky://a: changed while it was read"):
        read("shaky://a")


@pytest.mark.slow
def test_a_fault_is_survived_while_training_reads(tmp_path: Path) -> None:
    """The builder of a streamed corpus is a process of its own, on a clock that nobody turns."""
    (tmp_path / "a.fasta").write_bytes(FASTA)
    whole = build_into(tmp_path / "whole", [FastaSource(str(tmp_path / "a.fasta"), "refuse")], "refuse", LIMITS)
    with serving(Site(FASTA, faults=[Fault("drop", len(FASTA) * 3 // 4)])) as site:
        folder = start_builder_of([source(site)], "refuse", LIMITS, tmp_path / "stores")
        try:
            assert GrowingStore(folder).wait(1 << 40) == 32_000
        finally:
            for builder in stream._builders:
                builder.wait(60)
            stream._builders.clear()
        assert [status for _, _, status in site.asked] == ["200", "206"]
    assert TokenStore(folder).fingerprint == whole.fingerprint
