"""FASTA: the records that Biopython reads, and one clear error for everything else."""

import gzip
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.alphabet import STANDARD_RESIDUES, TOKENS, UNK, decode
from data.fasta import records

TIDY = b">sp|P1 first protein\nMKTAYIAK\nQRQ\n>P2\nGGGG\n"


def written(tmp_path: Path, content: bytes, name: str = "a.fasta") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def read(path: Path, policy: str = "refuse") -> list[tuple[bytes, str]]:
    return [(r.header, decode(r.residues)) for r in records(path, policy)]


@pytest.mark.parametrize(
    "content",
    [
        TIDY,
        TIDY.replace(b"\n", b"\r\n"),
        TIDY[:-1],  # no final newline
        TIDY.lower().replace(b"sp|p1 first protein", b"sp|P1 first protein").replace(b"p2", b"P2"),
        TIDY.replace(b"QRQ\n", b"QRQ*\n\n\n"),  # a stop, then blank lines
        b"\n\n" + TIDY,
        TIDY.replace(b"MKTAYIAK\n", b"MKTA YIAK\n"),
    ],
    ids=["tidy", "crlf", "no final newline", "lower case", "stop and blank lines", "blank first", "spaces"],
)
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
def test_reads_what_the_letters_say(tmp_path: Path, content: bytes, compress: bool) -> None:
    path = written(tmp_path, gzip.compress(content) if compress else content)
    assert read(path) == [(b"sp|P1 first protein", "MKTAYIAKQRQ"), (b"P2", "GGGG")]


def test_ids_are_those_of_esm(tmp_path: Path) -> None:
    path = written(tmp_path, b">a\nLAGVSERTIDPKQNFYMHWCXBUZOJ\n")
    (record,) = records(path, "refuse")
    assert record.residues.tolist() == [*range(4, 29), UNK]
    assert TOKENS[:4] == ("<cls>", "<pad>", "<eos>", "<unk>")
    assert TOKENS[32] == "<mask>"


def test_several_gzip_members_are_one_stream(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(TIDY[:25]) + gzip.compress(TIDY[25:]))
    assert read(path) == [(b"sp|P1 first protein", "MKTAYIAKQRQ"), (b"P2", "GGGG")]


def cases() -> list[tuple[str, bytes, list[str]]]:
    packed = gzip.compress(b"".join(b">p%d\n%s\n" % (i, b"MKTAYIAKQRQISFVK" * 40) for i in range(400)))
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    return [
        ("empty", b"", ["no FASTA record", "empty"]),
        ("blank lines only", b"\n\n", ["no FASTA record"]),
        ("not FASTA", b"HEADER  HYDROLASE\n", ["not FASTA", "'HEADER  HYDROLASE'", "'>'"]),
        ("no sequence", b">p1\nMKT\n>p2 lost\n>p3\nGG\n", ["record 2", "'p2 lost'", "no sequence"]),
        ("no sequence at the end", b">p1\nMKT\n>p2", ["record 2", "'p2'", "no sequence"]),
        ("a stop alone", b">p1\n*\n", ["record 1", "no sequence"]),
        ("no name", b">p1\nMKT\n>\nGG\n", ["record 2", "without a name"]),
        ("letter", b">p1\nMKT\n>p2\nGG1G\n", ["record 2", "'p2'", "'1'", "residue 3", "unknown_letters = 'count'"]),
        ("gap", b">p1\nMK-T\n", ["record 1", "'-'", "residue 3"]),
        ("stop inside", b">p1\nMK*T\n", ["record 1", "'*'", "residue 3"]),
        ("control character", b">p1\nMK\x1bT\n", ["record 1", r"'\x1b'"]),
        ("cut gzip", packed[: len(packed) // 2], ["ends early", "record", "cut short"]),
        ("damaged gzip", bytes(flipped), ["record"]),
    ]


@pytest.mark.parametrize(("content", "words"), [c[1:] for c in cases()], ids=[c[0] for c in cases()])
def test_bad_input_is_one_error_with_values(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=r".+") as caught:
        list(records(path, "refuse"))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert [w for w in words if w not in message] == []


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        list(records(tmp_path / "none.fasta", "refuse"))


def test_unknown_letters_can_be_counted(tmp_path: Path) -> None:
    path = written(tmp_path, b">p1\nMK-T-\n>p2\n1GG\n")
    counted: Counter[str] = Counter()
    found = [decode(r.residues) for r in records(path, "count", counted)]
    assert found == ["MK<unk>T<unk>", "<unk>GG"]
    assert counted == {"'-'": 2, "'1'": 1}


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.text("abcXYZ019|_", min_size=1, max_size=12),
            st.text(STANDARD_RESIDUES + "XBZUOJacd", min_size=1, max_size=90),
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
    ours = [(r.header.decode(), decode(r.residues).replace("<unk>", "J")) for r in records(path, "refuse")]
    assert ours == theirs


def test_residues_are_uint8(tmp_path: Path) -> None:
    (first, _) = records(written(tmp_path, TIDY), "refuse")
    assert first.residues.dtype == np.uint8
