"""Getting corpora ready: find or build stores, clusters and splits, once per node; then open them in every process.

In: the recipe's data settings. Out: what `open_corpora` opens. Kept: everything, on disk: under `data.store_dir`, or
inside a store that lies elsewhere if that can be written to.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data.corpus.corpora import Corpora, Corpus
from data.corpus.reader import CorpusReader
from data.corpus.stores import PreparedCorpus, prepare_stores
from data.homology.clusters import excluded, open_clusters
from data.homology.mmseqs import cluster_by_identity
from data.homology.overlap import remove_overlap
from data.homology.split import open_split, prefix_split
from data.settings import CorpusSettings, DataSettings
from data.store.growing import GrowingStore
from data.store.token_store import TokenStore


def prepare_corpora(settings: DataSettings, *, fetches: bool = True) -> tuple[PreparedCorpus, ...]:
    """Find or build everything; called by one process of each node. A stream is only begun.

    Args:
        settings: of the recipe.
        fetches: whether servers may be asked and `data.store_dir` made; not where somebody else's file names them.

    Raises:
        ValueError: the sources, the clusters or the split are wrong, or sources would have to be fetched.
    """
    prepared = prepare_stores(settings, fetches=fetches)
    open_corpora(settings, prepared)  # so that it fails here, while the other processes wait for the result
    return prepared


def open_corpora(settings: DataSettings, prepared: Sequence[PreparedCorpus]) -> Corpora:
    """Open what was prepared; the same on every process of a node."""
    opened = [_open(corpus, found, settings) for corpus, found in zip(settings.corpora, prepared, strict=True)]
    splits = remove_overlap([part.split for part in opened])
    parts = tuple(replace(part, split=split) for part, split in zip(opened, splits, strict=True))
    return Corpora(settings, parts, CorpusReader([part.store.folder for part in parts]))


def _open(corpus: CorpusSettings, found: PreparedCorpus, settings: DataSettings) -> Corpus:
    if corpus.streaming:
        growing = GrowingStore(found.folder)
        prefix = growing.wait(settings.window_sequences)
        return Corpus(corpus, growing, prefix_split(growing, prefix, settings.validation_fraction), None, None)
    store = TokenStore(found.folder, Path(settings.store_dir))
    if corpus.split_identity is None:
        clusters = open_clusters(store, found.clusters)
    else:
        clusters = cluster_by_identity(store, corpus.split_identity)
    banned = excluded(store, Path(corpus.exclude)) if corpus.exclude else None
    split = open_split(store, clusters, settings.validation_fraction, banned)
    return Corpus(corpus, store, split, clusters, found.families)
