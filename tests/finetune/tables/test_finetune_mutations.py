"""Mutations to sequences: every way to write them, the offset of the numbering, rows that contradict the wild type."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from finetune.tables.mutations import NotASubstitutionError, VariantSequences, substitutions, variants
from finetune.tables.table import Table
from finetune.tables.wild_types import Substitution, named_wild_types, own_wild_types, read_wild_types

WILD_TYPE = "MKTAYIAKQRQISFVKSHFSRQ"


def table(*mutations: str | None, **columns: list[str]) -> Table:
    cells = {"mutant": pa.array(mutations, pa.string()), **{name: pa.array(text) for name, text in columns.items()}}
    return Table("x.csv", pa.table(cells), 2)


def of(*mutations: str | None, **options: object) -> VariantSequences:
    given = table(*mutations)
    return variants(given, ["mutant"], named_wild_types(given, None, {"P": WILD_TYPE}, "P.fasta"), **options)  # type: ignore[arg-type]


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
        ("10A_33F", [("", 10, "A"), ("", 33, "F")]),
        ("A-5T_7G", [("A", -5, "T"), ("", 7, "G")]),
        ("A1P_D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("A1P-D2N", [("A", 1, "P"), ("D", 2, "N")]),
        ("p.Ala1Pro_Asp-2Asn", [("A", 1, "P"), ("D", -2, "N")]),
        ("3F", [("", 3, "F")]),
        ("3F:D5N", [("", 3, "F"), ("D", 5, "N")]),
        ("p.[Glu12_Gly14=;Ala1Pro]", [("A", 1, "P")]),
        *[(text, []) for text in ("_sy", "=", "p.Glu12_Gly14=")],
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
    with pytest.raises(NotASubstitutionError, match=f"is {kind}; only substitutions"):
        substitutions(text)
    assert of("A4C", "K2R", "T3S", text).unusable.keys() == {3}
    assert of("A4C", "K2R", "T3S", text).sequences[3] is None


@pytest.mark.parametrize("text", ["123", "Foo12Bar", "ARN12ARN", "A12B", "hello", "A1P_D2N_", "5=", "G9Z"])
def test_what_is_no_mutation(text: str) -> None:
    with pytest.raises(ValueError, match=r" is no mutation; write"):
        substitutions(text)
    found = of("A4C", text)
    assert found.sequences == (WILD_TYPE[:3] + "C" + WILD_TYPE[4:], None)
    assert "in its column 'mutant', " in found.unusable[1]


@pytest.mark.parametrize("text", ["NA", "nan", "N/A", "?", "-"])
def test_missing_words_are_no_mutations(text: str) -> None:
    found = of("A4C", text, empty_is_wild_type=True)
    assert (found.sequences[1], found.unusable) == (None, {1: f"its column 'mutant' says {text!r}"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "of unknown effect") for text in ("p.?", "p.Met1?", "p.0")),
        *((text, "names one residue, which may be the old or the new one") for text in ("K2", "D40")),
    ],
)
def test_changes_of_unknown_effect_or_one_residue_are_no_sequence(text: str, said: str) -> None:
    assert said in of("A4C", text).unusable[1]


def test_number_and_new_residue() -> None:
    found = of("3F", "A4C", "2K")
    assert found.sequences == ("MKF" + WILD_TYPE[3:], "MKTC" + WILD_TYPE[4:], WILD_TYPE)
    assert found.mutated == ((2,), (3,), ())
    assert of("33F", "A34C", "K32R", "T33S").mutated[0] == (2,)  # numbered as those with both residues
    assert "expects a residue at 40, and P has 22 residues" in of("40F").unusable[0]


def test_cells_of_three_columns_are_one_mutation() -> None:
    cells = {"wt": ["A", "K", "Thr", "M"], "position": ["4.0", "2.0", "3.0", ""], "mut": ["C", "R", "Ser", "L"]}
    given = Table("x.csv", pa.table(cells), 2)
    found = variants(given, list(cells), named_wild_types(given, None, {"P": WILD_TYPE}, "P.fasta"))
    assert found.mutated == ((3,), (1,), (2,), ())
    assert found.sequences[0] == "MKTC" + WILD_TYPE[4:]
    assert found.unusable.keys() == {3}


def test_each_row_has_its_own_wild_type() -> None:
    own = [WILD_TYPE, WILD_TYPE.lower(), "GGSGGAA", "GGSGGAA", "NA", "MK1", "GGSGGAA"]
    given = table("A4C", "K2R", "G11A", "S13A", "A4C", "K2R", "A16C", seq=own)
    found = variants(given, ["mutant"], own_wild_types(given, "seq"))
    mutants = ("MKTC" + WILD_TYPE[4:], "MR" + WILD_TYPE[2:], "AGSGGAA", "GGAGGAA", None, None, "GGSGGCA")
    assert found.sequences == mutants
    assert found.mutated == ((3,), (1,), (0,), (2,), (), (), (5,))
    assert found.unusable[4] == "its column 'seq' says 'NA'"
    assert "'1' at residue 3 is no letter" in found.unusable[5]
    assert found.said == (
        "the numbers of its mutations are those of GGSGGAA +10: residue 1 of the wild type is number 11",
    )


def test_one_wrong_row_is_left_out_where_that_is_asked() -> None:
    right = [f"{letter}{at}C" for at, letter in enumerate(WILD_TYPE, 1)]
    with pytest.raises(ValueError, match=r"row 24, .* expects W at 5, and P has Y there"):
        of(*right, "W5C")
    found = of(*right, "W5C", "A4C:A4D", leaves_out=True)
    assert found.unusable == {
        22: "in its column 'mutant', it expects W at 5, and P has Y there",
        23: "in its column 'mutant', residue 4 is changed twice",
    }
    with pytest.raises(ValueError, match=r"expects W at 1[0-9], and P has . there\. The numbers of 9 of 21"):
        of(*right[:9], *[f"W{at}C" for at in range(10, 22)], leaves_out=True)  # another protein


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
    with pytest.raises(ValueError, match=r"row 3, .* expects C at 4, and P has A there\. The numbers of 1 of 2"):
        of("A4C", "C4D")
    with pytest.raises(ValueError, match=r"row 3, .* expects A at 40, and P has 22 residues"):
        of("A4C", "A40C", "K2R", "T3S")
    assert of("A4C:A4D").unusable == {0: "in its column 'mutant', residue 4 is changed twice"}
    with pytest.raises(ValueError, match=r"shifted by -10, .* too few to be sure; set data\.numbering_offset = -10"):
        of("A14C", "K12R")
    assert of("A14C", "A14D", "K12R", "T13S").said  # three positions, and few offsets that are as small
    with pytest.raises(ValueError, match=r"too few to be sure; set data\.numbering_offset = -10"):
        of("A14C", "A14D", "A14E", "K12R")
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
    both = read_wild_types(str(tmp_path / "wt.fasta"))
    assert both == {"P": "MKTAYIAK", "Q": "GGSGG"}
    mixed = table("K2R", "G11A", "S13A", "G12D", protein=["P", "Q", "Q", "Q"])
    found = variants(mixed, ["mutant"], named_wild_types(mixed, "protein", both, "wt.fasta"))
    assert found.sequences == ("MRTAYIAK", "AGSGG", "GGAGG", "GDSGG")
    assert found.said == ("the numbers of its mutations are those of Q +10: residue 1 of the wild type is number 11",)
    with pytest.raises(ValueError, match=r"holds 2 proteins .P, Q.; name the column"):
        named_wild_types(mixed, None, both, "wt.fasta")
    unknown = named_wild_types(table("K2R", protein=["PQ"]), "protein", both, "wt.fasta")
    assert unknown.unusable[0].startswith("its protein is 'PQ'; the nearest is ")
    accessions = {"sp|P1|A_HUMAN": "MKTAY", "sp|P2|B_HUMAN": "GGSGG"}
    given = table("K2R", "S3A", protein=["P1", "sp|P2|B_HUMAN"])
    found = variants(given, ["mutant"], named_wild_types(given, "protein", accessions, "wt.fasta"))
    assert found.sequences == ("MRTAY", "GGAGG")
    (tmp_path / "wt.fasta").write_text(">P\nMK-T\n")
    with pytest.raises(ValueError, match="'P' has '-' at residue 3, a gap"):
        read_wild_types(str(tmp_path / "wt.fasta"))
