"""Validation: perplexity on held-out clusters under two corruptions, and that of residue frequencies to compare with.

In: corpora or a frozen set, a model. Out: `CorruptionScores`s. Kept: nothing; which proteins, crops and positions are
scored follows from the split alone, so every run and every step on one corpus is scored on the same targets. The
commands that score finished models (`pretrain.evaluate`, `pretrain.compare`) take the same passes, by `loss_sums`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data.alphabet import IS_TARGET
from data.batches.batch import Batch
from data.batches.contents import Contents
from data.batches.packed import iterate_bins
from data.corpus.corpora import Corpora
from data.order.plan import Bin
from data.order.settings import BinSettings
from data.settings import DataSettings
from data.sources.synthetic import Families, floor
from pretrain.evaluate.frozen_set import SEED, FrozenSet, frozen_set
from pretrain.evaluate.scores import CORRUPTIONS, CorruptionScores
from zymogen.trainer.engine.engine import Engine

_RESAMPLES = 1000
_COUNTED_RESIDUES = 10**8
"""Residues of the corpus that the unigram baseline is counted on, at most."""


def validation_set(corpora: Corpora, settings: DataSettings, max_sequences: int) -> FrozenSet:
    """The held-out proteins that are scored; at most `max_sequences`, chosen by hash."""
    return frozen_set(corpora.reader, corpora.validation, settings.crop_tokens, max_sequences)


def require_targets(contents: Contents, scored: FrozenSet, settings: BinSettings, *, holds_out: bool) -> None:
    """Check that there is anything to score, before a run trains that could not be validated.

    Args:
        contents: what a validation fills bins with.
        scored: what validations score.
        settings: sizes of a bin.
        holds_out: whether that is held out, and not of the training side.

    Raises:
        ValueError: no residue of the proteins that would be scored is a target.
    """
    if any(contents.batch([bin_], [0]).counts.any() for bin_ in scored.bins(settings)):
        return
    count, which, remedy = len(scored.samples), "training", "add proteins"
    if holds_out:
        which, remedy = "validation", "raise data.validation_fraction, or set it to 0, which holds out none"
    raise ValueError(
        f"no residue of the {count:,} {which} protein{'' if count == 1 else 's'} is a target that is scored, so the "
        f"run could not be validated: {remedy}"
    )


def evaluate(
    model: nn.Module,
    corpora: Corpora,
    scored: FrozenSet,
    settings: BinSettings,
    engine: Engine,
    unigram: NDArray[np.float64],
) -> dict[str, CorruptionScores]:
    """Score the model under both corruptions. Every rank must call this; rank 0 computes the result for all of them.

    Args:
        model: a `MaskedLanguageModel`, as the engine prepared it; left in the mode it was in.
        corpora: the corpora that it is of, whose clusters the intervals draw.
        scored: what is scored.
        settings: sizes of a bin.
        engine: the engine to whose ranks the bins are dealt.
        unigram: (33,) loss in nats of each token id, from `unigram_losses`.
    """
    sums = loss_sums(model, scored, settings, engine, unigram)

    def of_one(rows: list[Row]) -> CorruptionScores:
        return evaluation_of(rows, corpora.clusters_of(np.array([row[0] for row in rows])))

    return engine.on_main(lambda: {name: of_one(merged(rows)) for name, rows in sums.items()})


def loss_sums(
    model: nn.Module,
    scored: FrozenSet,
    settings: BinSettings,
    engine: Engine,
    unigram: NDArray[np.float64],
    autocast: Callable[[], AbstractContextManager[None]] | None = None,
) -> dict[str, list[list["Row"]]]:
    """Sums of each protein under both corruptions, of every rank, which `merged` puts together; collective.

    Args:
        model: a `MaskedLanguageModel`; left in the mode it was in.
        scored: what is scored.
        settings: sizes of a bin; the result does not depend on them.
        engine: the engine to whose ranks the bins are dealt.
        unigram: (33,) loss in nats of each token id.
        autocast: what the model computes in; None for the engine's own.
    """
    bins = scored.bins(settings)
    found: dict[str, list[list[Row]]] = {}
    for name, mask in CORRUPTIONS.items():
        rows: list[Row] = []
        for bin_, batch, losses in losses_by_batch(model, bins, scored.contents(mask, settings), engine, autocast):
            rows += _by_document(bin_, batch, losses, unigram)
        found[name] = engine.gather(rows)
    return found


@torch.no_grad()
def losses_by_batch(
    model: nn.Module,
    bins: Sequence[Bin],
    contents: Contents,
    engine: Engine,
    autocast: Callable[[], AbstractContextManager[None]] | None = None,
) -> Iterator[tuple[Bin, Batch, NDArray[np.float64]]]:
    """Losses of the bins that are this process's own, one bin after the other; collective.

    Args:
        model: a `MaskedLanguageModel`; in evaluation mode meanwhile, and then in the mode it was in.
        bins: those of all processes.
        contents: of the bins.
        engine: the engine to whose ranks the bins are dealt.
        autocast: what the model computes in; None for the engine's own.

    Yields:
        A bin, its batch on the host, and (targets,) their losses in nats.
    """
    was_training = model.training
    model.train(False)
    for bin_, batch, is_own in iterate_bins(bins, contents, engine):
        with (autocast or engine.autocast)():
            losses = model(batch.to(engine.device), each=True).cpu().numpy().astype(np.float64)
        if is_own:
            yield bin_, batch, losses
    model.train(was_training)


def with_floor(
    results: dict[str, CorruptionScores], families: Families, scored: FrozenSet, settings: BinSettings
) -> dict[str, CorruptionScores]:
    """The same results, with the exact floor of the embedded corpus that was scored. Rank 0 alone can call this."""
    bins = scored.bins(settings)
    found = {}
    for name, mask in CORRUPTIONS.items():
        contents = scored.contents(mask, settings)
        documents = [
            (batch.tokens[a:b].numpy().astype(np.uint8), labels[a:b].numpy())
            for batch in (contents.batch([bin_], [0]) for bin_ in bins)
            for labels in (targets.in_slots(batch.tokens.numel()) for targets in batch.targets)
            for a, b in batch.spans
        ]
        losses = floor(
            documents,
            families,
            select_prob=mask.select_prob,
            mask_prob=mask.mask_prob,
            random_prob=mask.random_prob,
        )
        found[name] = replace(results[name], floor=_exp(np.concatenate(losses).mean()))
    return found


def unigram_losses(corpora: Corpora) -> NDArray[np.float64]:
    """Loss in nats of each token id, (33,), under the frequencies of possible targets on the training side.

    One is added to every count, so that a residue that training never saw costs something finite.
    """
    smoothed = np.where(IS_TARGET, corpora.token_counts(_COUNTED_RESIDUES) + 1.0, 0.0)
    with np.errstate(divide="ignore"):  # tokens that are no targets get infinity, which nothing reads
        return np.asarray(-np.log(smoothed / smoothed.sum()))


Row = tuple[int, float, float, int]
"""(record, summed loss, summed unigram loss, targets) of a document."""


def merged(rows: list[list[Row]]) -> list[Row]:
    """Every rank's rows by record; ranks that share a batch have a part of a document each."""
    documents: dict[int, Row] = {}
    for record, loss, baseline, count in (row for part in rows for row in part):
        _, losses, baselines, counts = documents.get(record, (record, 0.0, 0.0, 0))
        documents[record] = record, losses + loss, baselines + baseline, counts + count
    return [documents[record] for record in sorted(documents)]


def _by_document(scored: Bin, batch: Batch, losses: NDArray[np.float64], unigram: NDArray[np.float64]) -> Iterator[Row]:
    """A row for each document that has targets in this rank's share of the batch."""
    (targets,) = batch.targets
    slots = targets.slots.numpy()
    baseline = unigram[targets.labels.numpy()]
    for record, (start, end) in zip(scored.samples.tolist(), batch.spans, strict=True):
        mine = slice(*np.searchsorted(slots, (start, end)))
        if count := len(losses[mine]):
            yield record, float(losses[mine].sum()), float(baseline[mine].sum()), count


def evaluation_of(rows: list[Row], groups: NDArray[np.integer]) -> CorruptionScores:
    """Scores from the sums of some proteins.

    Args:
        rows: of at least one protein.
        groups: (rows,) any number of the group of each, which are resampled together.
    """
    sums = np.array([row[1:] for row in rows])
    loss, baseline, targets = sums.sum(0)
    _, clusters = np.unique(groups, return_inverse=True)
    low, high, gain_low, gain_high = intervals(sums, clusters)
    return CorruptionScores(
        perplexity=_exp(loss / targets),
        low=_exp(low),
        high=_exp(high),
        unigram=_exp(baseline / targets),
        gain=float((baseline - loss) / targets),
        gain_low=gain_low,
        gain_high=gain_high,
        floor=None,
        sequences=len(rows),
        targets=int(targets),
    )


def intervals(sums: NDArray[np.float64], clusters: NDArray[np.int64]) -> tuple[float, float, float, float]:
    """Ends of the 95 % interval of the mean loss, and of that of the gain, in nats.

    Clusters are drawn with replacement, each with all of its sequences: these are relatives, so their errors are alike
    (the cluster bootstrap; Davison and Hinkley 1997, section 3.8).

    Args:
        sums: (sequences, 3) summed loss, summed unigram loss, targets.
        clusters: (sequences,) number of the cluster of each, from 0, without gaps.

    Returns:
        Four numbers; NaN where there is only one cluster, which does not show how much clusters differ.
    """
    count = int(clusters.max()) + 1
    if count == 1:
        return math.nan, math.nan, math.nan, math.nan
    of_clusters = np.zeros((count, 3))
    np.add.at(of_clusters, clusters, sums)
    drawn = np.random.Generator(np.random.Philox(SEED))
    resampled = np.empty((_RESAMPLES, 3))
    for resample in resampled:  # one at a time: all draws at once would take 80 MB for 10,000 clusters
        resample[:] = np.bincount(drawn.integers(count, size=count), minlength=count) @ of_clusters
    means = resampled[:, 0] / resampled[:, 2]
    gains = (resampled[:, 1] - resampled[:, 0]) / resampled[:, 2]
    low, high = np.quantile(means, (0.025, 0.975)).tolist()
    gain_low, gain_high = np.quantile(gains, (0.025, 0.975)).tolist()
    return low, high, gain_low, gain_high


def _exp(nats: float) -> float:
    with np.errstate(over="ignore"):  # diverged weights may have a loss whose perplexity is infinite
        return float(np.exp(nats))
