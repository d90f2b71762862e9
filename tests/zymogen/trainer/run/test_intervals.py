"""Intervals: as wide as the clusters that are scored allow, whatever the number of sequences in them."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.sampler import CORPUS_BITS
from data.settings import DataSettings, MixedCorpus
from pretrain.evaluate.validation import intervals


def width(sums: np.ndarray, clusters: np.ndarray) -> float:
    low, high, *_ = intervals(sums, clusters)
    return high - low


def test_clusters_of_equal_members_widen_the_interval_by_the_root_of_their_number() -> None:
    """Members that go wrong together say no more than one of them: the error is that of the number of clusters."""
    rng = np.random.default_rng(0)
    of_clusters = np.column_stack([30 * rng.normal(2.5, 0.3, 400), np.full(400, 30 * 2.9), np.full(400, 30.0)])
    error = of_clusters[:, 0].std() / 30 / np.sqrt(400)
    members = 9
    sums, clusters = np.repeat(of_clusters, members, axis=0), np.repeat(np.arange(400), members)
    by_cluster, by_sequence = width(sums, clusters), width(sums, np.arange(len(sums)))
    # Quantiles of 1,000 resamples are known to some 3 %.
    assert by_cluster == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert by_sequence == pytest.approx(2 * 1.96 * error / 3, rel=0.1)
    assert by_cluster == pytest.approx(width(of_clusters, np.arange(400)), rel=1e-9)
    mixed = rng.permutation(len(sums))
    assert width(sums[mixed], clusters[mixed]) == pytest.approx(by_cluster, rel=1e-9)
    low, high, gain_low, gain_high = found = intervals(sums, clusters)
    assert gain_low == pytest.approx(2.9 - high, abs=1e-9)  # the baseline's loss is the same everywhere
    assert gain_high == pytest.approx(2.9 - low, abs=1e-9)
    assert intervals(sums, clusters) == found


def test_one_cluster_has_no_interval() -> None:
    assert all(math.isnan(end) for end in intervals(np.ones((5, 3)), np.zeros(5, np.int64)))


def test_resampling_takes_memory_for_one_draw_at_a_time() -> None:
    sums = np.random.default_rng(0).random((10_000, 3))
    tracemalloc.start()
    intervals(sums, np.arange(10_000))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20  # all 1,000 draws at once took 160 MB


def test_sequences_are_of_their_own_corpus_and_equal_ones_of_one_cluster(tmp_path: Path) -> None:
    letters = [f"MKT{'ACDEF'[i % 5]}{'WY' * (i // 5 % 6 + 1)}" for i in range(60)]  # each twice
    for name in "ab":
        (tmp_path / f"{name}.fasta").write_text("".join(f">{name}{i}\n{each}\n" for i, each in enumerate(letters)))
    (tmp_path / "a.tsv").write_text("".join(f"c{i % 20}\ta{i}\n" for i in range(60)))
    mixture = (
        MixedCorpus(sources=(str(tmp_path / "a.fasta"),), clusters=str(tmp_path / "a.tsv")),
        MixedCorpus(sources=(str(tmp_path / "b.fasta"),)),
    )
    settings = DataSettings(mixture=mixture, validation_fraction=0.15, store_dir=str(tmp_path / "stores"))
    found = open_corpora(settings, prepare_corpora(settings))
    second = 1 << CORPUS_BITS
    by_table, by_content = found.clusters_of(np.arange(60)), found.clusters_of(second + np.arange(60))
    assert [len(np.unique(each)) for each in (by_table, by_content)] == [20, 30]
    assert by_table[:20].tolist() == by_table[20:40].tolist() == by_table[40:].tolist()
    assert by_content[:30].tolist() == by_content[30:].tolist()
    assert found.clusters_of(np.array([second + 3, 3])).tolist() == [by_content[3], by_table[3]]
