"""Names inside a header line, by which other files may refer to a record.

In: a header without ``>``. Out: its first word, and the accession in that word. Nothing is kept.
"""

_ACCESSION_FIELD = {
    **dict.fromkeys((b"sp", b"tr"), 1),  # UniProt
    **dict.fromkeys((b"bbm", b"bbs", b"cl", b"dbj", b"emb", b"gb", b"gim", b"gpp", b"lcl", b"nat", b"pdb", b"ref"), 1),
    **dict.fromkeys((b"tpd", b"tpe", b"tpg"), 1),
    **dict.fromkeys((b"gnl", b"pat", b"pgp", b"pir", b"prf"), 2),
    b"gi": 3,
}
"""Which field of an identifier with bars is the accession, by the first field: data bases of NCBI and UniProt (NCBI C++
Toolkit, FASTA sequence ID format). ``1ABC_1|Chains A, B`` of the PDB has none."""


def names(header: bytes) -> tuple[bytes, ...]:
    """The header's first word, and the accession inside it if it has one; one or two names.

    ``sp|P12345|NAME_HUMAN`` has the accession P12345, ``gi|1234|gb|AAP56351.2|`` has AAP56351.2; MMseqs2's tables give
    the accession alone. A blank header has the one name ``b""``.
    """
    word = (header.split(maxsplit=1) or [b""])[0]
    fields = word.split(b"|")
    field = _ACCESSION_FIELD.get(fields[0], len(fields))
    return (word, fields[field]) if field < len(fields) and fields[field] else (word,)
