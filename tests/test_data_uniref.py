"""UniRef headers, as UniProt writes them and as names and taxa bend them."""

import pytest

from data.uniref import UniRefHeader, parse


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (  # UniProt's own example
            b"UniRef50_Q9K794 Putative AgrB-like protein n=2 Tax=Bacillus TaxID=1386 RepID=AGRB_BACHD",
            ("UniRef50_Q9K794", "Putative AgrB-like protein", 2, "Bacillus", 1386, "AGRB_BACHD"),
        ),
        (
            b"UniRef90_UPI000000000A hypothetical protein n=1 Tax=Staphylococcus aureus TaxID=1280 RepID=UPI000000000A",
            ("UniRef90_UPI000000000A", "hypothetical protein", 1, "Staphylococcus aureus", 1280, "UPI000000000A"),
        ),
        (
            b"UniRef100_Q6GZX4 Putative transcription factor 001R n=3 Tax=Ranavirus TaxID=10492 RepID=001R_FRG3G",
            ("UniRef100_Q6GZX4", "Putative transcription factor 001R", 3, "Ranavirus", 10492, "001R_FRG3G"),
        ),
        (  # an isoform, blanks and '=' in the name, and fields of others inside it
            b"UniRef100_P1-2 Tax=free n=7 subunit (EC=1.1) RepID=none n=12 Tax=E. coli (K12 = MG) TaxID=562 RepID=A_B",
            ("UniRef100_P1-2", "Tax=free n=7 subunit (EC=1.1) RepID=none", 12, "E. coli (K12 = MG)", 562, "A_B"),
        ),
        (b"UniRef50_A name n=4 TaxID=N/A RepID=A_B", ("UniRef50_A", "name", 4, None, None, "A_B")),
        (b"UniRef50_A name n=4 Tax=unknown TaxID=N/A RepID=A_B", ("UniRef50_A", "name", 4, "unknown", None, "A_B")),
        (b"UniRef50_A name n=4 Tax= TaxID= RepID=A_B", ("UniRef50_A", "name", 4, None, None, "A_B")),
        (b"UniRef50_A name n=4 Tax=Homo sapiens", ("UniRef50_A", "name", 4, "Homo sapiens", None, None)),
        (b"UniRef50_A name n=4 Tax=Homo RepID=A_B", ("UniRef50_A", "name", 4, "Homo", None, "A_B")),  # older releases
        (b"UniRef50_A n=4 Tax=Homo TaxID=1 RepID=A_B", ("UniRef50_A", "", 4, "Homo", 1, "A_B")),
        (b"UniRef50_A only a name", ("UniRef50_A", "only a name", None, None, None, None)),
        (b"UniRef50_A", ("UniRef50_A", "", None, None, None, None)),
        (b"UniRef50_A nam\xe9 n=1 RepID=R \r\n", ("UniRef50_A", "nam\ufffd", 1, None, None, "R")),
    ],
)
def test_every_field(header: bytes, expected: tuple[object, ...]) -> None:
    assert parse(header) == UniRefHeader(*expected)


@pytest.mark.parametrize(
    "header", [b"", b"sp|P12345|NAME_HUMAN n=3", b"UniRef60_A x", b"UniRef50_", b"xUniRef50_A", b"UniRef50 A"]
)
def test_other_headers_are_none(header: bytes) -> None:
    assert parse(header) is None


def test_a_long_header_takes_linear_time() -> None:
    for filler in (b" ", b"a ", b"n=1 ", b"Tax= ", b"RepID= "):
        assert parse(b"UniRef50_A " + filler * 20_000 + b"x") is not None
