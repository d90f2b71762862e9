"""FASTA: the records that Biopython reads, and what is rejected."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from backports import zstd
from Bio import SeqIO
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.alphabet import STANDARD_RESIDUES, TOKENS, UNK, decode
from data.sources.fasta import FastaSource
from data.transport.retries import StreamError
from support.inputs.fasta_content import TIDY, read, written
from support.inputs.protein_files import lower

TIDY_RECORDS = [(b"sp|P1 first protein", "MKTAYIAKQRQ"), (b"P2", "GGGG")]


@pytest.mark.parametrize(
    "text",
    [
        TIDY,
        TIDY.replace(b"\n", b"\r\n"),
        TIDY[:-1],  # no final newline
        TIDY.lower().replace(b"sp|p1 first protein", b"sp|P1 first protein").replace(b"p2", b"P2"),
        TIDY.replace(b"QRQ\n", b"QRQ*\n\n\n"),  # a stop, then blank lines
        TIDY.replace(b"QRQ\n", b"QRQ\n \n*\n").replace(b"GGGG\n", b"GGGG* "),
        b"\n\n" + TIDY,
        b" \n\t\r\n\n" + TIDY,
        b"\xef\xbb\xbf" + TIDY,
        b"\xef\xbb\xbf\n" + TIDY,
        TIDY.replace(b"MKTAYIAK\n", b"MKTA YIAK\n").replace(b"QRQ", b"\tQ\vR\fQ "),
        TIDY.replace(b">", b"> ").replace(b"protein\n", b"protein \t\n"),
        TIDY.replace(b">", b"> \t  \r "),
        TIDY.replace(b"protein\n", b"protein \t \v\r\n"),
        TIDY.replace(b"\nGGGG", b"\n\n\nG\nG\nG\nG\n"),
    ],
    ids=[
        *("tidy", "crlf", "no final newline", "lower case", "stop and blank lines", "stop on a line of its own"),
        *("blank first", "whitespace first", "byte order mark", "mark and blank line", "spaces", "spaced headers"),
        *("headers far behind", "headers far before"),
        "one letter a line",
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd.compress], ids=["plain", "gzip", "zstd"])
def test_reads_what_the_letters_say(tmp_path: Path, text: bytes, compress) -> None:
    found = read(written(tmp_path, compress(text)))
    assert found.records == TIDY_RECORDS
    assert found.rejected == []
    assert found.digests == read(written(tmp_path, TIDY)).digests
    among_others = b">1\nM\n" * 30 + text.strip(b"\xef\xbb\xbf") + b"\n>1\nM" * 30
    assert read(written(tmp_path, compress(among_others))).records[29:33] == [(b"1", "M"), *TIDY_RECORDS, (b"1", "M")]


def test_ids_are_those_of_esm(tmp_path: Path) -> None:
    path = written(
        tmp_path, b">a\nLAGVSERTIDPKQNFYMHWCXBUZOJ\n>b\nlagvsertidpkqnfymhwcxbuzoj\n" + b">c\n" + b"ABZ" * 50
    )
    (block,) = FastaSource(path, "refuse").blocks()
    assert block.tokens[:52].tolist() == [*range(4, 29), UNK] * 2
    assert decode(block.tokens[52:]) == "ABZ" * 50
    assert TOKENS[:4] == ("<cls>", "<pad>", "<eos>", "<unk>")
    assert TOKENS[32] == "<mask>"
    assert block.unknown_letters == {}


def test_every_byte_is_a_letter_space_or_refused(tmp_path: Path) -> None:
    letters = set(b"ACDEFGHIKLMNPQRSTVWYBJOUXZ") | set(b"acdefghiklmnpqrstvwybjouxz")
    filling = b"M" * 70  # so that the byte is met inside a wide read
    text = b"".join(b">%d\n%s%c%s\n" % (byte, filling, byte, filling) for byte in range(256))
    found = read(written(tmp_path, text))
    good = {int(header): residues for header, residues in found.records}
    spaces = set(b" \t\r\n\v\f")
    assert set(good) == letters | spaces
    assert all(len(residues.replace("<unk>", "J")) == 140 + (byte in letters) for byte, residues in good.items())
    assert [int(r.header) for r in found.rejected] == [byte for byte in range(256) if byte not in letters | spaces]
    assert all(f"record {r.record}" == f"record {int(r.header) + 1}" for r in found.rejected)
    assert all("at residue 71" in r.reason for r in found.rejected)


def test_several_members_and_frames_are_one_stream(tmp_path: Path) -> None:
    for compress in (gzip.compress, zstd.compress):
        assert read(written(tmp_path, compress(TIDY[:25]) + compress(TIDY[25:]))).records == TIDY_RECORDS


def test_long_and_short_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = [1, 35_213, 63, 64, 65, 127, 128, 129, 1, 400_000, 2]
    proteins = ["".join(rng.choice(list(STANDARD_RESIDUES), n)) for n in lengths]
    for width in (60, 64, 80, 1_000_000):
        text = "".join(
            f">p{i}\n" + "\n".join(p[k : k + width] for k in range(0, len(p), width)) + "\n"
            for i, p in enumerate(proteins)
        )
        found = read(written(tmp_path, text.encode()))
        assert [residues for _, residues in found.records] == proteins


MISSING = ("NA", "NAN", "NONE", "NULL")
"""Words for a missing value that could be drawn as letters."""

BAD_RECORDS: list[tuple[str, bytes, int, list[str]]] = [
    ("no sequence", b">p1\nMKT\n>p2 lost\n>p3\nGG\n", 2, ["has no sequence; remove the record or fill it"]),
    ("no sequence at the end", b">p1\nMKT\n>p2", 2, ["has no sequence"]),
    ("a stop alone", b">p1\n*\n>p2\nM\n", 1, ["has no sequence"]),
    ("blank lines alone", b">p1\n\n \n>p2\nM\n", 1, ["has no sequence"]),
    ("no name", b">p1\nMKT\n>\nGG\n", 2, ["has a header without a name; write an identifier after '>'"]),
    ("a blank name", b">p1\nMKT\n> \t\r\nGG\n", 2, ["has a header without a name"]),
    (
        "letter",
        b">p1\nMKT\n>p2\nGG1G\n",
        2,
        [
            "has '1' at residue 3, which is no amino acid letter (allowed: ACDEFGHIKLMNPQRSTVWY, BJOUXZ and one "
            "trailing '*' or '.'); correct the record, or set data.unknown_letters = 'count' to read such letters as "
            "<unk>"
        ],
    ),
    ("gap", b">p1\nMK-T\n", 1, ["'-'", "residue 3"]),
    ("stop inside", b">p1\nMK*T\n", 1, ["'*'", "residue 3"]),
    ("stop, then a letter on the next line", b">p1\nMK*\nT\n", 1, ["'*'", "residue 3"]),
    ("two stops", b">p1\nMK**\n>p2\nM\n", 1, ["'*'", "residue 3"]),
    ("control character", b">p1\nMK\x1bT\n", 1, [r"'\x1b'"]),
    ("not ASCII", b">p1\nMK\xe9T\n", 1, ["at residue 3"]),
    ("a letter of two bytes", ">p1\nMKΔT\n".encode(), 1, ["has 'Δ' at residue 3"]),
    ("header sign inside a line", b">p1\nMK>T\n", 1, ["'>'", "residue 3"]),
    ("NUL in the sequence", b">p1\nMK\0T\n>p2\nM\n", 1, ["has a NUL byte at residue 3", "damaged"]),
    ("NUL in the header", b">p1\nMK\n>p\0 2\nM\n", 2, ["has a NUL byte in its header"]),
    ("line ends of an old Macintosh", b">p1\rMK\r>p2\rM\r", 1, ["no sequence", "carriage return"]),
    ("long header", b">p1\nMK\n>" + b"x" * 101 + b"\nM\n", 2, ["header of 101 bytes", "at most 100 are read"]),
    ("long sequence", b">p1\n" + b"M\n" * 201 + b">p2\nM\n", 1, ["more than the 200 that a protein may have"]),
]


@pytest.mark.parametrize(("text", "record", "words"), [b[1:] for b in BAD_RECORDS], ids=[b[0] for b in BAD_RECORDS])
def test_bad_records_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, record: int, words: list[str]
) -> None:
    lower(monkeypatch, header=100, residues=200)
    # Neighbours of a bad record, and a text long enough to be read at full width, change nothing.
    tail = b">last\n" + b"M" * 150 + b"\n"
    alone, followed = read(written(tmp_path, text)), text + b"\n" * (not text.endswith(b"\n")) + tail
    (bad,) = alone.rejected
    assert bad.record == record
    assert len(alone.records) + 1 == text.count(b"\n>") + 1
    assert [w for w in words if w not in bad.reason] == []
    assert "\n" not in bad.reason
    assert text[bad.offset :].startswith(b">")
    assert text[: bad.offset].count(b">") == record - 1
    assert bad.header == text[bad.offset + 1 :].partition(b"\n")[0].strip()[:200]
    both = read(written(tmp_path, followed))
    assert both.rejected == alone.rejected
    assert both.records == [*alone.records, (b"last", "M" * 150)]


def test_as_long_as_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, header=100, residues=200)
    text = b"> " + b"x" * 100 + b" \n" + b"M " * 200 + b"\n*\n"
    assert read(written(tmp_path, text)).records == [(b"x" * 100, "M" * 200)]


def test_a_record_above_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, residues=1_500_000)
    for residues, good in ((1_500_000, True), (1_500_001, False), (4_000_000, False)):
        lines = b"\n".join([b"M" * 50 + b" "] * (residues // 50) + [b"G" * (residues % 50)])
        text = b">a b\r\n" + lines + b"*\n\n>c\nMK\n"
        found = read(written(tmp_path, text))
        assert found.records[-1] == (b"c", "MK")
        assert [r.header for r in found.rejected] == [b"a b"] * (not good)
        if good:
            assert found.records[0] == (b"a b", "M" * residues)


def test_unknown_letters_can_be_counted(tmp_path: Path) -> None:
    path = written(tmp_path, b">p1\nMK-T-\n>p2\n1GG\n>p3\nMKT\n>p4\nM\0K\n>p5\nM\xe9*\n")
    found = read(path, "count")
    assert [residues for _, residues in found.records] == ["MK<unk>T<unk>", "<unk>GG", "MKT", "M<unk>"]
    assert found.unknown == {"'-'": 2, "'1'": 1, "'é'": 1}
    assert [(r.record, r.reason[:14]) for r in found.rejected] == [(4, "has a NUL byte")]


def test_headers_are_kept_as_bytes(tmp_path: Path) -> None:
    headers = [b"caf\xe9 \xff\xfe", "Ångström".encode(), b"a > b >c", b"x" * 500, b"tab\tinside \x1b[0m"]
    found = read(written(tmp_path, b"".join(b">%s\nMK\n" % header for header in headers)))
    assert [header for header, _ in found.records] == headers
    assert found.rejected == []


def bad_sources() -> list[tuple[str, bytes, list[str]]]:
    text = b"".join(b">p%d\n%s\n" % (i, b"MKTAYIAKQRQISFVK" * 40) for i in range(400))
    noise = np.random.default_rng(0).bytes(4000).hex().encode()
    packed = gzip.compress(text + noise)
    framed = zstd.compress(text + noise, options={zstd.CompressionParameter.checksum_flag: 1})
    flipped, rotten = bytearray(packed), bytearray(framed)
    flipped[len(packed) // 2] ^= 0xFF
    rotten[-2] ^= 0xFF
    cut = ["stream ends early, at byte", ", in", "record", "the file was cut short; copy or download it again"]
    return [
        ("empty", b"", ["no FASTA record in it (empty file); remove it from data.sources or fill it"]),
        ("blank lines only", b"\n\n", ["no FASTA record"]),
        ("many blank lines", b"\n \r\n" * 100_000, ["no FASTA record"]),
        ("empty gzip", gzip.compress(b""), ["no FASTA record"]),
        (
            "not FASTA",
            b"HEADER  HYDROLASE\n",
            ["not FASTA: the first line is 'HEADER  HYDROLASE', but a FASTA file starts with '>'"],
        ),
        ("not FASTA behind blank lines", b"\n\n MKT\n>a\nM\n", ["not FASTA", "' MKT'"]),
        ("a space before the first header", b" >a\nMKT\n", ["not FASTA", "' >a'"]),
        ("UTF-16", TIDY.decode().encode("utf-16"), ["UTF-16"]),
        ("UTF-16 without a mark", TIDY.decode().encode("utf-16-le"), ["UTF-16"]),
        ("a line above the cap", b">a\nMK\n>b\n" + b"M" * 10_001 + b"\n", ["line of more than 10000 bytes", "record"]),
        ("a header above the cap", b">a" + b"b" * 10_001, ["line of more than 10000 bytes", "break the line"]),
        ("cut gzip", packed[: len(packed) // 2], cut),
        ("gzip without its checksum", packed[:-3], [*cut, "gzip", "record 399 ('p398')"]),
        ("cut zstd", framed[: len(framed) // 2], [*cut, "zstd"]),
        ("zstd without its checksum", framed[:-4], [*cut, "zstd"]),
        ("damaged gzip", bytes(flipped), ["is damaged in the", ", in", "record", "copy or download it again"]),
        ("damaged zstd", bytes(rotten), ["is damaged in the", ", in", "record", "copy or download it again"]),
    ]


@pytest.mark.parametrize(("text", "words"), [b[1:] for b in bad_sources()], ids=[b[0] for b in bad_sources()])
def test_a_bad_source_is_one_error_with_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, words: list[str]
) -> None:
    lower(monkeypatch, line=10_000)
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=r".+") as caught:
        read(path)
    message = str(caught.value)
    assert type(caught.value) in (ValueError, StreamError)  # none of Python's own
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert [w for w in words if w not in message] == []


def test_lines_as_long_as_the_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b">a\n" + b"M" * 997 + b"\r\n" + b"K" * 999 + b"\n"
    for cap, good in ((999, True), (998, False)):
        lower(monkeypatch, line=cap)
        if good:
            assert len(read(written(tmp_path, text)).records) == 1
        else:
            with pytest.raises(ValueError, match="line of more than 998 bytes"):
                read(written(tmp_path, text))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none.fasta: no such file; check data.sources"):
        read(str(tmp_path / "none.fasta"))
    with pytest.raises(ValueError, match=r"cannot be read, before the first record: .*[Dd]irectory"):
        read(str(tmp_path))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.text("abcXYZ019|_", min_size=1, max_size=12),
            st.text(STANDARD_RESIDUES + "XBZUOJacd", min_size=1, max_size=90).filter(
                lambda s: s.upper() not in MISSING
            ),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 70),
    st.sampled_from(["\n", "\r\n"]),
)
def test_agrees_with_biopython(tmp_path: Path, proteins: list[tuple[str, str]], width: int, end: str) -> None:
    lines = []
    for name, letters in proteins:
        lines += [f">{name}", *(letters[i : i + width] for i in range(0, len(letters), width))]
    text = end.join(lines)
    path = written(tmp_path, text.encode())
    theirs = [(r.description, str(r.seq).upper()) for r in SeqIO.parse(io.StringIO(text, newline=None), "fasta")]
    ours = [(header.decode(), residues.replace("<unk>", "J")) for header, residues in read(path).records]
    assert ours == theirs
