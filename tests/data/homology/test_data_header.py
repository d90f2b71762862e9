"""Names of a record: the first word of its header, and the accession inside it."""

import pytest

from data.homology.name_table import names


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"CBH4 a protein|with a bar", (b"CBH4",)),
        (b"sp|P12345|NAME_HUMAN Some protein", (b"sp|P12345|NAME_HUMAN", b"P12345")),
        (b"tr|Q2|B_YEAST", (b"tr|Q2|B_YEAST", b"Q2")),
        (b"gi|1234|gb|AAP56351.2| x", (b"gi|1234|gb|AAP56351.2|", b"AAP56351.2")),
        (b"gnl|database|accession", (b"gnl|database|accession", b"accession")),
        (b"pat|US|123|4", (b"pat|US|123|4", b"123")),
        (b"pir||A31111", (b"pir||A31111", b"A31111")),
        (b"1ABC_1|Chains A, B|Lysozyme|Gallus gallus", (b"1ABC_1|Chains",)),  # as the PDB writes them
        (b"2XYZ_2|Chain", (b"2XYZ_2|Chain",)),
        (b"pdb|1ABC|A", (b"pdb|1ABC|A", b"1ABC")),
        (b"gi|1234", (b"gi|1234",)),  # no accession where one is expected
        (b"sp||NAME", (b"sp||NAME",)),
        (b"UniRef50_A0A009 name n=1", (b"UniRef50_A0A009",)),
        (b"  p1\tnote", (b"p1",)),
        (b"caf\xe9 x", (b"caf\xe9",)),
        (b"", (b"",)),
        (b" \t", (b"",)),
    ],
)
def test_first_word_and_accession(header: bytes, expected: tuple[bytes, ...]) -> None:
    assert names(header) == expected
