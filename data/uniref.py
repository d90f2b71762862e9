"""UniRef headers: what UniProt writes behind the ``>`` of a UniRef100, UniRef90 or UniRef50 record.

In: a header without ``>``. Out: its fields. Nothing is kept.

The format (https://www.uniprot.org/help/fasta-headers)::

    UniRef50_Q9K794 Putative AgrB-like protein n=2 Tax=Bacillus TaxID=1386 RepID=AGRB_BACHD
"""

import re
from typing import NamedTuple

_HEADER = re.compile(rb"(UniRef(?:100|90|50)_[^\s|]+)(?:\s+(.*))?", re.DOTALL)
# Names and taxa may hold blanks and '=' ("(EC=1.1.1.1)", "n=3 subunit"), so the fields are taken from the end.
_REP_ID = re.compile(rb"(?:(.*)\s)?RepID=(\S+)", re.DOTALL)
_TAX_ID = re.compile(rb"(?:(.*)\s)?TaxID=(\S*)", re.DOTALL)
_TAX = re.compile(rb"(?:(.*)\s)?Tax=(.*)", re.DOTALL)
_MEMBERS = re.compile(rb"(?:(.*)\s)?n=(\d+)", re.DOTALL)


class UniRefHeader(NamedTuple):
    """One UniRef cluster as its header tells it; None for a field that is not there."""

    cluster_id: str
    """``UniRef50_A0A009``: unique in its database."""
    name: str
    """Name of the cluster, empty where there is none."""
    num_members: int | None
    """Members of the cluster."""
    tax: str | None
    """Lowest taxon that all members share."""
    tax_id: int | None
    """Its number at NCBI; None where it is written N/A, too."""
    rep_id: str | None
    """Entry name of the representative member, or its UniParc id."""


def parse(header: bytes) -> UniRefHeader | None:
    """The fields of a UniRef header; None for any other. Bytes that are not UTF-8 are replaced."""
    found = _HEADER.fullmatch(header.strip())
    if not found:
        return None
    cluster_id, rest = found[1], found[2] or b""
    rest, rep_id = _last(_REP_ID, rest)
    rest, tax_id = _last(_TAX_ID, rest)
    rest, tax = _last(_TAX, rest)
    rest, num_members = _last(_MEMBERS, rest)
    return UniRefHeader(
        cluster_id=_text(cluster_id),
        name=_text(rest),
        num_members=None if num_members is None else int(num_members),
        tax=_text(tax) if tax else None,
        tax_id=int(tax_id) if tax_id and tax_id.isdigit() else None,
        rep_id=_text(rep_id) if rep_id else None,
    )


def _last(field: re.Pattern[bytes], rest: bytes) -> tuple[bytes, bytes | None]:
    """What stands before a field at the end of the line, and its value."""
    found = field.fullmatch(rest)
    return (found[1] or b"", found[2]) if found else (rest, None)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").strip()
