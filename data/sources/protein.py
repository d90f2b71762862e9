"""Proteins: whether a record is one, whether a whole source holds them, and if not, why and what to change.

In: header and letters of a record; the first block of a source. Out: a `RejectionReason` or a reason, if there is one.
Kept: nothing.

Sources of every format, and the tables of `finetune`, call these functions, so that all of them refuse the same records
in the same words. Most of what is no protein is recognized in a single record. But short nucleotides, three-letter
codes and PIR's title lines consist of letters that are amino acids too: they are recognized only in many records
together.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS, REFUSED, UNK
from data.settings import LetterPolicy, SourceContent
from data.sources.block import Kind, RecordBlock
from zymogen.settings.origin import format_option

MAX_RESIDUES = 1_000_000
"""Longest protein; the longest known ones have some 45,000 residues, and a genome in one record has more."""
MAX_HEADER_BYTES = 1 << 16
"""Longest header of a record."""
WHITESPACE = b" \t\r\n\v\f"
"""What is ignored between letters and around a header."""

_TOKEN_OF = LETTER_IDS.tobytes()
_LETTERS = bytes(byte for byte in range(256) if LETTER_IDS[byte] != REFUSED)
_MARK = b"\xef\xbb\xbf"
_MISSING = frozenset((b"NA", b"N/A", b"#N/A", b"<NA>", b"NAN", b"NONE", b"NULL", b"-", b"?"))
_CONTINUATION = re.compile(rb"[\x80-\xbf]*")
"""The bytes of UTF-8 that follow the first one of a letter."""
_NUCLEOTIDES = b"ACGTUNacgtun"
_LEAST_NUCLEOTIDES = 20
"""Fewest letters of a record that its composition shows to be nucleotides. In 9,478 real proteins at most 57 % of the
letters of one with 20 or more are A, C, G, T, U or N."""
_NUCLEIC_HEADER = re.compile(
    rb"\bmol:(?:na|dna|rna)\b|\b[DR]NA(?:/[DR]NA)?(?: hybrid)? ?\(|[DR]NA *(?:\||$)|\b5'-[DR]?\(", re.IGNORECASE
)
"""How the PDB names chains of nucleotides: ``mol:na`` in pdb_seqres.txt, ``|DNA (5'-D(*CP*GP*)-3')|`` of RCSB."""


# One record ---------------------------------------------------------------------------------------


class RejectionReason(NamedTuple):
    """Why a record is not a protein sequence."""

    kind: Kind
    reason: str
    """What is wrong and what to change, as the rest of a sentence that begins with the record."""


def letters_of(text: bytes) -> bytes:
    """The letters of a record: its text without whitespace and without a stop codon at the end, ``*`` or gffread's."""
    letters = text.translate(None, WHITESPACE)
    return letters[:-1] if letters.endswith((b"*", b".")) else letters


def is_missing(letters: bytes) -> bool:
    """Whether a record has no letters, or a word that tables have for a missing value, such as NA, nan or None.

    N-A or N-A-N could be a peptide, but in files of proteins these are lost values.
    """
    return not letters or (len(letters) <= 4 and letters.upper() in _MISSING)


def rejection(
    header: bytes,
    letters: bytes,
    unknown_letters: LetterPolicy,
    content: SourceContent = "protein",
    *,
    may_be_cut: bool = False,
) -> RejectionReason | None:
    """Why a record is not a protein sequence, and what to change; None if it is one.

    Args:
        header: without surrounding whitespace and, in FASTA, without ``>``.
        letters: what `letters_of` returned.
        unknown_letters: whether letters outside the alphabet are allowed.
        content: "any" if letters are amino acids whatever they look like.
        may_be_cut: whether the reader cuts a sequence above the limit, so that its length is not known.
    """
    if not header:
        return RejectionReason(
            "bad header",
            "has a header without a name; write an identifier after '>', or where its format has the id of a record",
        )
    if (count := len(header)) > MAX_HEADER_BYTES:
        return RejectionReason(
            "bad header", f"has a header of {count} bytes; at most {MAX_HEADER_BYTES} are read; shorten it"
        )
    if b"\0" in header:
        return RejectionReason(
            "damaged", "has a NUL byte in its header: the file is damaged or no text; remove the record"
        )
    if not letters and b"\r" in header:
        return RejectionReason(
            "damaged",
            "has no sequence, but a carriage return in its header; end lines with \\n or \\r\\n, not with \\r alone",
        )
    if not letters:
        return RejectionReason("no sequence", "has no sequence; remove the record or fill it")
    if content == "protein" and is_missing(letters):
        return RejectionReason("missing value", f"has {shown(letters)}, a word for a missing value; fill or remove it")
    if content == "protein" and _is_nucleotides(header, letters):
        return RejectionReason("nucleotides", "holds nucleotides (DNA or RNA), no protein; translate or remove it")
    if len(letters) > MAX_RESIDUES:
        length = "more" if may_be_cut else f"{len(letters)} residues, more"
        return RejectionReason(
            "too long", f"has {length} than the {MAX_RESIDUES} that a protein may have; remove the record"
        )
    if (at := letters.find(b"\0")) >= 0:
        words = f"has a NUL byte at residue {at + 1}: the file is damaged or no text; remove the record"
        return RejectionReason("damaged", words)
    at = letters.translate(_TOKEN_OF).find(REFUSED) if unknown_letters == "refuse" else -1
    if at < 0:
        return None
    letter = letters[at : at + 1 + len(_CONTINUATION.match(letters, at + 1)[0])]  # type: ignore[index]
    if letters.startswith(_MARK, at):
        return RejectionReason(
            "damaged",
            f"has a byte order mark at residue {at + 1}, from a file that was appended to another; remove the three "
            "bytes EF BB BF there, or name the two files",
        )
    if letter == b"-":
        return RejectionReason(
            "gap",
            f"has '-' at residue {at + 1}, a gap: it comes from an alignment; remove the gaps (every '-' and '.'), so "
            "that each record is the protein alone",
        )
    is_stop = letter in b"*."
    what = "a stop codon inside the protein" if is_stop else "which is no amino acid letter"
    return RejectionReason(
        "inner stop codon" if is_stop else "unknown letter",
        f"has {shown(letter)} at residue {at + 1}, {what} (allowed: ACDEFGHIKLMNPQRSTVWY, BJOUXZ and one trailing '*' "
        "or '.'); correct the record"
        + format_option("data.unknown_letters", "count", ", or set ", " to read such letters as <unk>"),
    )


def _is_nucleotides(header: bytes, letters: bytes) -> bool:
    """Whether letters are nucleotides: by their composition, or, if no letter contradicts it, by their header."""
    others = letters.translate(None, _NUCLEOTIDES)
    if len(letters) >= _LEAST_NUCLEOTIDES and 20 * len(others) <= len(letters):
        counts = [sum(map(letters.count, (base, base.lower()))) for base in (b"A", b"C", b"G", b"T", b"U")]
        *three, thymine, uracil = counts
        if min(*three, thymine + uracil) > _LEAST_BASE * len(letters):
            return True
    return not others.translate(None, b"XIxi") and _NUCLEIC_HEADER.search(header) is not None


def token_ids(letters: bytes, counted: Counter[str]) -> bytes:
    """Token ids of the letters of an accepted record; unknown letters become <unk> and are added to `counted`."""
    tokens = letters.translate(_TOKEN_OF)
    if REFUSED in tokens:
        counted.update(repr(chr(byte)) for byte in letters.translate(None, _LETTERS))
        tokens = tokens.replace(bytes([REFUSED]), bytes([UNK]))
    return tokens


def shown(text: bytes | str, most: int = 60) -> str:
    """Text of a file for a message: at most `most` characters, with control characters escaped."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return repr(words.strip("\r\n")[:most])


# A source -----------------------------------------------------------------------------------------

BEGINNING_RECORDS = 1000
"""A build that continues after so many records of a source does not check its content again. With fewer, the connection
may have been lost before there was enough to check, so the first block that follows is checked."""
_SHARE = 0.95
"""Share of the first block that must look like something else than proteins for the source to be refused."""
_LEAST_RESIDUES = 1000
"""Fewest residues of the first block of which the composition is checked. In 5.7 million residues of real proteins, at
most 53 % of 1,000 neighbours are A, C, G, T, U or N, but up to 96 % of 50."""
_LEAST_BASE = 0.01
"""Least share of each of A, C, G and T or U in nucleotides. Silk, antifreeze proteins and poly-alanine have only two or
three of these letters."""
_LEAST_TRIPLETS = 10
"""Fewest triplets that are checked for three-letter codes. One in 300 triplets of residues is a code by chance."""
_PIR_HEADER = re.compile(rb"(?:P1|F1|D1|DL|DC|RL|RC|N1|N3|XX);\S")
_CODES = "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL SEC PYL ASX GLX XAA UNK MSE"


def _ids(letters: str) -> NDArray[np.uint8]:
    return LETTER_IDS[np.frombuffer(letters.encode(), np.uint8)]


_BASES = _ids("ACGTUN")
_PLACES = np.array([1 << 12, 1 << 6, 1], np.int32)
_IS_CODE = np.zeros(1 << 18, np.bool_)
_IS_CODE[np.array([_ids(code) for code in _CODES.split()], np.int32) @ _PLACES] = True


def wrong_content(block: RecordBlock) -> str:
    """What a source holds instead of proteins, and what to do; empty if it holds proteins.

    Args:
        block: the first records of the source. Only these are checked, so the result does not depend on where reading
            was interrupted or on how many processes read.
    """
    insist = format_option("data.ingest.content", "any", ", or, if it holds proteins nevertheless, set ")
    num_records = len(block.lengths) + len(block.rejected)
    num_pir = sum(_PIR_HEADER.match(header) is not None for header in _headers(block))
    if num_pir > _SHARE * num_records:
        return (
            f"is PIR, not FASTA: {num_pir} of its first {num_records} headers begin like '>P1;', and the line after "
            "each is a title, whose letters would become residues; convert it, for example with "
            f"Bio.SeqIO.convert('x.pir', 'pir', 'x.fasta', 'fasta'){insist}"
        )
    if (share := _share_of_codes(block)) > _SHARE:
        return (
            f"is written in three-letter codes: {share:.1%} of the first {len(block.tokens)} letters, read in threes, "
            f"are codes such as MET, ALA, LYS; write one letter a residue (Bio.SeqUtils.seq1){insist}"
        )
    if (num_nucleic := block.rejected_kinds["nucleotides"]) > _SHARE * num_records:
        return (
            f"holds nucleotides: {num_nucleic} of its first {num_records} records are DNA or RNA, whose letters all "
            f"pass for amino acids; give the translated proteins (.faa){insist}"
        )
    if len(block.tokens) < _LEAST_RESIDUES:
        return ""
    dashes, dots = (block.unknown_letters.get(repr(gap), 0) for gap in "-.")
    # A '.' may be a stop codon of gffread's, but not in records that all have one length.
    num_gaps = dashes + (dots if dashes or np.ptp(block.lengths) == 0 else 0)
    if num_gaps > (1 - _SHARE) * len(block.tokens):
        return (
            f"is an alignment: {num_gaps} of its first {len(block.tokens)} letters are gaps ('-' or '.'); remove the "
            f"gaps{insist}"
        )
    counts = np.bincount(block.tokens, minlength=256)[_BASES]
    share = float(counts.sum() / len(block.tokens))
    adenine, cytosine, guanine, thymine, uracil, _ = counts.tolist()
    if share > _SHARE and min(adenine, cytosine, guanine, thymine + uracil) > _LEAST_BASE * counts.sum():
        return (
            f"holds nucleotides: {share:.1%} of its first {len(block.tokens)} letters are A, C, G, T, U or N, which "
            f"all pass for amino acids; give the translated proteins (.faa){insist}"
        )
    return ""


def _headers(block: RecordBlock) -> Iterator[bytes]:
    text, at = block.headers.tobytes(), 0
    for length in block.header_lengths.tolist():
        yield text[at : at + length]
        at += length
    for rejected in block.rejected:
        yield rejected.header


def _share_of_codes(block: RecordBlock) -> float:
    """Share of the block's residues that, three by three from the beginning of each record, are amino acid codes."""
    whole = block.lengths % 3 == 0
    if len(block.tokens) < 3 * _LEAST_TRIPLETS or block.lengths[whole].sum() <= _SHARE * len(block.tokens):
        return 0.0
    triplets = block.tokens[np.repeat(whole, block.lengths)].reshape(-1, 3).astype(np.int32)
    return float(3 * _IS_CODE[triplets @ _PLACES].sum() / len(block.tokens))
