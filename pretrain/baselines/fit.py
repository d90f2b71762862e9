"""The baselines of a corpus: fitted on its training side, scored on what a validation scores.

In: open corpora and the settings of a recipe. Out: `CorpusBaseline`s. Kept: nothing.

They are fitted on the first proteins of the run's own plan, 2 million residues at most, so that a mixture is read with
its weights and a stream from its first window. A tenth of these, whole clusters, chooses how strongly each is fitted.
Scored are the proteins, crops, targets and visible letters that `pretrain.evaluate` gives a model, every target
masked.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.batches.contents import MaskedContents
from data.batches.masking import BertMask
from data.corpus.corpora import Corpora
from data.order.plan import Bin, Cursor
from data.settings import DataSettings
from pretrain.baselines import predictors
from pretrain.baselines.predictors import LETTERS, REACH, WIDTH, HiddenResidues, NeighbourModel, hidden_residues
from pretrain.evaluate.frozen_set import FrozenSet
from pretrain.evaluate.scores import CORRUPTIONS, CorruptionScores
from pretrain.evaluate.validation import Row, evaluation_of, merged, unigram_losses
from zymogen import keyed_random

MOST_RESIDUES = 2_000_000
_TUNING = 10
"""One in so many clusters tunes."""
_SEED = 1
"""Keys the residues that are hidden while fitting; a validation has another one."""
Losses = Callable[[HiddenResidues], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CorpusBaseline:
    """A predictor, and how well it does."""

    name: str
    rows: list[Row]
    """Sums of each scored protein, by rising number."""
    scores: CorruptionScores
    """Every target masked."""
    seconds: float
    """Wall time of the fit and the scores."""


def measure(
    corpora: Corpora, settings: DataSettings, scored: FrozenSet, groups: NDArray[np.integer], seed: int
) -> list[CorpusBaseline]:
    """All baselines, from the simplest on.

    Args:
        corpora: those of a run, on whose training side they are fitted.
        settings: of the run.
        scored: what is scored.
        groups: (documents,) any number of the group of each protein that is scored; groups are resampled together.
        seed: of the run, which decides the order of its proteins.
    """
    mask, unigram = CORRUPTIONS["mask_all"], unigram_losses(corpora)
    contents = MaskedContents(corpora.reader, settings, BertMask(mask), _SEED)
    fitting, tuning = _divided(_first_documents(corpora, seed), corpora)
    asked = [hidden_residues(bin_, scored.contents(mask, settings)) for bin_ in scored.bins(settings)]
    of_tuning = hidden_residues(_in_pass(tuning, 0), contents)
    frequencies = np.exp(-unigram[LETTERS])
    found: list[CorpusBaseline] = []

    def add(name: str, losses: Losses, began: float) -> None:
        rows = merged([_rows(hidden, losses(hidden), unigram) for hidden in asked])
        scores = evaluation_of(rows, groups[np.searchsorted(scored.samples, [row[0] for row in rows])])
        found.append(CorpusBaseline(name=name, rows=rows, scores=scores, seconds=time.perf_counter() - began))

    began = time.perf_counter()
    add("residue frequencies", lambda hidden: unigram[LETTERS[hidden.truths]], began)
    began = time.perf_counter()
    of_protein = predictors.fit_composition(frequencies, of_tuning)
    add(f"composition of the protein (weight {of_protein.strength:.0f})", of_protein.losses, began)
    for name, width in ((f"{REACH} neighbours a side, linear", 0), (f"the same, {WIDTH} hidden units", WIDTH)):
        began = time.perf_counter()
        model = NeighbourModel(of_protein, width)
        model.fit(lambda number: hidden_residues(_in_pass(fitting, number), contents), of_tuning)
        add(name, model.losses, began)
    return found


def _first_documents(corpora: Corpora, seed: int) -> Bin:
    """The first documents of a run, at most `MOST_RESIDUES` and one pass."""
    taken: list[Bin] = []
    for bin_, cursor in corpora.plan(seed).bins(Cursor()):
        if cursor.epoch or (taken and sum(each.num_tokens for each in taken) + bin_.num_tokens > MOST_RESIDUES):
            break
        taken.append(bin_)
    samples, starts, lengths = (
        np.concatenate([getattr(bin_, name) for bin_ in taken]) for name in ("samples", "starts", "lengths")
    )
    return Bin(samples, np.zeros_like(samples), starts, lengths)


def _divided(documents: Bin, corpora: Corpora) -> tuple[Bin, Bin]:
    """The documents of most clusters, and those of a tenth; all of them twice, where there is one cluster."""
    of_documents = corpora.clusters_of(documents.samples)
    clusters = np.unique(of_documents)
    if len(clusters) == 1:
        return documents, documents
    order = np.argsort(keyed_random.hashes(_SEED, clusters.view(np.int64)), kind="stable")
    tunes = np.isin(of_documents, clusters[order[: -(-len(clusters) // _TUNING)]])
    return _some(documents, ~tunes), _some(documents, tunes)


def _some(documents: Bin, chosen: NDArray[np.bool_]) -> Bin:
    return Bin(*(of_each[chosen] for of_each in documents))


def _in_pass(documents: Bin, number: int) -> Bin:
    """The same documents; the number of a pass decides which of their residues are hidden."""
    return documents._replace(epochs=np.full_like(documents.epochs, number))


def _rows(hidden: HiddenResidues, losses: NDArray[np.float64], unigram: NDArray[np.float64]) -> list[Row]:
    """Sums of each document that has hidden residues."""
    count = len(hidden.samples)
    sums = [np.bincount(hidden.documents, of, count) for of in (losses, unigram[LETTERS[hidden.truths]])]
    targets = np.bincount(hidden.documents, minlength=count)
    rows = zip(hidden.samples.tolist(), *(of.tolist() for of in sums), targets.tolist(), strict=True)
    return [row for row in rows if row[3]]
