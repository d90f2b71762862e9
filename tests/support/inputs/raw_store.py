"""Stores of random residues and samplers over them, for tests that are not about reading files."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data.alphabet import STANDARD_IDS
from data.corpus.reader import CorpusReader
from data.order.plan import Plan
from data.order.sampler import Epochs
from data.settings import DataSettings
from zymogen.compiled import compiled

KERNELS = ("data.order.packing", "data.batches.masking", "data.corpus.reader", "data.batches.collate")


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels run as plain functions, as they do where numba is not installed."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in KERNELS:
        monkeypatch.setattr(f"{module}.compiled", compiled.__wrapped__)  # which remembers no compiled form


def write_store(folder: Path, lengths: NDArray[np.int64], seed: int = 0) -> Path:
    """The two files of a token store that batches are made from, with random standard residues."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    offsets.tofile(folder / "offsets.bin")
    drawn = np.random.default_rng(seed).integers(0, 20, int(offsets[-1]))
    STANDARD_IDS[drawn].tofile(folder / "tokens.bin")
    return folder


def flip(path: Path, entry: int, bit: int) -> None:
    """One bit of one of the integers of a file."""
    found = np.fromfile(path, "<u8")
    found[entry] ^= np.uint64(1 << bit)
    found.tofile(path)


@dataclass
class Records:
    """A corpus of which every record trains but `held_out`."""

    num_records: int
    held_out: frozenset[int] = frozenset()
    streamed: bool = False

    def size(self, wanted: int) -> int:
        return self.num_records

    def records(self, items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        return np.array([-1 if item in self.held_out else item for item in items.tolist()], np.int64)

    def in_order(self, epoch: int) -> bool:
        return self.streamed and epoch == 0


def plan_over(reader: CorpusReader, records: Records, settings: DataSettings, seed: int = 0) -> Plan:
    return Plan(Epochs(records, seed, settings.window_sequences), reader.num_residues, settings, seed)
