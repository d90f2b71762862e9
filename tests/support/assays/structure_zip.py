"""A file like FLIP's secondary structure set, with a known answer: the state of a residue follows from the residue."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.learning.structure import FITTED
from data.alphabet import STANDARD_RESIDUES

STATE_OF = dict(zip(STANDARD_RESIDUES, "HEC" * 7, strict=False))


class Record(NamedTuple):
    """A record of the three files."""

    name: str
    sequence: str
    states: str
    mask: str
    part: str
    validation: str = "False"


def records(num_train: int = FITTED + 40, num_test: int = 30) -> list[Record]:
    """Random proteins whose states are those of their residues where the mask is 1, and others where it is 0."""
    draws = np.random.default_rng(0)
    found = []
    for number in range(num_train + num_test):
        sequence = "".join(draws.choice(list(STANDARD_RESIDUES), draws.integers(12, 40)))
        mask = "".join(draws.choice(["0", "1"], len(sequence), p=[0.4, 0.6]))
        pairs = zip((STATE_OF[letter] for letter in sequence), mask, strict=True)
        states = "".join(state if known == "1" else {"H": "E", "E": "C", "C": "H"}[state] for state, known in pairs)
        found.append(Record(f"p{number}", sequence, states, mask, "train" if number < num_train else "test"))
    return found


def zipped(path: Path, content: Sequence[Record]) -> Path:
    """A file like FLIP's."""
    texts = {
        "sequences": "".join(f">{each.name}\n{each.sequence}\n" for each in content),
        "mask": "".join(f">{each.name}\n{each.mask}\n" for each in content),
        "sampled": "".join(
            f">{each.name} SET={each.part} VALIDATION={each.validation}\n{each.states}\n" for each in content
        ),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(f"splits/{name}.fasta", text)
    return path
