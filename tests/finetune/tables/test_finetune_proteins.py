"""The proteins of a table: cleaned, joined, cut by a policy, distinct; and a token store whose record i is record i."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.alphabet import decode
from data.settings import IngestSettings
from data.sources.block import SourcePosition
from data.store.build import open_or_build
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table

A, B = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ", "GGSGGSWWWWKVLAAGIVG"


def table(**columns: list[str | None]) -> Table:
    return Table("x.csv", pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()}), 2)


def of(
    crop_tokens: int | None = None, settings: TableSettings | None = None, /, **columns: list[str | None]
) -> TableProteins:
    return proteins_of(table(**columns), settings or TableSettings(), crop_tokens)


def test_equal_proteins_share_a_record_however_they_are_written() -> None:
    found = of(sequence=[A, B, A.lower(), f" {A[:10]}\n{A[10:]}*", B])
    assert found.sequences == (A, B)
    assert found.record_of_row.tolist() == [0, 1, 0, 0, 1]
    assert found.first_rows.tolist() == [0, 1]
    assert found.ids == ("row-2", "row-3")
    assert found.said[1:] == ("5 rows are of 2 distinct proteins",)
    assert found.linkers.tolist() == [[0, 0], [0, 0]]


def test_ids_tell_records_apart() -> None:
    assert of(sequence=[A, B, A], id=["a", "b", "c"]).ids == ("a", "b")
    repeated = of(sequence=[A, B], name=["TEM", "TEM"])
    assert repeated.ids == ("row-2", "row-3")
    assert "'name' does not tell proteins apart" in repeated.said[0]


def test_which_column_is_the_sequence() -> None:
    assert of(None, TableSettings(sequence=("heavy",)), heavy=[A], sequence=[B]).sequences == (A,)
    assert of(Protein=[A]).sequences == (A,)


def test_rows_without_a_protein_are_refused_or_left_out_and_counted() -> None:
    found = of(None, TableSettings(rows_without_protein="leave_out"), seq=[A, None, " ", B])
    assert found.record_of_row.tolist() == [0, -1, -1, 1]
    assert found.first_rows.tolist() == [0, 3]
    assert "rows without a protein are left out: 2 of 4, the first in row 3" in found.said[0]


CHAINS = TableSettings(sequence=("heavy", "light"))
NAMED = TableSettings(id="name")
LEFT_OUT = TableSettings(rows_without_protein="leave_out")


@pytest.mark.parametrize(
    ("columns", "settings", "said"),
    [
        (
            {"sequence": [A, B], "name": ["TEM", "TEM"]},
            NAMED,
            "row 3: the id 'TEM', in column 'name', is that of row 2",
        ),
        ({"sequence": [A, B], "name": ["TEM", None]}, NAMED, "row 3: its id, in column 'name', is empty"),
        ({"smiles": ["CCO"], "y": ["1"]}, None, "which column is the protein? 0 of its columns have one"),
        ({"heavy": [A]}, TableSettings(sequence=("heavi",)), "data.sequence is 'heavi'; the nearest is 'heavy'"),
        ({"seq": [A, None, " ", B]}, None, "row 3: has no protein: its column 'seq' is empty; so have 1 more rows"),
        ({"seq": [None, ""]}, LEFT_OUT, "no row has a protein"),
        ({"seq": [A, "MK-T", A, "MK-T"]}, None, "row 3: has no protein: its column 'seq' has '-' at residue 3, a gap"),
        ({"seq": [A, "MK1T"]}, None, "row 3: has no protein: its column 'seq' says 'MK1T', where '1' at residue 3"),
        ({"seq": [A, "MKµT"]}, None, "row 3: has no protein: its column 'seq' has '?' at residue 3"),
        ({"heavy": [A], "light": [None]}, CHAINS, "its column 'light' is empty"),
        ({"heavy": [A], "light": [B]}, replace(CHAINS, too_long="start"), "Joined chains are not cut"),
        ({"seq": [A, B * 3, "MKT"]}, None, "2 of 3 rows have a protein of more than 18 residues"),
    ],
)
def test_tables_without_a_protein_that_can_be_read(
    columns: dict[str, list[str | None]], settings: TableSettings | None, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        of(20 if "more than" in said or "cut" in said else None, settings, **columns)


def test_two_chains_are_joined_and_the_linker_is_known() -> None:
    found = of(None, CHAINS, heavy=[A, B, A], light=[B, A, B])
    assert found.sequences == (A + "G" * 25 + B, B + "G" * 25 + A)
    assert found.linkers.tolist() == [[len(A), len(A) + 25], [len(B), len(B) + 25]]
    assert [letters[slice(*span)] for letters, span in zip(found.sequences, found.linkers.tolist(), strict=True)] == [
        "G" * 25
    ] * 2
    # The same letters with the linker elsewhere are another protein.
    shifted = of(None, CHAINS, heavy=["MGG", "MG"], light=["GK", "GGK"])
    assert (shifted.num_records, shifted.linkers.tolist()) == (2, [[3, 28], [2, 27]])


def test_long_proteins_are_refused_or_cut_as_the_policy_says() -> None:
    assert of(len(A) + 2, None, seq=[A]).sequences == (A,)  # begin and end count
    assert of(20, TableSettings(too_long="ends"), seq=[A]).sequences == (A[:9] + A[-9:],)
    residues = np.arange(len(A))
    for policy, expected, head, tail in (
        ("start", A[:17], 17, 0),
        ("end", A[-17:], 0, 17),
        ("ends", A[:9] + A[-8:], 9, 8),
    ):
        found = of(19, TableSettings(too_long=policy), seq=[A, "MKT"])  # type: ignore[arg-type]
        assert found.sequences == (expected, "MKT")
        places = found.places(0, residues)
        assert np.count_nonzero(places >= 0) == head + tail == 17
        assert "".join(expected[p] if p >= 0 else "" for p in places) == expected
        assert all(A[r] == expected[p] for r, p in enumerate(places.tolist()) if p >= 0)
        assert found.places(1, np.arange(3)).tolist() == [0, 1, 2]
        assert found.whole_residues.tolist() == [len(A), 3]
        assert "rows whose protein has more than 17 residues" in found.said[0]


def test_mutations_of_a_wild_type(tmp_path: Path) -> None:
    (tmp_path / "wt.fasta").write_text(f">P\n{A}\n")
    settings = TableSettings(
        mutation=("mutant",), wild_type=str(tmp_path / "wt.fasta"), rows_without_protein="leave_out"
    )
    found = of(None, settings, mutant=["K2R", "WT", "A4del", "T3S:A4C", "WT"])
    assert found.sequences == ("MR" + A[2:], A, "MKSC" + A[4:])
    assert found.record_of_row.tolist() == [0, 1, -1, 2, 1]
    assert found.ids == ("K2R", "WT", "T3S:A4C")
    assert found.mutated == ((1,), (), (), (2, 3), ())
    assert found.wild_types == ("P",) * 5
    assert "rows without a protein are left out: 1 of 5" in found.said[0]
    assert "is a deletion" in found.said[0]
    with pytest.raises(ValueError, match=r"row 3: has no protein: in its column 'mutant', 'A4del' is a deletion"):
        of(None, replace(settings, rows_without_protein="refuse"), mutant=["K2R", "A4del"])


def test_mutations_of_the_sequence_of_each_row() -> None:
    settings = TableSettings(mutation=("mutant",), sequence=("seq",))
    found = of(None, settings, seq=[A, A, "MKTAY", "MKTAY", "MKTAY"], mutant=["K2R", "T3S", "K2R", "WT", "K2R"])
    assert found.sequences == ("MR" + A[2:], "MKS" + A[3:], "MRTAY", "MKTAY")
    assert found.record_of_row.tolist() == [0, 1, 2, 3, 2]
    assert found.mutated == ((1,), (2,), (1,), (), (1,))
    assert found.wild_types == (A, A, "MKTAY", "MKTAY", "MKTAY")


def test_a_row_with_letters_of_no_protein_is_left_out_where_that_is_asked() -> None:
    cells = [A, "#N.A.#", "n.d", "?", "MK?T", "#DEL#", "#N.A.#"]
    found = of(None, TableSettings(rows_without_protein="leave_out", unknown_letters="count"), seq=cells)
    assert found.record_of_row.tolist() == [0, -1, -1, -1, 1, -1, -1]
    assert found.said[0] == (
        "rows without a protein are left out: 5 of 7, the first in row 3: its column 'seq' says '#N.A.#', where '#' at "
        "residue 1 is no letter; another: its column 'seq' says 'n.d', where '.' at residue 2 is no letter"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mutation": ("m",)}, "data.mutation is ['m']; it needs data.wild_type"),
        ({"empty_mutation": "wild_type"}, "data.empty_mutation is 'wild_type'; only data.mutation reads it"),
        ({"wild_type": "x"}, "data.wild_type is 'x'; only data.mutation reads it"),
        ({"mutation": ("m",), "wild_type": "x", "sequence": ("s",)}, "data.sequence is given too"),
        ({"mutation": ("m",), "protein": "x", "sequence": ("s",)}, "data.sequence is given too"),
        ({"mutation": ("m",), "sequence": ("a", "b")}, "mutations change one sequence"),
        ({"sequence": ("a", "b", "c")}, "name one column, or two"),
        ({"sequence": ("a", "a")}, "two different columns"),
        ({"too_long": "star"}, "data.too_long is 'star'; the nearest is 'start'"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        TableSettings(**values)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_record_i_of_the_store_is_record_i(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACDEFGHIKLMNPQRSTVWY"), rng.integers(5, 60))) for _ in range(200)]
    cells: list[str | None] = [letters[i] for i in rng.integers(0, 200, 500)]
    found = of(seq=cells)
    store = open_or_build([found], tmp_path, "refuse", IngestSettings())
    assert store.num_records == found.num_records == len(set(cells))
    assert [decode(store.residues(record)) for record in range(store.num_records)] == list(found.sequences)
    assert [store.header(record) for record in range(store.num_records)] == list(found.ids)
    assert [found.sequences[record] for record in found.record_of_row] == cells
    again = open_or_build([of(seq=cells)], tmp_path, "refuse", IngestSettings())
    assert again.folder == store.folder
    other = open_or_build([of(seq=cells[::-1])], tmp_path, "refuse", IngestSettings())
    assert other.folder != store.folder
    blocks = list(found.blocks(SourcePosition(7)))
    assert sum(len(block.lengths) for block in blocks) == found.num_records - 7


def test_unknown_letters_are_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    found = of(None, TableSettings(unknown_letters="count"), seq=["MK?T" * 20])
    store = open_or_build([found], tmp_path, "count", IngestSettings())
    assert store.unknown_letters == {"'?'": 20}
