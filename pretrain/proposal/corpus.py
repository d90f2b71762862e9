"""The facts about a corpus that a proposal rests on: lengths, equal sequences, what can be held out.

In: a finished token store. Out: `CorpusFacts`, `SplitFacts`: plain values, so that a test can make up a corpus. Kept:
nothing here; clusters are kept beside the store, as a run keeps them.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.corpus.lengths import LengthHistogram, count_lengths
from data.homology import mmseqs
from data.homology.clusters import Clusters, open_clusters
from data.homology.split import split_by_cluster
from data.store.token_store import TokenStore
from pretrain.proposal import rules
from zymogen.console.progress import ProgressBar
from zymogen.processes.resources import resources

_MOST_DISTINCT = 20_000_000
"""Records up to which equal sequences are counted, by sorting 8 bytes of each."""


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """What is held out for validation, and why so."""

    fraction: float
    """`data.validation_fraction`; 0 where nothing can be held out."""
    identity: float | None
    """`data.split_identity`, if MMseqs2 clusters the corpus."""
    held_proteins: int
    reason: str
    """A clause: by what it was decided, and why not by something better."""
    clusters: int
    """Number of clusters."""


@dataclass(frozen=True, slots=True)
class CorpusFacts(LengthHistogram):
    """A corpus in numbers: its lengths, and how many of its proteins are distinct."""

    distinct: int | None
    """Number of distinct sequences; None where there are too many to count quickly."""

    def pass_tokens(self, crop_tokens: int) -> int:
        """Tokens of one pass over all proteins: residues and two ends each, cut to a crop."""
        return int((np.minimum(self.values + 2, crop_tokens) * self.counts).sum())

    def pass_squares(self, crop_tokens: int) -> float:
        """Sum of the squared lengths in tokens of one pass: the cost of attention."""
        return float((np.minimum(self.values + 2, crop_tokens).astype(np.float64) ** 2 * self.counts).sum())


def facts_of(store: TokenStore) -> CorpusFacts:
    """The facts of a finished store; reads its offsets and, to count distinct sequences if they are few, digests."""
    lengths = count_lengths(store)
    few = store.num_records <= _MOST_DISTINCT
    return CorpusFacts(lengths.values, lengths.counts, len(np.unique(store.digests)) if few else None)


def split_of(
    store: TokenStore,
    facts: CorpusFacts,
    table: Path | None,
    budget_s: float,
    given: Mapping[str, Any],
    *,
    cluster: bool,
) -> SplitFacts:
    """Decide what shares a cluster and what share of the clusters is held out; clusters with MMseqs2 if there is time.

    Args:
        store: a finished store.
        facts: its facts.
        table: the table of clusters that was given, or that comes with the corpus.
        budget_s: time of the run.
        given: what the user gave, by dotted name.
        cluster: whether to cluster now; otherwise a corpus that is not clustered yet counts as if no two proteins were
            relatives.
    """
    fraction = given.get("data.validation_fraction")
    if fraction == 0:
        words = "nothing is held out, as you asked: scores are of training proteins"
        return SplitFacts(0.0, None, 0, words, facts.distinct or facts.num_records)
    equal = open_clusters(store, None)
    if table is not None:
        return _held(open_clusters(store, table), None, f"by the clusters of {table}", fraction)
    asked = given.get("data.split_identity")
    identity = asked or rules.SPLIT_IDENTITY
    is_clustered = _is_clustered(store, identity)
    if asked is not None and (cluster or is_clustered):
        return _by_identity(store, asked, fraction)
    if facts.distinct == 1:
        words = "nothing is held out, because all sequences are equal: scores are of training proteins"
        return SplitFacts(0.0, None, 0, words, 1)
    expected_s = rules.cluster_seconds(facts.num_residues, facts.distinct or facts.num_records, resources().cores)
    words = ""
    if asked is None and "data.split_identity" in given:
        words = "as you asked"
    elif asked is None and not is_clustered and (obstacle := mmseqs.why_not_installed()):
        words = f"because {obstacle}" + ("" if mmseqs.is_installed() else f" ({mmseqs.INSTALL})")
    elif asked is None and expected_s > rules.CLUSTER_TIME * budget_s and not is_clustered:
        words = (
            f"because MMseqs2 would take some {expected_s:,.0f} seconds here "
            f"(data.split_identity={rules.SPLIT_IDENTITY} clusters nevertheless)"
        )
    elif not (cluster or is_clustered):
        words = f"by clusters of {identity:.0%} identity, which MMseqs2 finds in some {expected_s:,.0f} seconds"
        return replace(_held(equal, None, words, fraction), identity=identity)
    if not words:
        found = _by_identity(store, identity, fraction)
        if found.held_proteins:
            return found
        words = f"because at {identity:.0%} identity there are too few clusters ({found.clusters})"
    warning = "relatives of validation proteins train, and scores look better than they are"
    return _held(equal, None, f"by equal sequences alone, {words}: {warning}", fraction)


def _by_identity(store: TokenStore, identity: float, fraction: float | None) -> SplitFacts:
    from data.homology.mmseqs import COVERAGE, cluster_by_identity

    started = time.perf_counter()
    clusters = cluster_by_identity(store, identity)
    seconds = time.perf_counter() - started
    took = f", in {seconds:.0f} s" if seconds > 1 else ""
    # Of peptides, how they were compared, or that they are too many for it.
    tool = "; ".join(["MMseqs2", *clusters.facts["tool"].split("; ")[1:]])
    words = (
        f"by clusters of {identity:.0%} identity over {COVERAGE:.0%} of both sequences ({tool}{took}), so that no such "
        "relative of a validation protein that it finds trains"
    )
    return _held(clusters, identity, words, fraction)


def _is_clustered(store: TokenStore, identity: float) -> bool:
    from data.store.derived import find

    return bool(list(find(store, f"clusters-mmseqs-{identity!r}-")))


def _held(clusters: Clusters, identity: float | None, words: str, fraction: float | None) -> SplitFacts:
    """The share that was given; else the smallest of the ladder that holds out a cluster and leaves enough to train."""
    with ProgressBar("looking at the clusters"):
        hashes = np.concatenate([of_records for _, of_records in clusters.blocks()])
        distinct = np.unique(hashes)
    shares = (rules.validation_share(len(distinct)), *rules.VALIDATION_LADDER)
    for share in shares if fraction is None else (fraction,):
        held = int(np.count_nonzero(split_by_cluster(hashes, share)))
        if 0 < held <= (rules.MOST_VALIDATION_RECORDS if fraction is None else 1) * len(hashes):
            return SplitFacts(share, identity, held, words, len(distinct))
    why = f"there are too few clusters ({len(distinct)})"
    if fraction is not None:
        why = f"{fraction:.2g} of {len(distinct):,} clusters is none here"
    few = f"nothing is held out, because {why}: scores are of training proteins"
    return SplitFacts(fraction or 0.0, None, 0, few, len(distinct))
