"""Real proteins, where a folder beside the project holds them: nothing lost, nothing twice, as Biopython reads."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from data.alphabet import LETTER_IDS, UNK
from data.plan import Plan
from data.settings import DataSettings
from data.store import Store, open_or_build

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "pretrain"
PATHS = sorted(FOLDER.glob("*.gz"))
pytestmark = pytest.mark.skipif(not PATHS, reason="no real proteins beside the project (shared/data/pretrain)")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_or_build(PATHS, tmp_path_factory.mktemp("stores"), "refuse", None)


def test_every_record_is_what_biopython_reads(store: Store) -> None:
    record = 0
    for path in PATHS:
        with gzip.open(path, "rt") as file:
            for header, letters in SimpleFastaParser(file):
                expected = LETTER_IDS[np.frombuffer(letters.removesuffix("*").encode(), np.uint8)]
                assert np.array_equal(store.residues(record), expected)
                assert store.header(record) == header
                record += 1
    assert record == store.num_records == 9478
    assert not (store.tokens == UNK).any()


def test_a_pass_packs_every_protein_once(store: Store) -> None:
    settings = DataSettings(sources=("-",), crop_tokens=512, bin_tokens=4096, window_sequences=4000)
    samples = np.arange(store.num_records)
    plan = Plan(samples, store.num_residues(samples), settings, 0)
    bins = [b for window in range(plan.num_windows) for b in plan.window(0, window)]
    assert np.array_equal(np.sort(np.concatenate([b.samples for b in bins])), samples)
    waste = 1 - sum(b.num_tokens for b in bins) / (len(bins) * 4096)
    assert waste < 0.01  # three windows, each with at most a bin or two that stay open
