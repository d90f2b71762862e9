"""Dividing tables: by column, time, scaffold, group, position, distance, homology, at random and from a file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.alphabet import LETTER_IDS
from finetune.splits.parts import TEST, TRAIN, UNUSED, VALIDATION, in_order_of_first
from finetune.splits.settings import SplitSettings
from finetune.splits.split import split_records
from finetune.splits.variants import are_mostly_variants, are_variants, of_rows, of_sequences
from support.assays.split_records import named_records, protein_records
from zymogen.keyed_random import hashes, integers

HALVES = (0.5, 0.0, 0.5)
THIRDS = (0.4, 0.3, 0.3)


def no_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)


def drawn(length: int, seed: int) -> str:
    numbers = integers(hashes(seed, np.arange(length)), 20)
    return "".join("ACDEFGHIKLMNPQRSTVWY"[number] for number in numbers)


def mutated(parent: str, *positions: int) -> str:
    """The parent with another residue at each position, from 0."""
    letters = list(parent)
    for position in positions:
        letters[position] = "A" if letters[position] != "A" else "C"
    return "".join(letters)


# Column -------------------------------------------------------------------------------------------

YEARS = ["1", "2", "2", "3", "4", "4", "4", "5", "6", "10"]  # as text, 10 would come before 2
FLIP = {
    "set": ["train", "train", "test", "test", None, "Train"],
    "validation": ["True", None, None, "true", "", "False"],
}
WORDS: dict[str, Any] = {"by": "column", "column": "fold", "train": ("0", "1"), "test": ("2",)}
DAY: dict[str, Any] = {"by": "time", "column": "day", "fractions": HALVES}


@pytest.mark.parametrize(
    ("settings", "columns", "expected", "notes"),
    [
        (
            {"by": "column", "column": "set", "validation_column": "validation"},
            FLIP,
            [VALIDATION, TRAIN, TEST, TEST, UNUSED, TRAIN],
            ("1 rows are in no part and give no label (assays.csv: row 6)",),
        ),
        (WORDS | {"unused": ("x",)}, {"fold": ["0", "1", "2", "x"]}, [TRAIN, TRAIN, TEST, UNUSED], None),
        (
            {"by": "time", "column": "year", "fractions": THIRDS},
            {"year": YEARS},
            [0, 0, 0, 0, 1, 1, 1, 2, 2, 2],
            ("by year: cut at 4 and 5",),
        ),
        (DAY, {"day": ["03.04.2021", "25.03.2021"]}, [TEST, TRAIN], None),  # 25 can only be a day
        (DAY, {"day": ["03/04/2021", "03/25/2021"]}, [TRAIN, TEST], None),
        (DAY, {"day": ["2021-11", "2021/3/25"]}, [TEST, TRAIN], None),
    ],
)
def test_parts_by_a_column(
    settings: dict[str, Any],
    columns: dict[str, list[str | None]],
    expected: list[int],
    notes: tuple[str, ...] | None,
) -> None:
    division = split_records(SplitSettings(**settings), named_records("abcdefghij"[: len(expected)], **columns))
    assert division.parts.part.tolist() == expected
    assert division.used.tolist() == [part != UNUSED for part in expected]
    assert notes is None or division.notes == notes


@pytest.mark.parametrize(
    ("settings", "columns", "said"),
    [
        (
            WORDS,
            {"fold": ["0", "1", "2", "x"]},
            r"row 5: no part of a split: split\.column 'fold' is 'x'; allowed are '0', '1', ",
        ),
        (WORDS | {"column": "flod"}, {"fold": ["0"]}, r"split\.column is 'flod'; the nearest is 'fold'"),
        (
            {"by": "column", "column": "set"},
            {"set": ["train", "val", "train"]},
            r"no record for test \(train 2, validation 1, test 0, unused 0\): check the v",
        ),
        (
            DAY,
            {"day": ["05/05/2021", "03/04/2021"]},
            r"row 3: 'day' has '03/04/2021', which may be 2021-04-03 or 2021-03",
        ),
        (DAY, {"day": ["2021-01", "soon"]}, r"row 3: 'day' has 'soon', which is no date or number; write dates as"),
        (
            {"by": "time", "column": "day", "cuts": ("2025",)},
            {"day": ["1", "2"]},
            r"no record for test \(train 2, validation 0, test 0, unused 0\): choose other",
        ),
    ],
)
def test_columns_that_divide_nothing(settings: dict[str, Any], columns: dict[str, list[str]], said: str) -> None:
    (cells,) = columns.values()
    with pytest.raises(ValueError, match=said):
        split_records(SplitSettings(**settings), named_records("abcdefghij"[: len(cells)], **columns))


@pytest.mark.parametrize(
    ("conflict", "part", "used"),
    [
        ("held_out", [TEST, VALIDATION, TRAIN], [0, 0, 1, 1, 1, 1, 1]),
        ("unused", [-1, -1, TRAIN], [0, 0, 1, 0, 0, 1, 1]),
    ],
)
def test_a_sequence_in_two_parts(conflict: str, part: list[int], used: list[int]) -> None:
    # a trains and is tested, b trains and validates, c trains twice; d is tested, so that a part is not empty.
    of_rows = ["train", "train", "train", "test", "valid", "train", "test"]
    records = named_records("abcabcd", set=of_rows)
    with pytest.raises(
        ValueError, match=r"one sequence in two parts: rows 2 \(train\), 5 \(test\); so it is with 2 of 4"
    ):
        split_records(SplitSettings(by="column", column="set"), records)
    division = split_records(SplitSettings(by="column", column="set", conflict=conflict), records)
    assert division.parts.part.tolist() == [*part, TEST]
    assert division.used.tolist() == list(map(bool, used))
    assert division.notes[0].startswith("2 sequences have rows in two parts")


# Time ---------------------------------------------------------------------------------------------


def test_later_is_tested_and_the_last_row_of_a_record_counts() -> None:
    dates = ["2019-01-01", "2021-06-30", "2022-01-01", "2020-05-05", "2022-01-01T12:00:00", None]
    records = named_records("abcdae", date=dates)  # a was measured in 2019, and again in 2022
    division = split_records(SplitSettings(by="time", column="date", cuts=("2021-01-01", "2022-01-01")), records)
    assert division.parts.part.tolist() == [TEST, VALIDATION, TEST, TRAIN, UNUSED]
    assert division.used.tolist() == [False, True, True, True, True, False]  # a's row of 2019 would train
    assert division.notes == (
        "1 records have no time and are unused",
        "1 rows have no time and give no label (assays.csv: row 7)",
        "1 rows are earlier than the part of their sequence and give no label",
        "by date: cut at 2021-01-01 and 2022-01-01",
    )


# Groups -------------------------------------------------------------------------------------------


def test_records_that_share_a_group_through_others_stay_together() -> None:
    # a and b share x, b and c share y: one group of three. d and e share z, f and g have none.
    records = named_records("abbcdefg", batch=["x", "x", "y", "y", "z", "z", None, ""])
    for seed in range(8):
        division = split_records(SplitSettings(by="group", column="batch", fractions=HALVES, seed=seed), records)
        assert in_order_of_first(division.parts.group).tolist() == [0, 0, 0, 1, 1, 2, 3]
        part = division.parts.part
        assert len(set(part[:3].tolist())) == 1
        assert part[3] == part[4]
    assert division.notes == (
        "2 records have no batch and are on their own",
        "7 records in 4 groups, the largest of 3",
    )


def test_records_of_two_groups_are_left_out_if_conflicts_are_unused() -> None:
    # b has rows in x and in y, d in none: words of missing values are no group.
    records = named_records("abbcdef", batch=["x", "x", "y", "y", "-", "na", "x"])
    settings = SplitSettings(by="group", column="batch", fractions=HALVES, conflict="unused")
    division = split_records(settings, records)
    assert (division.parts.part == UNUSED).tolist() == [False, True, False, False, False, False]
    assert division.used.tolist() == [True, False, False, True, True, True, True]
    assert in_order_of_first(division.parts.group).tolist() == [0, 1, 2, 3, 4, 0]
    assert division.notes == (
        "2 records have no batch and are on their own",
        "1 sequences have rows in two groups and are in none",
        "5 records in 4 groups, the largest of 2",
    )


def test_folds_predict_each_record_once_and_keep_groups() -> None:
    names = [f"r{number}" for number in range(40)]
    records = named_records(names, batch=[str(number // 2) for number in range(40)])
    parts = split_records(SplitSettings(by="group", column="batch", folds=5), records).parts
    assert np.bincount(parts.fold).tolist() == [8] * 5
    assert (parts.fold[::2] == parts.fold[1::2]).all()
    tested = np.concatenate([parts.of_fold(fold).records(TEST) for fold in range(5)])
    assert sorted(tested.tolist()) == list(range(40))
    with pytest.raises(ValueError, match=r"the folds have .*0 records; none may be empty"):
        split_records(
            SplitSettings(by="group", column="batch", folds=5), named_records("abcd", batch=["1", "2", "3", "4"])
        )


def test_scaffolds() -> None:
    pytest.importorskip("rdkit")
    smiles = [
        *("c1ccccc1O", "CCc1ccccc1", "c1ccccc1"),  # benzene
        *("C1CCNCC1C", "C1CCNCC1"),  # piperidine
        *("CCO", "CCCC"),  # no ring
        *("not a molecule", ""),
    ]
    records = named_records("abcdefghi", smiles=smiles)
    division = split_records(SplitSettings(by="scaffold", column="smiles", fractions=HALVES), records)
    assert in_order_of_first(division.parts.group).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 4]
    assert division.parts.part[7:].tolist() == [UNUSED, UNUSED]
    assert division.used.tolist() == [True] * 7 + [False] * 2
    assert division.notes[0] == (
        "2 rows have no SMILES that can be read in 'smiles', and give no label (assays.csv: rows 9, 10); "
        "2 records are unused for it"
    )
    assert division.notes[1] == "7 records in 3 groups, the largest of 3"


# Variants of one protein --------------------------------------------------------------------------

PARENT = drawn(30, 5)


def test_no_tested_position_trains(tmp_path: Path) -> None:
    singles = [mutated(PARENT, position) for position in range(30)]
    pairs = [(first, first + 1 + first % 3) for first in range(26)]
    doubles = [mutated(PARENT, first, second) for first, second in pairs]
    records = protein_records(tmp_path, [PARENT, *singles, *doubles])
    division = split_records(SplitSettings(by="position", fractions=THIRDS), records)
    part = division.parts.part
    assert part[0] == TRAIN  # the parent
    side_of = part[1:31]
    # By hand: a double mutant is on the side of both positions, or on none.
    expected = [side_of[a] if side_of[a] == side_of[b] else UNUSED for a, b in pairs]
    assert part[31:].tolist() == expected
    assert UNUSED in expected
    assert set(side_of.tolist()) == {TRAIN, VALIDATION, TEST}
    # Intervals resample positions: a double mutant goes with the single one of its lower position, the parent alone.
    group = division.parts.group
    assert group[31:].tolist() == [group[1 + first] for first, _ in pairs]
    assert len({*group.tolist()}) == 31
    mixed = expected.count(UNUSED)
    assert division.notes[-1] == f"{mixed} of {len(part)} sequences have mutations on two sides and are unused"
    assert division.notes[0].startswith("no wild type is given")
    folds = split_records(SplitSettings(by="position", folds=3), records).parts
    assert folds.part[0] == TRAIN
    assert folds.fold[0] == -1
    assert set(folds.fold[1:31].tolist()) == {0, 1, 2}


def test_one_deletion_among_substitutions_is_unused_and_decides_nothing(tmp_path: Path) -> None:
    parent = drawn(40, 5)
    sequences = [parent[:i] + letter + parent[i + 1 :] for i in range(40) for letter in "ACDE" if letter != parent[i]]
    records = protein_records(tmp_path / "one", [*sequences, parent[:7] + parent[8:]])
    without = protein_records(tmp_path / "none", sequences)
    division, other = (split_records(SplitSettings(by="position", folds=4), each) for each in (records, without))
    assert division.parts.part[-1] == UNUSED
    assert division.parts.fold[:-1].tolist() == other.parts.fold.tolist()
    assert f"1 of {len(sequences) + 1} sequences have another length and are unused" in division.notes
    assert are_mostly_variants(records.store)
    assert not are_variants(records.store)
    many = [each[1:] if number % 10 == 0 else each for number, each in enumerate(sequences)]
    with pytest.raises(ValueError, match=r"split\.by = 'position' compares sequences position by position"):
        split_records(SplitSettings(by="position"), protein_records(tmp_path / "many", many))


def test_few_mutations_train_and_many_are_tested(tmp_path: Path) -> None:
    sequences = [mutated(PARENT, *range(first, first + count)) for count in (1, 2, 3, 4) for first in range(10)]
    wild_type = LETTER_IDS[np.frombuffer(PARENT.encode(), np.uint8)]
    records = protein_records(tmp_path, [PARENT, *sequences])
    settings = SplitSettings(by="distance", distance=2, fractions=(0.6, 0.4, 0.0))
    division = split_records(settings, records, mutations=of_sequences(records, wild_type, "split.by"))
    part = division.parts.part
    assert set(part[21:].tolist()) == {TEST}
    assert sorted(np.bincount(part[:21]).tolist()) == [8, 13]  # 21 * 0.6 = 12.6
    assert division.notes == ("sequences by number of mutations: 0: 1, 1: 10, 2: 10, 3: 10, 4: 10",)
    two = protein_records(tmp_path / "b", [PARENT, PARENT[:-1]])
    with pytest.raises(
        ValueError, match=r"row 3: split\.by compares .* 1 of 2 do not have the 30 residues of the wild"
    ):
        of_sequences(two, wild_type, "split.by")


def test_mutations_of_a_table_of_two_proteins() -> None:
    # Position 1 of P is not position 1 of Q; row 4 repeats row 0.
    records = named_records("abcdae", name=["x"] * 6)
    found = of_rows(records, [(1,), (1, 2), (1,), (), (1,), (2,)], ["P", "P", "Q", "P", "P", "Q"])
    assert found.record.tolist() == [0, 1, 1, 2, 4]
    assert found.position.tolist() == [0, 0, 1, 2, 3]
    assert found.distances.tolist() == [1, 2, 1, 0, 1]
    division = split_records(SplitSettings(by="distance", distance=1, fractions=(1.0, 0.0, 0.0)), records, (), found)
    assert division.parts.part.tolist() == [TRAIN, TEST, TRAIN, TRAIN, TRAIN]


def test_the_order_of_mutations_in_a_table_does_not_change_what_is_drawn() -> None:
    names, places = "abcdefghijkl", [(number,) for number in (5, 3, 9, 3, 11, 0, 7, 2, 5, 8, 1, 4)]

    def part_of(order: list[int]) -> dict[str, int]:
        records = named_records("".join(names[number] for number in order), name=["x"] * 12)
        found = of_rows(records, [places[number] for number in order], ["P"] * 12)
        parts = split_records(SplitSettings(by="position", fractions=THIRDS), records, (), found).parts
        return dict(sorted(zip((names[number] for number in order), parts.part.tolist(), strict=True)))

    for turned in (1, 5, 7):
        assert part_of([(turned * number + 3) % 12 for number in range(12)]) == part_of([*range(12)])


# Homology, random, file ---------------------------------------------------------------------------


def test_families_stay_together_and_the_split_says_what_found_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_mmseqs(monkeypatch)
    families = [drawn(120, seed) for seed in range(12)]
    sequences = [mutated(family, *range(member, 120, 9)) for family in families for member in range(4)]
    records = protein_records(tmp_path, sequences)
    division = split_records(SplitSettings(by="homology", fractions=HALVES), records)
    assert in_order_of_first(division.parts.group).tolist() == [number // 4 for number in range(48)]
    assert division.parts.counts() == {"train": 24, "validation": 0, "test": 24, "unused": 0}
    assert division.is_approximate
    assert division.method.startswith("shared words of 5 residues (approximate:")
    assert division.method.endswith("MMseqs2 is not installed")
    with pytest.raises(
        ValueError, match=r"no record for validation and test \(train 4, .*choose a higher split\.identity"
    ):
        split_records(SplitSettings(by="homology"), protein_records(tmp_path / "one", sequences[:4]))
    with pytest.raises(ValueError, match=r"split\.by is 'homology' and assays\.csv has no protein sequences"):
        split_records(SplitSettings(by="homology"), named_records("ab", smiles=["C", "CC"]))


def test_rows_of_one_sequence_are_on_one_side(tmp_path: Path) -> None:
    proteins = [drawn(20, seed) for seed in range(10)]
    records = protein_records(tmp_path, [*proteins, *proteins[::-1]])
    parts = split_records(SplitSettings(by="random", fractions=HALVES), records).parts
    assert np.bincount(parts.part[records.of_row]).tolist() == [10, 0, 10]
    turned = protein_records(tmp_path / "turned", proteins[::-1])
    assert (
        split_records(SplitSettings(by="random", fractions=HALVES), turned).parts.part.tolist()[::-1]
        == parts.part.tolist()
    )
