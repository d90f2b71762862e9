"""Compressed files that are cut short, damaged or packed in another way: one error says what, where and what to do."""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd as zstandard

from data.transport.retries import StreamError
from support.inputs.packed_bytes import TEXT, bgzip, read, zstd

HEX = TEXT[:100_000].hex().encode()
AGAIN = "copy or download it again"


def refused(tmp_path: Path, stored: bytes) -> str:
    path = tmp_path / "a.bin"
    path.write_bytes(stored)
    with pytest.raises(ValueError, match=r"a\.bin: ") as caught:
        read(str(path))
    return str(caught.value).removeprefix(f"{path}: ")


def accepted(tmp_path: Path, stored: bytes) -> bytes:
    path = tmp_path / "a.bin"
    path.write_bytes(stored)
    return read(str(path))


def blocks_of(bgzipped: bytes) -> list[int]:
    """Where the blocks of bgzip begin, and the end."""
    starts = [0]
    while starts[-1] < len(bgzipped):
        starts.append(starts[-1] + struct.unpack_from("<H", bgzipped, starts[-1] + 16)[0] + 1)
    return starts


# bgzip --------------------------------------------------------------------------------------------


def test_bgzip_without_its_end_block_is_cut_short(tmp_path: Path) -> None:
    stored = bgzip(TEXT)
    starts = blocks_of(stored)
    assert len(starts) > 20
    for cut in (starts[1], starts[7], starts[-3], starts[-2]):
        assert refused(tmp_path, stored[:cut]) == (
            f"the bgzip stream ends at byte {cut} without its end block: the file was cut short; {AGAIN}; if it is "
            "known to be whole, pack it again (gunzip -c OLD | bgzip > NEW)"
        )
        assert refused(tmp_path, stored[:cut] + bytes(512)).startswith(f"the bgzip stream ends at byte {cut + 512} wi")
    assert f"ends at byte {starts[-2]} without its end block" in refused(tmp_path, stored[: starts[-2] + 1])
    for cut in (starts[-2] + 20, len(stored) - 1, starts[7] + 100):
        assert refused(tmp_path, stored[:cut]).startswith(f"the gzip stream ends early, at byte {cut}: ")
    assert accepted(tmp_path, stored) == TEXT
    assert accepted(tmp_path, stored + bytes(512)) == TEXT


def test_concatenated_bgzip_files_are_whole(tmp_path: Path) -> None:
    whole, other = bgzip(TEXT[:200_000]), bgzip(TEXT[200_000:300_000])
    plain = gzip.compress(TEXT[300_000:400_000])
    assert accepted(tmp_path, whole + other) == TEXT[:300_000]
    assert accepted(tmp_path, whole + bgzip(b"") + other) == TEXT[:300_000]
    cut = other[: blocks_of(other)[1]]
    assert f"ends at byte {len(whole + cut)} without its end block" in refused(tmp_path, whole + cut)
    # bgzip files and others: each bgzip file among them must be whole, as far as that can be told.
    assert accepted(tmp_path, whole + other + plain) == TEXT[:400_000]
    assert accepted(tmp_path, plain + whole) == TEXT[300_000:400_000] + TEXT[:200_000]
    assert f"ends at byte {len(cut)} without its end block" in refused(tmp_path, cut + plain)
    assert "without its end block" in refused(tmp_path, plain + cut)


def test_bgzip_is_told_by_its_field(tmp_path: Path) -> None:
    """Another field before "BC" or a name after it changes nothing, and a field of another kind is no bgzip."""
    member = bgzip(b"M")[:-28]
    field = member[12:18]
    rest = member[18:]
    fields = {"two": b"XY\x03\x00abc" + field, "first": field + b"XY\x00\x00", "other": b"XY\x02\x00BC", "none": b""}
    made = {name: member[:10] + struct.pack("<H", len(content)) + content + rest for name, content in fields.items()}
    for name in ("two", "first"):
        assert "without its end block" in refused(tmp_path, made[name]), name
    for name in ("other", "none"):
        assert accepted(tmp_path, made[name]) == b"M", name


# Damage -------------------------------------------------------------------------------------------

MEMBERS = gzip.compress(TEXT[:99], mtime=0) + gzip.compress(TEXT, mtime=0)
SECOND = len(gzip.compress(TEXT[:99], mtime=0))
FRAMES = zstd(TEXT[:99]) + zstd(HEX, write_checksum=True)
FRAME = len(zstd(TEXT[:99]))


def with_window(log: int) -> bytes:
    packer = zstandard.ZstdCompressor(options={zstandard.CompressionParameter.window_log: log})
    return packer.compress(TEXT[:1000]) + packer.flush()


def with_dictionary() -> bytes:
    known = zstandard.train_dict([TEXT[at : at + 500] for at in range(690_000, 800_000, 300)], 4096)
    assert known.dict_id
    return zstandard.compress(TEXT[-500:], zstd_dict=known)


DAMAGE = {
    "gzip checksum": (
        MEMBERS[:-8] + b"\1\2\3\4" + MEMBERS[-4:],
        rf"is damaged in the gzip member that begins at byte {SECOND}, before byte {len(MEMBERS)} \(Incorrect checks"
        rf"um found\): {AGAIN}",
    ),
    "gzip length": (MEMBERS[:-1] + b"\7", rf"is damaged in the gzip member that begins at byte {SECOND}, .*: {AGAIN}"),
    "gzip content": (
        MEMBERS[: SECOND + 5000] + bytes([MEMBERS[SECOND + 5000] ^ 64]) + MEMBERS[SECOND + 5001 :],
        rf"is damaged in the gzip member that begins at byte {SECOND}, before byte \d+ \(.+\): {AGAIN}",
    ),
    "gzip method": (
        b"\x1f\x8b\x07" + gzip.compress(TEXT)[3:],
        rf"is damaged in the gzip member that begins at byte 0, before byte \d+ \(.+\): {AGAIN}",
    ),
    "after gzip": (
        MEMBERS + b"<html>no gzip\n",
        rf"what follows the gzip data at byte {len(MEMBERS)} is no gzip \('<html>no gzip\\n'\): {AGAIN}; if only "
        rf"this end is wrong, cut it off \(head -c {len(MEMBERS)} OLD > NEW\)",
    ),
    "zstd checksum": (
        FRAMES[:-4] + bytes(4),
        rf"is damaged in the zstd frame that begins at byte {FRAME}, before byte {len(FRAMES)} "
        rf"\(.*checksum.*\): {AGAIN}",
    ),
    "zstd content": (
        FRAMES[: FRAME + 14] + b"\xff" * 40 + FRAMES[FRAME + 54 :],
        rf"is damaged in the zstd frame that begins at byte {FRAME}, before byte \d+ \(.+\): {AGAIN}",
    ),
    "zstd length of a block": (
        zstd(HEX)[:9] + b"\xfc\xff\xff" + zstd(HEX)[12:],
        rf"is damaged in the zstd frame that begins at byte 0, before byte \d+ \(Data corruption detected\): {AGAIN}",
    ),
    "after zstd": (
        FRAMES + b"not zstd",
        rf"what follows the zstd data at byte {len(FRAMES)} is no zstd \('not zstd'\): {AGAIN}; if only this end is "
        rf"wrong, cut it off \(head -c {len(FRAMES)} OLD > NEW\)",
    ),
    "zstd window": (
        with_window(29),
        r"the zstd frame at byte 0 was packed with a window of 512 MB, which takes as much memory to unpack; 128 MB "
        r"are allowed: pack it again without --long or --ultra \(unzstd --long=31 -c OLD \| zstd > NEW\)",
    ),
    "zstd dictionary": (
        zstd(TEXT[:99]) + with_dictionary(),
        rf"the zstd frame at byte {FRAME} needs the dictionary \d+, which is no part of the file: unpack it where the "
        r"dictionary is \(unzstd -D DICTIONARY\), or pack it without one",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_names_place_and_remedy(tmp_path: Path, damage: str) -> None:
    stored, said = DAMAGE[damage]
    path = tmp_path / "a.bin"
    path.write_bytes(stored)
    with pytest.raises(StreamError, match=rf"^{path}: {said}$") as caught:
        read(str(path))
    told = str(caught.value.at("in record 3"))
    assert told == str(caught.value).replace(": " + caught.value.args[2], ", in record 3: " + caught.value.args[2])
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_largest_window_is_read(tmp_path: Path) -> None:
    assert accepted(tmp_path, with_window(27)) == TEXT[:1000]


# Other packings -----------------------------------------------------------------------------------


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", content)
    return archive.getvalue()


def tarred(content: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as file:
        about = tarfile.TarInfo("a.fasta")
        about.size = len(content)
        file.addfile(about, io.BytesIO(content))
    return archive.getvalue()


OTHERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "bzip2": (bz2.compress, "bunzip2"),
    "xz": (lzma.compress, "unxz"),
    "zip": (zipped, "unzip"),
    "tar": (tarred, "tar -xf, and name the files that it holds"),
    "compress (.Z)": (lambda content: b"\x1f\x9d\x90" + content, "uncompress"),
    "rar": (lambda content: b"Rar!\x1a\x07\x01\x00" + content, "unrar x"),
    "lzip": (lambda content: b"LZIP\x01" + content, "lzip -d"),
}
RECORD = b">a\nMKV\n"


@pytest.mark.parametrize("name", OTHERS)
def test_another_packing_is_named(tmp_path: Path, name: str) -> None:
    pack, unpack = OTHERS[name]
    assert refused(tmp_path, pack(RECORD)) == (
        f"is a {name} file; plain text, gzip (bgzip) and zstd are read: unpack it ({unpack})"
    )
    for outer, by in ((gzip.compress, "gzip"), (bgzip, "gzip"), (zstd, "zstd")):
        assert refused(tmp_path, outer(pack(RECORD))) == (
            f"holds a {name} file inside its {by}; what {by} holds must be plain text: unpack it "
            f"({'gunzip' if by == 'gzip' else 'unzstd'}, then {unpack})"
        )


def test_packed_twice(tmp_path: Path) -> None:
    for inner, name, unpack in ((gzip.compress, "gzip", "gunzip"), (zstd, "zstd", "unzstd")):
        for outer, by, first in ((gzip.compress, "gzip", "gunzip"), (zstd, "zstd", "unzstd")):
            for content in (RECORD, b""):
                said = f"holds a {name} file inside its {by}; what {by} holds must be plain text: unpack it ({first}, "
                assert refused(tmp_path, outer(inner(content))) == f"{said}then {unpack})"
