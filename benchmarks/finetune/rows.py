"""Labelled proteins for `benchmarks.finetune`, and the batches that transformers' `Trainer` makes of them.

In: a folder of real data, or nothing. Out: proteins, each with a class; batches of them. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.proteins import lengths
from data.alphabet import STANDARD_RESIDUES
from data.order.plan import SPECIAL_TOKENS

DEEPLOC = "assay/deeploc_test_set.fasta.gz"


@dataclass(frozen=True, slots=True)
class Protein:
    """A protein as both sides read it, cut to the crop."""

    sequence: str
    label: str
    """Name of its class."""

    def __len__(self) -> int:
        """Tokens, begin and end included."""
        return len(self.sequence) + SPECIAL_TOKENS


def deeploc(data: Path, crop: int) -> list[Protein]:
    """DeepLoc's `test_set` with locations; of proteins that are equal in their first `crop` tokens, one."""
    from finetune.tables.read import read_table

    table = read_table(f"{data}/{DEEPLOC}")
    pairs = zip(table.column("sequence"), table.column("location"), strict=True)
    return cut([(str(sequence).upper(), str(location)) for sequence, location in pairs], crop)


def drawn(count: int, crop: int, seed: int = 0) -> list[Protein]:
    """Random proteins of three classes, to show that everything runs where there is no real data."""
    rng = np.random.default_rng(seed)
    letters = ["".join(rng.choice(list(STANDARD_RESIDUES), length)) for length in lengths(count, seed).tolist()]
    return cut([(sequence, "abc"[number % 3]) for number, sequence in enumerate(letters)], crop)


def cut(rows: Sequence[tuple[str, str]], crop: int) -> list[Protein]:
    """The beginnings that fit into `crop` tokens, each once."""
    kept: dict[str, Protein] = {}
    for sequence, label in rows:
        kept.setdefault(sequence[: crop - SPECIAL_TOKENS], Protein(sequence[: crop - SPECIAL_TOKENS], label))
    return list(kept.values())


def batches(proteins: Sequence[Protein], size: int, seed: int, *, grouped: bool) -> list[list[Protein]]:
    """All batches of a pass, as `Trainer` makes them: in random order, or with ``group_by_length``; without the last.

    The last one may be smaller than the others.
    """
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(proteins), generator=generator).tolist()
    if grouped:
        order = list(LengthGroupedSampler(size, lengths=[len(p) for p in proteins], generator=generator))
    whole = len(order) // size * size
    return [[proteins[i] for i in order[first : first + size]] for first in range(0, whole, size)]
