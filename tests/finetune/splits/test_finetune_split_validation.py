"""A split that has no validation part draws one from training: by whole clusters, positions or groups."""

from pathlib import Path

import numpy as np
import pytest

from finetune.splits import split_file
from finetune.splits.parts import TEST, TRAIN, VALIDATION, parts_of
from finetune.splits.settings import SplitSettings
from finetune.splits.split import split_records
from support.assays.split_records import named_records, protein_records

LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def families(count: int, members: int) -> list[str]:
    """Sequences of 60 residues, each family some single mutants of a random parent."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(count):
        parent = draw.choice(list(LETTERS), 60)
        for member in range(members):
            each = parent.copy()
            each[member] = LETTERS[(LETTERS.index(each[member]) + 1) % 20]
            found.append("".join(each))
    return found


def column(words: str) -> list[str | None]:
    return [{"r": "train", "v": "valid", "t": "test"}[word] for word in words]


@pytest.mark.slow
def test_whole_clusters_of_training_validate(tmp_path: Path) -> None:
    sequences = [letters + "A" * (number % 3) for number, letters in enumerate(families(20, 5))]
    records = protein_records(tmp_path, sequences, set=column("r" * 80 + "t" * 20))
    without = split_records(SplitSettings(by="column", column="set"), records).parts
    assert without.counts() == {"train": 80, "validation": 0, "test": 20, "unused": 0}
    division = split_records(SplitSettings(by="column", column="set", validation_fraction=0.25), records)
    assert division.parts.counts() == {"train": 60, "validation": 20, "test": 20, "unused": 0}
    of_families = division.parts.part.reshape(20, 5)
    assert (of_families == of_families[:, :1]).all()
    assert (division.parts.part[80:] == TEST).all()
    assert division.notes[-1].startswith("20 of 80 training records validate, drawn by clusters of relatives at 30%")


def test_variants_validate_by_whole_positions(tmp_path: Path) -> None:
    parent = "M" + LETTERS * 2
    sequences = [
        parent[:place] + letter + parent[place + 1 :]
        for place in range(1, 31)
        for letter in "ACD"
        if parent[place] != letter
    ]
    words = "".join("t" if number % 9 == 8 else "r" for number in range(len(sequences)))
    records = protein_records(tmp_path, sequences, set=column(words))
    division = split_records(SplitSettings(by="column", column="set", validation_fraction=0.2), records)
    places = np.array([next(i for i, (a, b) in enumerate(zip(s, parent, strict=True)) if a != b) for s in sequences])
    validates = {*places[division.parts.part == VALIDATION]}
    assert validates
    assert not validates & {*places[division.parts.part == TRAIN]}
    assert division.notes[-1].endswith("drawn by mutated position")


def test_own_groups_of_a_file_stay_whole(tmp_path: Path) -> None:
    records, ids = named_records("abcdefgh"), [*"abcdefgh"]
    part, group = np.array([TRAIN] * 6 + [TEST] * 2), np.array([0, 0, 0, 1, 1, 1, 2, 2])
    split_file.write(tmp_path / "split.csv", ids, parts_of(records.digests, part, group))
    settings = SplitSettings(by="file", file=str(tmp_path / "split.csv"), validation_fraction=0.4)
    found = split_records(settings, records, ids).parts.part.tolist()
    assert found in ([TRAIN] * 3 + [VALIDATION] * 3 + [TEST] * 2, [VALIDATION] * 3 + [TRAIN] * 3 + [TEST] * 2)


def test_coarse_times_that_leave_validation_empty() -> None:
    records = named_records([*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"], year=["2019"] * 32 + ["2020"] * 8)
    division = split_records(SplitSettings(by="time", column="year"), records)
    assert division.parts.counts() == {"train": 28, "validation": 4, "test": 8, "unused": 0}
    assert (division.parts.part[32:] == TEST).all()
    given = split_records(SplitSettings(by="time", column="year", cuts=("2020",)), records)
    assert given.parts.counts()["validation"] == 0


def test_a_part_that_is_there_stays() -> None:
    records = named_records("abcdef", set=column("rrrrvt"))
    parts = [
        split_records(SplitSettings(by="column", column="set", validation_fraction=share), records).parts.part.tolist()
        for share in (0.0, 0.5)
    ]
    assert parts[0] == parts[1] == [TRAIN] * 4 + [VALIDATION, TEST]


def test_only_splits_that_are_given_take_a_fraction() -> None:
    with pytest.raises(ValueError, match=r"split\.validation_fraction is 0\.1; only split\.by = 'column' or 'time' or"):
        SplitSettings(by="random", validation_fraction=0.1)
