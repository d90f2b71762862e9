"""Mutations to sequences: every way to write them, the offset of the numbering, rows that contradict the wild type."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.recipe.settings import IngestSettings
from finetune.tables.mutations import NoSubstitution, Substitution, Variants, read_wild_types, substitutions, variants
from finetune.tables.table import Table

WILD_TYPE = "MKTAYIAKQRQISFVKSHFSRQ"


def table(*mutations: str | None, **columns: list[str]) -> Table:
    cells = {"mutant": pa.array(mutations, pa.string()), **{name: pa.array(text) for name, text in columns.items()}}
    return Table("x.csv", pa.table(cells), 2)


def of(*mutations: str | None, **options: object) -> Variants:
    return variants(table(*mutations), "mutant", {"P": WILD_TYPE}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A123T", [("A", 123, "T")]),
        ("a123t", [("A", 123, "T")]),
        ("A1P:D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("A1P, D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("A1P;D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("A1P/D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("A1P+D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("p.Ala123Thr", [("A", 123, "T")]),
        ("p.(Ala123Thr)", [("A", 123, "T")]),
        ("p.[Ala1Pro;Asp2Asn]", [("A", 1, "P"), ("D", 2, "N")]),
        ("A12=", [("A", 12, "A")]),
        ("Ala12=", [("A", 12, "A")]),
        ("M-1K", [("M", -1, "K")]),
        *[(text, []) for text in ("WT", "wt", "wild-type", "Wild type", "p.(=)", "p.=", "_wt")],
    ],
)
def test_every_way_to_write_a_substitution(text: str, expected: list[tuple[str, int, str]]) -> None:
    assert list(substitutions(text)) == [Substitution(*each) for each in expected]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("A12del", "a deletion"),
        ("p.Ala3_Ser5del", "a deletion"),
        ("A12-", "a deletion"),
        ("A12_B13insG", "an insertion"),
        ("A12*", "a stop"),
        ("p.Ala12Ter", "a stop"),
        ("A12X", "a stop"),
        ("p.Lys2fs", "a frameshift"),
        ("A1P:D2dup", "a duplication"),
    ],
)
def test_other_changes_are_refused_by_name(text: str, kind: str) -> None:
    with pytest.raises(NoSubstitution, match=f"is {kind}; only substitutions"):
        substitutions(text)
    assert of("A4C", "K2R", "T3S", text).unusable.keys() == {3}
    assert of("A4C", "K2R", "T3S", text).sequences[3] is None


@pytest.mark.parametrize("text", ["123", "A123", "Foo12Bar", "A12B", "hello", "A1P_D2N_"])
def test_what_is_no_mutation(text: str) -> None:
    with pytest.raises(ValueError, match=r"^x\.csv: row 3, column 'mutant': .* is no mutation; write"):
        of("A4C", text)


@pytest.mark.parametrize("offset", [0, 1, -1, 23, -23, 1000])
def test_the_offset_is_found(offset: int) -> None:
    rng = np.random.default_rng(1)
    places = rng.permutation(len(WILD_TYPE))[:12]
    mutations = [f"{WILD_TYPE[p]}{p + 1 - offset}{'C' if WILD_TYPE[p] != 'C' else 'D'}" for p in places]
    found = of(*mutations, "WT", empty_is_wild_type=True)
    for place, letters, mutated in zip(places, found.sequences, found.mutated, strict=False):
        assert letters == WILD_TYPE[:place] + "C" + WILD_TYPE[place + 1 :]
        assert mutated == (place,)
    assert found.sequences[-1] == WILD_TYPE
    said = f"residue 1 of the wild type is number {1 - offset}"
    assert [said in each for each in found.said] == [True] * bool(offset)
    assert of(*mutations, offset=offset).sequences == found.sequences[:-1]


def test_a_wild_type_that_differs_names_row_expected_and_found() -> None:
    with pytest.raises(
        ValueError, match=r"^x\.csv: row 5, column 'mutant': expects A at 5, and P has Y there\. .* 3 of 4"
    ):
        of("A4C", "K2R", "T3S", "A5C")
    with pytest.raises(ValueError, match=r"row 3, .* residue 4 is C here, and A in row 2; one of the two is wrong"):
        of("A4C", "C4D")
    with pytest.raises(ValueError, match=r"row 3, .* expects A at 40, and P has 22 residues"):
        of("A4C", "A40C", "K2R", "T3S")
    with pytest.raises(ValueError, match="changes residue 4 twice"):
        of("A4C:A4D")
    with pytest.raises(ValueError, match=r"shifted by -10, .* too few to be sure; set data\.numbering_offset = -10"):
        of("A14C", "K12R")
    with pytest.raises(ValueError, match="expects A at 14, counted as 9"):
        of("A14C", offset=-5)


def test_synonymous_and_empty_rows() -> None:
    found = of("A4A", "A4=", "", None, empty_is_wild_type=True)
    assert found.sequences == (WILD_TYPE,) * 4
    assert found.mutated == ((),) * 4
    found = of("A4A", "", None)
    assert found.sequences == (WILD_TYPE, None, None)
    assert "data.empty_mutation" in found.unusable[1]


def test_a_column_names_the_wild_type(tmp_path: Path) -> None:
    (tmp_path / "wt.fasta").write_text(">P one\nmktay\niak*\n>Q\nGGSGG\n")
    both = read_wild_types(str(tmp_path / "wt.fasta"), IngestSettings())
    assert both == {"P": "MKTAYIAK", "Q": "GGSGG"}
    mixed = table("K2R", "G11A", "S13A", "G12D", protein=["P", "Q", "Q", "Q"])
    found = variants(mixed, "mutant", both, protein="protein")
    assert found.sequences == ("MRTAYIAK", "AGSGG", "GGAGG", "GDSGG")
    assert found.said == ("the numbers of its mutations are those of Q +10: residue 1 of the wild type is number 11",)
    with pytest.raises(ValueError, match=r"holds 2 proteins .P, Q.; name the column"):
        variants(mixed, "mutant", both)
    with pytest.raises(ValueError, match=r"x\.csv: row 2: protein is 'PQ'; the nearest is '[PQ]'"):
        variants(table("K2R", protein=["PQ"]), "mutant", both, protein="protein")
    accessions = {"sp|P1|A_HUMAN": "MKTAY", "sp|P2|B_HUMAN": "GGSGG"}
    found = variants(table("K2R", "S3A", protein=["P1", "sp|P2|B_HUMAN"]), "mutant", accessions, protein="protein")
    assert found.sequences == ("MRTAY", "GGAGG")
    (tmp_path / "wt.fasta").write_text(">P\nMK-T\n")
    with pytest.raises(ValueError, match="'P' has '-' at residue 3, a gap"):
        read_wild_types(str(tmp_path / "wt.fasta"), IngestSettings())
