"""What a run has seen of its corpus, counted from the plan and the cursor alone."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.order.plan import Bin, CorpusProgress, Cursor, Plan
from data.settings import DataSettings, MixedCorpus


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DataSettings:
    """150 records, of which 50 are equal to another."""
    folder = tmp_path_factory.mktemp("seen")
    rng = np.random.default_rng(0)
    distinct = ["".join(rng.choice(list("ACDEFGHIKL"), rng.integers(20, 90))) for _ in range(100)]
    (folder / "a.fasta").write_text("".join(f">p{i}\n{distinct[i % 100]}\n" for i in range(150)))
    (folder / "a.tsv").write_text("".join(f"c{i % 50}\tp{i}\n" for i in range(150)))
    return DataSettings(
        sources=(str(folder / "a.fasta"),),
        store_dir=str(folder / "stores"),
        validation_fraction=0.15,
        crop_tokens=60,
        bin_tokens=128,
        bins_per_step=2,
        window_sequences=40,
    )


def opened(settings: DataSettings) -> Corpora:
    return open_corpora(settings, prepare_corpora(settings))


def cursors(plan: Plan, count: int) -> Iterator[tuple[list[Bin], Cursor]]:
    """All bins up to each cursor of a plan."""
    bins: list[Bin] = []
    for bin_, after in islice(plan.bins(Cursor()), count):
        bins.append(bin_)
        yield bins, after


@pytest.mark.parametrize("streaming", [False, True])
def test_proteins_and_passes_are_those_of_the_bins(settings: DataSettings, streaming: bool) -> None:
    corpora = opened(replace(settings, streaming=streaming))
    plan, digests = corpora.plan(0), corpora.parts[0].store
    assert corpora.progress(plan, Cursor()) == CorpusProgress(0, None if streaming else 0.0)
    training = np.flatnonzero(corpora.parts[0].split.is_training(np.arange(150)))
    assert 100 < len(training) < 150
    for bins, after in cursors(plan, 140):
        records = np.concatenate([bin_.samples for bin_ in bins])
        expected = len(records) / len(training)
        seen = corpora.progress(plan, after)
        assert seen is not None
        assert seen.proteins == len(np.unique(digests.digests[records])) < len(training)
        if streaming and not after.epoch:
            assert seen.passes is None
        else:
            assert seen.passes == pytest.approx(expected, abs=1e-9)
    assert after.epoch >= 2
    assert seen.proteins == len(np.unique(digests.digests[training]))


def test_what_has_no_passes_over_its_records_is_not_said(settings: DataSettings) -> None:
    table = str(Path(settings.sources[0]).with_suffix(".tsv"))
    by_cluster = opened(replace(settings, sample_by="cluster", clusters=table))
    parts = (MixedCorpus(sources=settings.sources, weight=3), MixedCorpus(sources=settings.sources))
    mixed = opened(replace(settings, sources=(), mixture=parts))
    for corpora in (by_cluster, mixed):
        (*_, (_, after)) = cursors(corpora.plan(0), 30)
        assert corpora.progress(corpora.plan(0), after) is None


def test_whether_clusters_are_held_out(settings: DataSettings) -> None:
    table = str(Path(settings.sources[0]).with_suffix(".tsv"))
    assert [opened(replace(settings, clusters=clusters)).by_cluster for clusters in (None, table)] == [False, True]
    assert not opened(replace(settings, streaming=True)).by_cluster
    parts = (MixedCorpus(sources=settings.sources, clusters=table), MixedCorpus(sources=settings.sources))
    assert not opened(replace(settings, sources=(), mixture=parts)).by_cluster
