"""What an interval leaves out together, whatever made the split: groups, mutated positions, clusters of relatives."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.splits.groups import resampling_units
from finetune.splits.parts import parts_of
from finetune.splits.settings import SplitSettings
from finetune.splits.split import split_records
from support.assays.split_records import protein_records

LETTERS = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
RNG = np.random.Generator(np.random.Philox(5))


def protein(length: int) -> str:
    return "".join(RNG.choice(LETTERS, length))


def changed(parent: str, share: float) -> str:
    """A relative that differs in about a share of the positions."""
    letters = np.array(list(parent))
    places = RNG.random(len(letters)) < share
    letters[places] = RNG.choice(LETTERS, int(places.sum()))
    return "".join(letters)


def mutant(parent: str, position: int, letter: str) -> str:
    return parent[:position] + letter + parent[position + 1 :]


def units(folder: Path, sequences: list[str], by: str = "random") -> NDArray[np.uint64]:
    records = protein_records(folder, sequences, side=["train", "test"] * (len(sequences) // 2))
    settings = (
        SplitSettings(by="column", column="side")
        if by == "column"
        else SplitSettings(by="random", fractions=(0.5, 0.0, 0.5))
    )
    assert records.store is not None
    return resampling_units(split_records(settings, records).parts, records.store)


@pytest.mark.parametrize("by", ["random", "column"])
def test_families_are_clusters_without_groups(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten families of four, of lengths 80 to 89, in a split that knows nothing of them."""
    monkeypatch.setattr(shutil, "which", lambda name: None)  # shared words find 70 % identity
    parents = [protein(80 + number) for number in range(10)]
    found = units(tmp_path, [changed(parent, 0.05) for _ in range(4) for parent in parents], by)
    family = np.tile(np.arange(10), 4)
    assert len(np.unique(found)) == 10
    assert len({(a, b) for a, b in zip(found.tolist(), family.tolist(), strict=True)}) == 10


@pytest.mark.parametrize("positions", [12, 4])
def test_variants_are_together_by_their_first_position_or_the_mutation_there(positions: int, tmp_path: Path) -> None:
    parent = "A" * 40
    mutated = [mutant(parent, place, letter) for letter in "CDEF" for place in range(positions)]
    double = mutant(mutated[0], 30, "W")
    found = units(tmp_path, [*mutated, double, mutant(parent, 39, "K")])
    number = np.arange(4 * positions)
    expected = number % positions if positions >= 10 else number
    assert len(np.unique(found)) == len(np.unique(expected)) + 1
    for one in np.unique(expected):
        assert len(np.unique(found[: len(number)][expected == one])) == 1
    assert found[len(number)] == found[0]  # the double mutant goes with its first mutation


def test_one_family_is_divided_into_closer_relatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    parent = protein(100)
    branches = [changed(parent, 0.25) + "A" * number for number in range(6)]
    found = units(tmp_path, [changed(branch, 0.02) for _ in range(4) for branch in branches])
    assert len(np.unique(found)) == 6


def test_groups_of_the_split_stay_and_are_named_by_contents(tmp_path: Path) -> None:
    records = protein_records(tmp_path, [protein(50) for _ in range(8)])
    assert records.store is not None
    group = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    part = np.array([0, 0, 0, 0, 2, 2, 2, 2])
    found = resampling_units(parts_of(records.digests, part, group), records.store)
    lowest = records.digests.reshape(4, 2).min(1)
    assert found.tolist() == np.repeat(lowest, 2).tolist()
