"""Inputs that a corpus should not be, and what becomes of each: records, or one error; for test_data_hostile.py.

Each input is a file and the row of a list of hostile inputs that it belongs to. Those that need a full disk or another
user are tested where such a disk and such a user are made; `ELSEWHERE` says where.
"""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import NamedTuple

from backports import zstd
from Bio import SeqIO

from support.inputs.protein_files import records, stockholm, swiss_dat, uniprot_xml

Records = list[tuple[bytes, str]]
TWO: Records = [(b"p1 one", "MKTAYIAKQR"), (b"p2", "GGACDE")]
PLAIN = b">p1 one\nMKTAYIAKQR\n>p2\nGGACDE\n"
TABLE = b"id,sequence,family\np1,MKTAYIAKQR,KINASE\np2,GGACDE,LIGASE\n"
ROWS: Records = [(b"p1", "MKTAYIAKQR"), (b"p2", "GGACDE")]
MANY = b"".join(
    b">p%d\n%s\n" % (i, "".join(random.Random(i).choices("ACDEFGHIKLMNPQRSTVWY", k=300)).encode()) for i in range(300)
)


class Hostile(NamedTuple):
    """One input."""

    content: bytes | Callable[[], bytes]
    records: Records | None = None
    """What it holds where it is rightly accepted; None where it is refused."""
    words: tuple[str, ...] = ()
    """What the error says besides the file: the record, where there is one, what is wrong, and the remedy."""
    name: str = "x.fasta"
    options: tuple[str, ...] = ()


def good(content: bytes | Callable[[], bytes], records: Records = TWO, name: str = "x.fasta") -> Hostile:
    return Hostile(content, records, name=name)


def bad(content: bytes | Callable[[], bytes], *words: str, name: str = "x.fasta", options: str = "") -> Hostile:
    return Hostile(content, None, words, name, tuple(options.split()))


# How they are made --------------------------------------------------------------------------------


def members(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part) for part in parts)


def bgzf(text: bytes, *, ended: bool = True) -> bytes:
    """As bgzip writes it: members of 20 kB that say their size, and an empty one at the end."""
    blocks = []
    for part in [text[at : at + 20_000] for at in range(0, len(text), 20_000)] + [b""] * ended:
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(part) + packer.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(packed) + 25)
        blocks.append(head + packed + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks)


def with_fields(text: bytes) -> bytes:
    """A gzip with an extra field and a checksum of its head."""
    head = b"\x1f\x8b\x08\x06\0\0\0\0\0\x03" + struct.pack("<H", 6) + b"XY\x02\0ab"
    return head + struct.pack("<H", zlib.crc32(head) & 0xFFFF) + gzip.compress(text)[10:]


def flipped(packed: bytes, at: int) -> bytes:
    return packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :]


def long_window() -> bytes:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 29})
    return packer.compress(PLAIN) + packer.flush()


def archive(kind: str) -> bytes:
    packed = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("x.fasta", PLAIN)
    else:
        with tarfile.open(fileobj=packed, mode="w:gz") as file:
            about = tarfile.TarInfo("x.fasta")
            about.size = len(PLAIN)
            file.addfile(about, io.BytesIO(PLAIN))
    return packed.getvalue()


def bomb(pack: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    return lambda: pack(b">p1\n" + (b"M" * 60 + b"\n") * 400_000)


def of_letters(letters: str, name: str = ">p{} x", title: str = "") -> bytes:
    proteins = ("".join(random.Random(i).choices(letters, k=60)) for i in range(40))
    return "".join(f"{name.format(i)}\n{title}{protein}\n" for i, protein in enumerate(proteins)).encode()


def genbank_of_dna() -> bytes:
    text = io.StringIO()
    SeqIO.write(records("DNA")[:1], text, "genbank")
    return text.getvalue().encode()


def in_codes() -> bytes:
    codes = ("Met", "Ala", "Lys", "Thr", "Tyr", "Ile", "Gln", "Arg", "Glu", "Trp")
    return "".join(f">p{i}\n{''.join(random.Random(i).choices(codes, k=20))}\n" for i in range(5)).encode()


def doctype(entities: str, use: str = "&a;") -> bytes:
    text = uniprot_xml().decode().replace("Aspartate", use, 1)
    return text.replace("<uniprot", f"<!DOCTYPE uniprot [{entities}]>\n<uniprot", 1).encode()


LAUGHS = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
UNIREF = (
    b'<?xml version="1.0"?><UniRef50 xmlns="http://uniprot.org/uniref" releaseDate="2026-01-01" version="2026_01">'
    b'<entry id="UniRef50_P1"><name>Cluster</name><representativeMember><sequence length="3">MKT</sequence>'
    b"</representativeMember></entry></UniRef50>"
)
PAGE = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body><p>Not found</p></body></html>\n"
CUT_XML = uniprot_xml()[: uniprot_xml().index(b"<entry", 900)]

# What becomes of them -----------------------------------------------------------------------------

RECORD_1, RECORD_2 = "record 1 ('p1", "record 2 ('p2"
NO_FASTA = "but a FASTA file starts with '>'"
COPY = "copy or download it again"

INPUTS: dict[str, Hostile] = {
    # text that is odd, and right
    "CRLF": good(PLAIN.replace(b"\n", b"\r\n")),
    "UTF-8 BOM": good(b"\xef\xbb\xbf" + PLAIN),
    "latin-1 header": good(PLAIN.replace(b"one", b"caf\xe9"), [(b"p1 caf\xe9", TWO[0][1]), TWO[1]]),
    "no last newline": good(PLAIN[:-1]),
    "> in header": good(PLAIN.replace(b"one", b"a > b >c"), [(b"p1 a > b >c", TWO[0][1]), TWO[1]]),
    "gzip members": good(members(PLAIN[:13], PLAIN[13:14], b"", PLAIN[14:])),
    "zstd frames, one to be skipped": good(
        zstd.compress(PLAIN[:13]) + b"\x50\x2a\x4d\x18\x03\0\0\0abc" + zstd.compress(PLAIN[13:])
    ),
    "gzip with FHCRC and FEXTRA": good(with_fields(PLAIN)),
    "bgzf": good(bgzf(PLAIN), name="x.faa.bgz"),
    "newline in file name": good(PLAIN, name="x\ny.fasta"),
    "file name that is not UTF-8": good(PLAIN, name="caf\udce9.fasta"),
    "duplicate ids": good(PLAIN.replace(b"p2", b"p1 one"), [TWO[0], (b"p1 one", "GGACDE")]),
    "CR inside a sequence": good(PLAIN.replace(b"TAY", b"TA\rY")),
    "one stop at the end": good(PLAIN.replace(b"QR\n", b"QR*\n")),
    # records that are none
    "lone CR": bad(PLAIN.replace(b"\n", b"\r"), RECORD_1, "not with \\r alone"),
    "> in a sequence": bad(PLAIN.replace(b"TAY", b"T>Y"), RECORD_1, "'>' at residue 4", "correct the record"),
    "; in a sequence": bad(PLAIN.replace(b"TAY", b"T;Y"), RECORD_1, "';' at residue 4", "correct the record"),
    "* in a sequence": bad(PLAIN.replace(b"TAY", b"T*Y"), RECORD_1, "'*' at residue 4", "one trailing '*'"),
    "**": bad(PLAIN.replace(b"CDE", b"CDE**"), RECORD_2, "'*' at residue 7", "one trailing '*'"),
    "digits": bad(PLAIN.replace(b"MKT", b"  1 MKT"), RECORD_1, "'1' at residue 1", "correct the record"),
    "NUL in a sequence": bad(PLAIN.replace(b"TAY", b"T\0Y"), RECORD_1, "NUL byte at residue 4", "remove the record"),
    "NUL in a header": bad(PLAIN.replace(b"one", b"o\0e"), RECORD_1, "NUL byte in its header", "remove the record"),
    "NUL tail": bad(PLAIN + b"\0" * 512, RECORD_2, "NUL byte at residue 7", "remove the record"),
    "NUL in the header of a table": bad(
        TABLE.replace(b"p2", b"p\0"), "record 2 ('p\\x00')", "NUL byte", "remove the record", name="x.csv"
    ),
    "gap -": bad(PLAIN.replace(b"TAY", b"T-Y"), RECORD_1, "'-' at residue 4", "alignment; remove the gaps"),
    "gap .": bad(PLAIN.replace(b"TAY", b"T.Y"), RECORD_1, "'.' at residue 4, a stop codon", "correct the record"),
    "a3m": bad(b">q\nMKTAY\n>p2\nMKt--AY\n", RECORD_2, "'-' at residue 4", "remove the gaps", name="x.a3m"),
    "alignment whose gaps would be counted": bad(
        of_letters("ACDEFGHIKL-"), "is an alignment", "remove the gaps", options="--unknown-letters count"
    ),
    "empty record": bad(b">p1\n>p2\nMK\n", RECORD_1, "has no sequence; remove the record or fill it"),
    "empty last record": bad(b">p1\nMK\n>p2", RECORD_2, "has no sequence; remove the record or fill it"),
    "no name": bad(b">p1\nMK\n>\nGG\n", "record 2 ('')", "without a name; write an identifier"),
    "BOM in the middle": bad(PLAIN + b"\xef\xbb\xbf>p3\nMK\n", RECORD_2, "byte order mark at residue 7", "remove"),
    "line of 2 MB": bad(lambda: b">p1\n" + b"M" * 2_000_000, RECORD_1, "more than the 1000000 that a protein may have"),
    "header of 100 kB": bad(b">p1" + b"x" * 100_000 + b"\nMK\n", RECORD_1, "at most 65536 are read; shorten it"),
    # files that are something else
    "line above the cap": bad(lambda: b">p1\n" + b"M" * (65 << 20), "line of more than 67108864", "break the line"),
    "empty file": bad(b"", "(empty file); remove it from data.sources or fill it"),
    "blank lines": bad(b"\n \r\n\n", "(empty file); remove it from data.sources or fill it"),
    "leading text": bad(b"my proteins\n" + PLAIN, "the first line is 'my proteins'", NO_FASTA),
    "; first": bad(b";comment\n" + PLAIN, "the first line is ';comment'", NO_FASTA),
    "FASTQ": bad(b"@r1\nACGT\n+\nIIII\n", "the first line is '@r1'", NO_FASTA),
    "Clustal": bad(b"CLUSTAL W (1.83)\n\np1 MKT\n", "the first line is 'CLUSTAL W (1.83)'", NO_FASTA),
    "PDB": bad(b"HEADER    HYDROLASE\n", "the first line is 'HEADER    HYDROLASE'", NO_FASTA),
    "HTML": bad(PAGE, "the first line is '<!DOCTYPE html>'", NO_FASTA),
    "LFS pointer": bad(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs", NO_FASTA),
    "UTF-16": bad(PLAIN.decode().encode("utf-16"), "UTF-16", "save it as UTF-8"),
    "UTF-16 without BOM": bad(PLAIN.decode().encode("utf-16-be"), "UTF-16", "save it as UTF-8"),
    "UTF-32": bad(PLAIN.decode().encode("utf-32"), "UTF-32", "save it as UTF-8"),
    "DNA": bad(of_letters("ACGT"), "holds nucleotides", "give the translated proteins", "--content any"),
    "RNA": bad(of_letters("ACGU"), "holds nucleotides", "give the translated proteins", name="x.faa"),
    "DNA in a table": bad(
        b"sequence\n" + b"".join(of_letters("ACGT").split(b"\n")[1::2][i] + b"\n" for i in range(40)),
        *("holds nucleotides", "--content any"),
        name="x.csv",
    ),
    "three-letter codes": bad(in_codes(), "three-letter codes", "write one letter a residue"),
    "PIR": bad(of_letters("ACDEFGHIKL", ">P1;X{}", "ALPHA CHAIN\n"), "is PIR", "convert it", name="x.pir"),
    # packed
    "gzip truncated": bad(
        gzip.compress(MANY)[:-2000], "ends early", "in or after record 289 ('p288')", COPY, name="x.fasta.gz"
    ),
    "zstd truncated": bad(zstd.compress(MANY)[:-2000], "ends early", "in the first record", COPY, name="x.fasta.zst"),
    "gzip bomb": bad(bomb(gzip.compress), "become more than", "unpack it if the file is to be trusted"),
    "zstd bomb": bad(bomb(zstd.compress), "become more than", "unpack it if the file is to be trusted"),
    "gzip flipped": bad(flipped(gzip.compress(MANY), 30_000), "gzip", "in the first record", COPY, name="x.gz"),
    "gzip with a wrong checksum": bad(flipped(gzip.compress(PLAIN), -6), "record", COPY, name="x.gz"),
    "gzip with garbage after it": bad(
        gzip.compress(PLAIN) + b"garbage", "is no gzip", "record 1 ('p1 one')", COPY, name="x.gz"
    ),
    "zstd --long=29": bad(long_window, "zstd", "pack it again without --long", name="x.zst"),
    "bgzf cut at a block": bad(bgzf(MANY, ended=False), "without its end block", "record 299", COPY, name="x.faa.gz"),
    "zip": bad(archive("zip"), "is a zip file", "unpack it"),
    "bz2": bad(bz2.compress(PLAIN), "is a bzip2 file", "unpack it"),
    "xz": bad(lzma.compress(PLAIN), "is a xz file", "unpack it"),
    "tar.gz": bad(archive("tar"), "tar", "unpack it", name="x.tar.gz"),
    ".Z": bad(b"\x1f\x9d\x90" + bytes(range(64)), "compress (.Z)", "unpack it", name="x.fasta.Z"),
    "gzip in gzip": bad(
        gzip.compress(gzip.compress(PLAIN)), "a gzip file inside its gzip", "unpack it", name="x.fasta.gz"
    ),
    # XML
    "billion laughs": bad(doctype(LAUGHS, "&a9;"), "before the first record", COPY, name="x.xml"),
    "quadratic blow-up": bad(
        lambda: doctype(f'<!ENTITY a "{"x" * 50_000}">', "&a;" * 5000), "first record", COPY, name="x.xml"
    ),
    "external entity": bad(
        doctype('<!ENTITY a SYSTEM "file:///etc/hostname">'), "before the first record", COPY, name="x.xml"
    ),
    "UniRef XML": bad(UNIREF, "UniRef XML", "take the FASTA file of the same UniRef release", name="x.xml"),
    "html named .xml": bad(PAGE, "outermost element is <html>", "give the protein sequences as", name="x.xml"),
    "XML cut": bad(CUT_XML, "after record 2 ('Q00001", "ends early", COPY, name="x.xml"),
    # tables
    "csv: separators at the ends": good(TABLE.replace(b"\n", b",\n"), ROWS, "x.csv"),
    "csv: separators at the ends of rows": good(TABLE.replace(b"ASE\n", b"ASE,\n"), ROWS, "x.csv"),
    "tsv: separators at the ends of rows": good(TABLE.replace(b"ASE\n", b"ASE,\n").replace(b",", b"\t"), ROWS, "x.tsv"),
    "csv: row names of R": bad(
        b'"sequence"\n"p1","MKTAYIAKQR"\n', "saw 2", "as R writes names of rows, give it one", name="x.csv"
    ),
    "csv: a field too many": bad(
        TABLE.replace(b"p2,", b"p2,x,"), "Expected 3 fields in line 3, saw 4", "Put quotes around", name="x.csv"
    ),
    "csv: a field too few": bad(
        TABLE.replace(b"p2,", b""), "record 2 ('GGACDE')", "has 2 fields, in line 3, where 3 are expected", name="x.csv"
    ),
    "csv: unclosed quote": bad(TABLE.replace(b"LIG", b'"LIG'), "line 3", "quotation mark left open", name="x.csv"),
    "csv: UTF-16": bad(TABLE.decode().encode("utf-16"), "not UTF-8", "save it as UTF-8", name="x.csv"),
    "csv: empty": bad(b"", "no row in it", "remove it from data.sources or fill it", name="x.csv"),
    "csv: no column": bad(TABLE.replace(b"sequence", b"heavy"), "Name one with '?sequence=COLUMN'", name="x.csv"),
    "csv: semicolons": bad(TABLE.replace(b",", b";"), "Name one with '?sequence=COLUMN'", name="x.csv"),
    "csv: two columns of one name": bad(
        b"id,seq,seq\np1,MK,GG\n", "2 of its 3 columns are called 'seq'", "give each a name of its own", name="x.csv"
    ),
    "jsonl: broken": bad(b'{"seq":"MK"}\n{"seq":"M\n', "cannot be read", "in row 1", COPY, name="x.jsonl"),
    "jsonl: a list": bad(b'{"seq":["M","K"]}\n', "holds list in row 1, not text", "?sequence=COLUMN", name="x.jsonl"),
    "jsonl: null": bad(b'{"id":"p1","seq":null}\n', RECORD_1, "has no sequence; remove", name="x.jsonl"),
    "parquet: garbage": bad(b"PAR1 garbage", "cannot be read", "check its suffix", COPY, name="x.parquet"),
    # formats
    ".dat that is no Swiss-Prot": bad(b"my proteins\n", "before the first record", COPY, name="x.dat"),
    "GenBank of DNA": bad(genbank_of_dna, "no protein in it", "give its proteins as FASTA", name="x.gb"),
    "Stockholm cut": bad(stockholm()[: len(stockholm()) // 2], "after record", COPY, name="x.sto"),
    "Swiss-Prot cut": bad(swiss_dat()[:-200], "after record 63 ('A00058", COPY, name="x.dat"),
}

ELSEWHERE: dict[str, str] = {
    "source, or its folder, that cannot be read": (
        "test_data_shared.py::test_closed_folders_are_one_line_for_every_command"
    ),
    "folder of stores that cannot be written": "test_data_shared.py::test_nowhere_to_write_is_one_line",
    "split of a colleague": "test_data_shared.py::test_another_user_finds_what_was_derived",
    "store on a full disk": "test_data_build_limits.py::test_a_full_disk",
    "split and clusters on a full disk": "test_data_publish.py::test_no_room_for_what_is_derived",
}
"""Test of what needs another user or a full disk."""
