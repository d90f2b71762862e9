"""Names inside a header line: by what other files may refer to a record.

In: a header without ``>``. Out: its first word and the accession in that. Nothing is kept.
"""

_ACCESSION_FIELD = {b"gi": 3, b"gnl": 2, b"pat": 2}
"""Which field of an identifier with bars is the accession, by its first; the second for any other."""


def names(header: bytes) -> tuple[bytes, ...]:
    """The header's first word, and the accession inside it where it has one; one or two names.

    ``sp|P12345|NAME_HUMAN`` has the accession P12345, ``gi|1234|gb|AAP56351.2|`` has AAP56351.2; MMseqs2's tables give
    the accession alone. A blank header has the one name ``b""``.
    """
    word = (header.split(maxsplit=1) or [b""])[0]
    fields = word.split(b"|")
    field = _ACCESSION_FIELD.get(fields[0], 1)
    return (word, fields[field]) if field < len(fields) and fields[field] else (word,)
