"""FASTA against readers that do nothing clever: Biopython for good files, and lines one by one for any bytes at all."""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from Bio import SeqIO
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import data.sources.content_digest
import data.sources.fasta
from data.alphabet import decode
from data.settings import LetterPolicy
from data.sources.fasta import FastaSource
from data.transport.byte_stream import ByteStream
from data.transport.compression import compression
from support.inputs.fasta_content import byte_by_byte
from support.inputs.protein_files import lower

HEADER, RESIDUES, LINE = 20, 150, 160
LETTERS = b"ACDEFGHIKLMNPQRSTVWYBJOUXZ"
SPACES = b" \t\r\n\v\f"
MISSING = (b"NA", b"N/A", b"#N/A", b"<NA>", b"NAN", b"NONE", b"NULL", b"-", b"?")


class Read(NamedTuple):
    """What a reader makes of a file."""

    records: list[tuple[bytes, bytes]]
    rejected: list[tuple[int, bytes, int]]
    unknown: Counter[str]
    readable: bool


def is_nucleotides(header: bytes, letters: bytes) -> bool:
    """By the composition of 20 letters and more, or by a header of the PDB if all letters can be nucleotides."""
    bases = [letters.count(base) for base in (b"A", b"C", b"G", b"T", b"U", b"N")]
    shares = [bases[0], bases[1], bases[2], bases[3] + bases[4]]
    by_letters = len(letters) >= 20 and sum(bases) >= 0.95 * len(letters) and min(shares) > 0.01 * len(letters)
    return by_letters or (b"mol:na" in header and not set(letters) - set(b"ACGTUNXI"))


def line_by_line(text: bytes, policy: LetterPolicy) -> Read:
    """The rules, as plainly as they can be written."""
    read = Read([], [], Counter(), True)
    refused = read._replace(readable=False)
    if text.startswith((b"\xff\xfe", b"\xfe\xff", b">\0", b"\0>")):
        return refused
    if any(len(line) > LINE for line in text.split(b"\n")):
        return refused
    offset = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    found: list[tuple[int, bytes, list[bytes]]] = []
    for line in io.BytesIO(text[offset:]):
        if line.startswith(b">"):
            found.append((offset, line[1:].strip(), []))
        elif found:
            found[-1][2].append(line)
        elif line.strip():
            return refused
        offset += len(line)
    for number, (at, header, lines) in enumerate(found, 1):
        letters = bytes(byte for byte in b"".join(lines) if byte not in SPACES)
        letters = letters[:-1] if letters.endswith((b"*", b".")) else letters
        odd = [byte for byte in letters.upper() if byte not in LETTERS]
        wrong = not header or len(header) > HEADER or 0 in header
        wrong = wrong or not 1 <= len(letters) <= RESIDUES or 0 in letters
        wrong = wrong or letters.upper() in MISSING or is_nucleotides(header, letters.upper())
        if wrong or (odd and policy == "refuse"):
            read.rejected.append((number, header[:200], at))
            continue
        # Lower case letters above 127 do not exist for bytes.upper, so these are the bytes that came.
        read.unknown.update(repr(chr(byte)) for byte in letters if byte not in LETTERS + LETTERS.lower())
        read.records.append((header, bytes(b if b in LETTERS and b != ord("J") else 0 for b in letters.upper())))
    return read if found else refused


def through_blocks(path: Path, policy: LetterPolicy) -> Read:
    """What the source reads, with the bounds of this test."""
    with pytest.MonkeyPatch.context() as patch:
        lower(patch, header=HEADER, residues=RESIDUES, line=LINE)
        return _through_blocks(path, policy)


def _through_blocks(path: Path, policy: LetterPolicy) -> Read:
    read, said = Read([], [], Counter(), True), ""
    try:
        for block in FastaSource(str(path), policy).blocks():
            token_at = header_at = 0
            for length, header_length in zip(block.lengths.tolist(), block.header_lengths.tolist(), strict=True):
                header = block.headers[header_at : header_at + header_length].tobytes()
                letters = decode(block.tokens[token_at : token_at + length]).replace("<unk>", "\0").encode()
                read.records.append((header, letters))
                token_at, header_at = token_at + length, header_at + header_length
            read.rejected.extend((bad.record, bad.header, bad.offset) for bad in block.rejected)
            read.unknown.update(block.unknown_letters)
    except ValueError as error:
        said = str(error)
    assert not said or said.startswith(f"{path}: ")
    assert "\n" not in said
    return Read([], [], Counter(), False) if said else read


def check(monkeypatch: pytest.MonkeyPatch, path: Path, text: bytes, policy: LetterPolicy, sizes: Iterator[int]) -> None:
    """With and without the kernel, at every chunk size, blocks hold what `line_by_line` does."""
    path.write_bytes(text)
    expected = line_by_line(text, policy)
    if not expected.readable:
        expected = Read([], [], Counter(), False)
    for size in sizes:

        class Slow(ByteStream):
            def chunks(self, offset: int = 0, size: int = size) -> Iterator[bytes]:
                whole = b"".join(super().chunks(offset))
                yield from (whole[at : at + size] for at in range(0, len(whole), size))

        for kernel in (True, False):
            with monkeypatch.context() as patched:
                if not kernel:
                    byte_by_byte(patched)
                patched.setattr(data.sources.fasta, "ByteStream", Slow)
                patched.setattr("data.sources.fasta_text._LONG_BYTES", 40 if size < 64 else 1 << 20)
                patched.setattr(data.sources.fasta, "BLOCK_BYTES", 64 if size < 64 else 1 << 16)
                assert through_blocks(path, policy) == expected, (size, kernel)


PARTS = (
    b">|\n>|>p|\n|\r\n|\n\n| |\t|*|*\n|-|1|\0|\xe9|\r|\x80|M|k|J|ACDEFGHIKL|ACDEFGHIKL\n|>q q\nMK\n|\n>a\n|"
    b"\n>bb bb \r\n|\n>c\nGG*\n|\xef\xbb\xbf|.|na|nan|ACGUACGTACGTACGTACGN|TTTTTTTTTTTTTTTTTTTT|\n>d mol:na\nGCX\n"
).split(b"|")
BYTES = st.lists(st.sampled_from([*PARTS, b"m" * 63, b"Y" * 64, b"W" * 65]), max_size=40).map(b"".join)


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BYTES, st.booleans(), st.sampled_from(["refuse", "count"]))
@example(b"\n>a\n >" + b"m" * 62, False, "refuse")
@example(b">a\nM\n" * 40 + b">" + b"h" * 21 + b"\nM\n>" + b"h" * 20 + b"\n" + b"M" * 150 + b"*", False, "refuse")
def test_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, fasta: bool, policy: LetterPolicy
) -> None:
    check(monkeypatch, tmp_path / "a.fasta", b">" * fasta + text, policy, iter((1, 7, 64, 4096)))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, fasta: bool) -> None:
    check(monkeypatch, tmp_path / "a.fasta", b">" * (fasta or bool(compression(text))) + text, "count", iter((3, 4096)))


PROTEINS = st.lists(
    st.tuples(
        st.text("abcXYZ019|_ =>é", min_size=1, max_size=40).map(str.strip).filter(bool),
        st.text("ACDEFGHIKLMNPQRSTVWYXBZUOacdefghiklm", min_size=1, max_size=400).filter(
            lambda s: s.upper() not in ("NA", "NAN", "NONE", "NULL")
        ),
        st.integers(1, 150),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROTEINS, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 5000))
def test_good_files_against_biopython(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proteins: list[tuple[str, str, int, int]],
    end: str,
    closed: bool,
    size: int,
) -> None:
    lines: list[str] = []
    for name, letters, width, blank in proteins:
        lines += [f">{name}", *(letters[i : i + width] for i in range(0, len(letters), width)), *[""] * blank]
    text = end.join(lines) + end * closed
    path = tmp_path / "a.fasta"
    path.write_bytes(text.encode())
    theirs = [(r.description, str(r.seq).upper()) for r in SeqIO.parse(io.StringIO(text, newline=None), "fasta")]
    for name in ("_READ_BYTES", "_LEAST_BYTES"):
        monkeypatch.setattr(f"data.transport.byte_stream.{name}", size)
    for kernel in (True, False):
        with monkeypatch.context() as patched:
            if not kernel:
                byte_by_byte(patched)
            ours = []
            for block in FastaSource(str(path), "refuse").blocks():
                letters_left, headers_left = decode(block.tokens), block.headers.tobytes()
                for n, h in zip(block.lengths.tolist(), block.header_lengths.tolist(), strict=True):
                    ours.append((headers_left[:h].decode(), letters_left[:n]))
                    letters_left, headers_left = letters_left[n:], headers_left[h:]
            assert ours == theirs
