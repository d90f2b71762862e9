"""Real proteins, where a folder beside the project holds them: nothing lost, nothing twice, as Biopython reads."""

import gzip
from contextlib import closing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from Bio.SeqIO.FastaIO import SimpleFastaParser

from data.alphabet import LETTER_IDS, MASK, UNK
from data.batches.loader import Loader
from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import Bin, Cursor
from data.settings import DataSettings
from support.inputs.flat_batches import labels_of
from support.places import REAL

PATHS = sorted(REAL.glob("*.gz"))
NUM_RECORDS = 9478
pytestmark = pytest.mark.skipif(not PATHS, reason="no real proteins beside the project (shared/data/pretrain)")


def opened(settings: DataSettings) -> Corpora:
    return open_corpora(settings, prepare_corpora(settings))


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    return DataSettings(
        sources=tuple(map(str, PATHS)),
        store_dir=str(tmp_path_factory.mktemp("stores")),
        validation_fraction=0.05,
        crop_tokens=512,
        bin_tokens=4096,
        bins_per_step=24,
        window_sequences=4000,
    )


@pytest.fixture(scope="module")
def corpora(settings: DataSettings) -> Corpora:
    return opened(settings)


def one_pass(corpora: Corpora, epoch: int) -> list[Bin]:
    plan, bins = corpora.plan(0), []
    for window in range(10**6):
        planned = plan.window(epoch, window, 0)
        if planned is None:
            return bins
        bins += planned
    raise AssertionError


def test_every_record_is_what_biopython_reads(corpora: Corpora) -> None:
    record, store = 0, corpora.parts[0].store
    for path in PATHS:
        with gzip.open(path, "rt") as file:
            for header, letters in SimpleFastaParser(file):
                expected = LETTER_IDS[np.frombuffer(letters.removesuffix("*").encode(), np.uint8)]
                assert np.array_equal(store.residues(record), expected)
                assert store.header(record) == header
                record += 1
    assert record == store.num_records == NUM_RECORDS
    assert not (store.tokens == UNK).any()


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_pass_holds_every_training_protein_once(corpora: Corpora, epoch: int) -> None:
    bins = one_pass(corpora, epoch)
    trained = np.sort(np.concatenate([b.samples for b in bins]))
    assert np.array_equal(np.sort(np.concatenate([trained, corpora.validation])), np.arange(NUM_RECORDS))
    waste = 1 - sum(b.num_tokens for b in bins) / (len(bins) * 4096)
    assert waste < 0.01  # three windows, each with at most a bin or two that stay open


def test_streamed_the_first_pass_holds_the_same_proteins_in_order(settings: DataSettings) -> None:
    streamed = opened(replace(settings, streaming=True))
    windows = [streamed.plan(0).sampler.window(0, w) for w in range(3)]
    samples = np.concatenate([w.samples for w in windows if w])
    assert (np.diff(samples) > 0).all()
    assert np.array_equal(samples, np.sort(np.concatenate([b.samples for b in one_pass(opened(settings), 0)])))
    assert set(streamed.validation.tolist()) < set(opened(settings).validation.tolist())  # of the first window alone


def test_ranks_mask_different_positions_at_the_stated_rates(corpora: Corpora) -> None:
    plan = corpora.plan(0)
    selected: list[set[int]] = []
    tokens = targets = masked = shown = 0
    for rank in range(2):
        with closing(Loader(corpora.masked(0), plan, Cursor(), 0, rank, 2)) as loader:
            batches = [batch for step in islice(loader, 8) for batch in step.batches]
        selected.append(set(batches[0].targets[0].slots.tolist()))
        for batch in batches:
            at = batch.targets[0].slots
            tokens += int(batch.cu_seqlens[len(batch.spans)]) - 2 * len(batch.spans)
            targets += len(at)
            masked += int((batch.tokens[at] == MASK).sum())
            shown += int((batch.tokens[at] == batch.targets[0].labels).sum())
            assert torch.equal((labels_of(batch) >= 0).nonzero().flatten(), at)
    overlap = len(selected[0] & selected[1]) / min(map(len, selected))
    assert 0.1 < overlap < 0.2  # independent draws of 15 % meet in 15 %

    def within(successes: int, trials: int, probability: float) -> bool:
        return abs(successes - trials * probability) <= 4 * np.sqrt(trials * probability * (1 - probability))

    # Crops lack a terminus or two, and X is never a target: both move the share by less than the error allowed.
    assert within(targets, tokens, 0.15)
    assert within(masked, targets, 0.8)
    # A random residue is the true one with the chance that the true one has, 1 in 20, whatever the composition.
    assert within(shown, targets, 0.1 + 0.1 / 20)
