"""What the passes over a corpus draw: a stream in the order of its arrival once, and one member of every cluster."""

from pathlib import Path

import numpy as np

from data.corpus.corpora import Corpus
from data.corpus.prepare import open_corpora, prepare_corpora
from data.homology.split import prefix_split
from data.order.sampler import Epochs, Sampler
from data.settings import CorpusSettings, DataSettings
from support.inputs.token_stores import proteins, store_of


def drawn(sampler: Sampler, epoch: int) -> list[int]:
    """Sample ids of a pass of three windows, in order of arrival."""
    windows = [sampler.window(epoch, number) for number in range(4)]
    assert [window is None for window in windows] == [False, False, False, True]
    return [sample for window in windows if window for sample in window.samples.tolist()]


def test_a_stream_comes_as_it_arrives_once_and_then_as_any_corpus(tmp_path: Path) -> None:
    store = store_of(tmp_path, proteins(60))
    split = prefix_split(store, 60, 0.2)
    stream, whole = (
        Epochs(Corpus(CorpusSettings(streaming=streaming), store, split, None, None), 3, 25)
        for streaming in (True, False)
    )
    trained = np.flatnonzero(split.is_training(np.arange(60))).tolist()
    assert 30 < len(trained) < 60
    assert drawn(stream, 0) == trained != drawn(whole, 0)
    for number in (1, 2):
        assert drawn(stream, number) == drawn(whole, number) != trained
        assert sorted(drawn(stream, number)) == trained


def test_every_pass_takes_one_member_of_each_cluster_and_in_time_all(
    families_files: tuple[Path, Path], tmp_path: Path
) -> None:
    fasta, clusters = families_files
    settings = DataSettings(
        sources=(str(fasta),),
        clusters=str(clusters),
        sample_by="cluster",
        validation_fraction=0.15,
        window_sequences=15,
        store_dir=str(tmp_path),
    )
    corpora = open_corpora(settings, prepare_corpora(settings))
    (part,) = corpora.parts
    assert part.clusters is not None
    trained = np.flatnonzero(part.split.is_training(np.arange(part.store.num_records)))
    passes = [drawn(corpora.plan(0).sampler, number) for number in range(30)]
    one_each = sorted(set(part.clusters.of_records[trained].tolist()))
    for samples in passes:
        assert sorted(part.clusters.of_records[np.array(samples)].tolist()) == one_each
    assert set().union(*passes) == set(trained.tolist())
