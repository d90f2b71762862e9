"""What the passes over a corpus draw: a stream in the order of its arrival once, and one member of every cluster."""

from pathlib import Path

import numpy as np

from data.corpus.corpora import EveryRecord
from data.homology.split import prefix_split
from data.order.sampler import Passes
from support.inputs.token_stores import proteins, store_of


def test_a_stream_comes_as_it_arrives_once_and_then_as_any_corpus(tmp_path: Path) -> None:
    store = store_of(tmp_path, proteins(60))
    split = prefix_split(store, 60, 0.2)
    stream, whole = (Passes(EveryRecord(store, split, streaming=streaming), 3, 25) for streaming in (True, False))

    def drawn(passes: Passes, number: int) -> list[int]:
        return [sample for window in range(3) for sample in passes.window(number, window).samples.tolist()]

    trained = np.flatnonzero(split.is_training(np.arange(60))).tolist()
    assert 30 < len(trained) < 60
    assert drawn(stream, 0) == trained != drawn(whole, 0)
    for number in (1, 2):
        assert drawn(stream, number) == drawn(whole, number) != trained
        assert sorted(drawn(stream, number)) == trained
