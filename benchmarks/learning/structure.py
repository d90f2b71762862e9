"""Proteins whose secondary structure is known, residue by residue: some to fit on, others to judge by.

In: the zip file of FLIP's secondary structure set (Dallago et al. 2021, doi:10.1101/2021.11.09.467890). Out:
`Structures`. Kept: nothing. The file is ``flip_secondary_structure_splits.zip``, with ``splits/sequences.fasta``,
``splits/sampled.fasta`` (a letter for each residue, and SET= and VALIDATION= in the headers) and ``splits/mask.fasta``
(0: the residue is not resolved, and its letter means nothing).

Nothing is drawn: of the training proteins those with the smallest hashes of their sequences are fitted on, and the
order of the file changes nothing.
"""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune.tables.fasta import ID, LABELS, SEQUENCE, UNLABELLED
from finetune.tables.read import read_table
from finetune.tables.table import Table

STATES = "HEC"
"""Helix, strand, other."""
UNKNOWN = -1
FITTED = 1000
"""Proteins that are fitted on."""
_TABLE = "splits/sequences.fasta?labels=sampled.fasta&mask=mask.fasta"
_SET, _VALIDATION = "SET", "VALIDATION"
_STATE_OF = {letter: number for number, letter in enumerate(STATES)} | {UNLABELLED: UNKNOWN}


@dataclass(frozen=True, slots=True, eq=False)
class Protein:
    """A protein with its secondary structure."""

    name: str
    sequence: str
    states: NDArray[np.int64]
    """(residues,) place in `STATES`, or `UNKNOWN`; at least one of them is known."""

    @property
    def digest(self) -> bytes:
        """Hash of the sequence, by which proteins are ordered."""
        return sha256(self.sequence.encode()).digest()


@dataclass(frozen=True, slots=True)
class Structures:
    """Proteins by rising hash."""

    fitted: list[Protein]
    """`FITTED` of the training proteins, none with the sequence of one that is judged."""
    judged: list[Protein]
    """Those that the file says are for the test."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that a judgement depends on, apart from the model."""
        content = sha256()
        for protein in (*self.fitted, *self.judged):
            content.update(protein.digest + protein.states.tobytes())
        return content.hexdigest()


def structures(path: Path) -> Structures:
    """Read the file.

    Raises:
        ValueError: it is not there, no zip file of FLIP's, or has too few proteins; in one line.
    """
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; give FLIP's flip_secondary_structure_splits.zip")
    if path.suffix != ".zip" or not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: no zip file whose name ends with .zip; give flip_secondary_structure_splits.zip")
    table = read_table(f"{path}/{_TABLE}")
    judged = _proteins(table, ("test", "False"))
    asked = {protein.sequence for protein in judged}
    able = [protein for protein in _proteins(table, ("train", "False")) if protein.sequence not in asked]
    if len(able) < FITTED or not judged:
        raise ValueError(
            f"{path}: {len(able):,} proteins to fit on and {len(judged):,} to judge by, of those with SET=train or "
            f"SET=test and VALIDATION=False; needed are {FITTED:,} distinct ones and at least 1: give FLIP's own file"
        )
    return Structures(able[:FITTED], judged)


def _proteins(table: Table, part: tuple[str, str]) -> list[Protein]:
    """Those of a part that have a known residue, by rising hash, each sequence once.

    Raises:
        ValueError: a state is none of `STATES`.
    """
    columns: Sequence[Sequence[str | None]] = [table.column(name) for name in (ID, SEQUENCE, LABELS, _SET, _VALIDATION)]
    found: dict[bytes, Protein] = {}
    for name, sequence, labels, *said in zip(*columns, strict=True):
        if tuple(said) != part:
            continue
        assert name is not None
        assert sequence is not None
        assert labels is not None
        if wrong := set(labels) - set(_STATE_OF):
            raise ValueError(
                f"{table.name}: {name!r} has a residue in the state {min(wrong)!r}; the states are {', '.join(STATES)}"
            )
        states = np.array([_STATE_OF[letter] for letter in labels], np.int64)
        protein = Protein(name, sequence, states)
        if (states != UNKNOWN).any():
            found.setdefault(protein.digest, protein)
    return [found[digest] for digest in sorted(found)]
