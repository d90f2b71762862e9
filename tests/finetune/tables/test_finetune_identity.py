"""What makes two rows one protein: tokens before any cut. A mutated residue is never cut away."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data.sources.tables import TableSource
from finetune.labels.locate import TableRows
from finetune.labels.read import read_task
from finetune.tables.proteins import TableProteins, proteins_of
from finetune.tables.read import read_table
from finetune.tables.settings import TableSettings
from finetune.tables.table import Table
from support.assays.labelled_rows import task
from support.inputs.protein_files import contents

RNG = np.random.default_rng(0)
LONG = "".join(RNG.choice(list("ACDEFGHIKLMNPQRSTVWY"), 140))
READ = 102
"""Residues that a document of the tests below holds."""


def table(**columns: list[str]) -> Table:
    return Table("x.csv", pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()}), 2)


def variants(folder: Path, mutations: list[str], is_part: bool = False, **settings: Any) -> TableProteins:
    (folder / "wt.fasta").write_text(f">P\n{LONG}\n")
    chosen = TableSettings(**{"mutation": "m", "wild_type": str(folder / "wt.fasta"), "too_long": "window", **settings})
    return proteins_of(table(m=mutations), chosen, READ + 2, is_part=is_part)


def mutation(place: int) -> str:
    return f"{LONG[place]}{place + 1}{'A' if LONG[place] != 'A' else 'C'}"


def test_every_mutated_residue_is_in_the_record(tmp_path: Path) -> None:
    """One mutant of each residue of a protein of 140, of which 102 are read: 38 of them became the wild type."""
    found = variants(tmp_path, [*map(mutation, range(140)), "WT"])
    assert found.num_records == 141
    for row in range(140):
        (place,) = found.places(row, np.array([row]))
        record = found.record_of_row[row]
        assert found.sequences[record][place] == mutation(row)[-1]
    assert found.sequences[found.record_of_row[140]] == LONG[:READ]
    # Variants with mutations near each other stay comparable: two windows, each with a quarter on either side.
    begins = found.cuts[found.record_of_row[:140], 0]
    assert sorted({*begins.tolist()}) == [0, 38]
    inside = np.arange(140) - begins
    assert ((inside >= READ // 4) | (begins == 0)).all()
    assert ((inside < READ - READ // 4) | (begins == 38)).all()


def test_a_window_is_that_of_the_protein_alone(tmp_path: Path) -> None:
    """A prediction of some rows reads what training on all of them read."""
    rows = [*map(mutation, range(0, 140, 3)), f"{mutation(2)}:{mutation(95)}", f"{mutation(38)}:{mutation(139)}"]
    whole = variants(tmp_path, rows)
    for row, each in enumerate(rows):
        alone = variants(tmp_path, [each], is_part=True)
        assert alone.sequences == (whole.sequences[whole.record_of_row[row]],)
        assert alone.digests.tolist() == [whole.digests[whole.record_of_row[row]]]


def test_mutations_that_would_be_cut_away_are_refused_or_left_out(tmp_path: Path) -> None:
    wide = f"{mutation(3)}:{mutation(120)}"
    with pytest.raises(
        ValueError, match=r"row 3: .*its mutations span 118 residues, of which 102 are read; keep them with .*120"
    ):
        variants(tmp_path, [mutation(3), wide])
    with pytest.raises(
        ValueError, match=r"row 3: .*residue 121, which is mutated, would be cut away; keep it with data\.too_long"
    ):
        variants(tmp_path, [mutation(3), mutation(120)], too_long="start")
    found = variants(tmp_path, [mutation(3), wide, mutation(121)], rows_without_protein="leave_out")
    assert found.record_of_row.tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match=r"data\.too_long is 'window'; it is around mutated residues"):
        TableSettings(too_long="window")


def test_labels_of_residues_find_them_in_a_window(tmp_path: Path) -> None:
    cells = [mutation(5), mutation(130)]
    (tmp_path / "wt.fasta").write_text(f">P\n{LONG}\n")
    rows = table(m=cells, y=[" ".join(map(str, range(140)))] * 2)
    settings = TableSettings(mutation="m", wild_type=str(tmp_path / "wt.fasta"), too_long="window")
    proteins = proteins_of(rows, settings, READ + 2)
    labels = read_task(TableRows(rows, proteins.record_of_row, 2, proteins), task(level="residue")).labels
    assert labels.positions is not None
    first, second = np.split(labels.values, [labels.pointers[1]])
    assert first.tolist() == list(range(READ))
    assert second.tolist() == list(range(38, 140))
    assert labels.positions.tolist() == [*range(READ)] * 2


def test_proteins_that_differ_in_what_is_cut_away_are_left_out() -> None:
    """Their labels would be averaged, or tell the model that one input has two of them."""
    cells = [LONG, LONG[:READ] + LONG[::-1], LONG[:50], LONG, LONG[:READ]]
    found = proteins_of(table(sequence=cells), TableSettings(too_long="start"), READ + 2)
    assert found.record_of_row.tolist() == [-1, -1, 0, -1, -1]
    assert found.said[-1].startswith(
        "proteins that differ only in residues that are cut away: 3, in 4 rows, such as rows 2 and 3 are left out"
    )
    assert proteins_of(table(sequence=cells), TableSettings(too_long="end"), READ + 2).num_records == 4
    with pytest.raises(
        ValueError, match=r"x\.csv: has only proteins that differ only in residues that are cut away: 2"
    ):
        proteins_of(table(sequence=cells[:2]), TableSettings(too_long="start"), READ + 2)
    predicted = proteins_of(table(sequence=cells), TableSettings(too_long="start"), READ + 2, is_part=True)
    assert predicted.record_of_row.tolist() == [0, 1, 2, 0, 3]


def test_letters_that_become_unknown_do_not_make_two_proteins() -> None:
    cells = ["MK.TA", "MK*TA", "MKJTA", "MK?TA", "MKXTA", "MKUTA"]
    found = proteins_of(table(sequence=cells), TableSettings(unknown_letters="count"), None)
    assert found.record_of_row.tolist() == [0, 0, 0, 0, 1, 2]
    assert len({*found.digests.tolist()}) == 3


def test_sequences_that_differ_in_case_alone_are_said() -> None:
    found = proteins_of(table(sequence=["ACdEF", "ACDEF", "MKT", " MK T"]), TableSettings(), None)
    assert found.num_records == 2
    assert found.said[0].startswith(
        "1 sequences are written in upper and in lower case and are read as one, such as in rows 2 and 3: D residues"
    )


def test_embeddings_and_runs_count_rows_in_the_same_way(tmp_path: Path) -> None:
    """The first row of a CSV was row-1 in embeddings, and row-2 in split.csv and predictions."""
    path = tmp_path / "x.csv"
    path.write_text('note,sequence\n"two\nlines",MKT\n\na,GGAC\n,MKL\n')
    found = proteins_of(read_table(str(path)), TableSettings(), None)
    assert list(zip(found.ids, found.sequences, strict=True)) == contents(TableSource(str(path), ".csv", "refuse"))
    assert found.ids == ("row-3", "row-5", "row-6")
