"""What a user names to be scored: the held-out side of a run, or the proteins of any sources.

In: words of a command line. Out: `Corpora`, and the `FrozenSet` that is scored, on every rank. Kept: token stores, as
`data.corpus.stores` keeps them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.corpus.corpora import Corpora
from data.corpus.prepare import open_corpora, prepare_corpora
from data.homology import mmseqs
from data.homology.relatives import cluster_within, nearest, search_method
from data.order.sampler import CORPUS_BITS
from data.settings import DataSettings, LetterPolicy
from pretrain.corpora import data_settings
from pretrain.evaluate.frozen_set import FrozenSet, frozen_set
from pretrain.evaluate.scores import HeldOutUnit
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.run.directory import RunDirectory, run_at

MAX_SEQUENCES = 2000
_RELATIVES = 0.3
"""Least identity of proteins that are drawn together, where no run has clusters of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSetOptions:
    """What is to be scored, in the words of a command line."""

    data: tuple[str, ...]
    """One run directory, or sources as data.sources of a recipe takes them."""
    max_sequences: int | None = None
    """Most proteins; None for the run's own number, or 2,000."""
    crop_tokens: int | None = None
    """Most tokens of a crop; None for the run's own number, or 1,024."""
    store_dir: str | None = None
    """Where stores are kept; None for the run's own folder, or a recipe's default."""
    unknown_letters: LetterPolicy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """What is scored, opened."""

    asked: EvaluationSetOptions
    corpora: Corpora
    scored: FrozenSet
    held_out: HeldOutUnit | None
    """What was held out of a run; None for proteins of other files."""
    crop_tokens: int

    def groups(self) -> tuple[NDArray[np.integer], str]:
        """(documents,) a number that proteins drawn together share, and what they are, in words; rank 0 alone.

        Raises:
            ValueError: MMseqs2 failed.
        """
        samples = self.scored.samples
        if self.held_out is not None:
            return self.corpora.clusters_of(samples), (
                "clusters of the split" if self.corpora.by_cluster else "equal sequences"
            )
        groups = cluster_within(self.corpora.parts[0].store, samples, [_RELATIVES])[_RELATIVES]
        found_by = "shared words" if mmseqs.why_not_installed() else "MMseqs2"
        return groups, f"relatives at {100 * _RELATIVES:.0f} % identity ({found_by})"

    def identities(self, training: Corpora) -> tuple[NDArray[np.float64], str]:
        """(documents,) identity to the nearest training protein, and what searched; rank 0 alone.

        The alignment covers at least half of the scored protein. It is 0 where no relative was found, and -1
        where none could be: the search does not find the protein itself.

        Raises:
            ValueError: a corpus is a stream, or MMseqs2 failed.
        """
        found, is_searchable = np.zeros(len(self.scored.samples)), np.ones(len(self.scored.samples), np.bool_)
        if any(part.store.is_growing for part in training.parts):
            raise ValueError("the training corpus is a stream, which cannot be searched")
        for number, own in enumerate(self.corpora.parts):
            mine = self.scored.samples >> CORPUS_BITS == number
            records = self.scored.samples[mine] & ((1 << CORPUS_BITS) - 1)
            for part in training.parts:
                among = np.arange(part.store.num_records)
                hits = nearest(own.store, records, part.store, among[part.split.is_training(among)])
                found[mine] = np.maximum(found[mine], hits.identity)
                is_searchable[mine] &= hits.is_searchable
        return np.where(is_searchable | (found > 0), found, -1.0), search_method()


def open_evaluation_set(asked: EvaluationSetOptions, engine: Engine) -> EvaluationSet:
    """Open what is to be scored; collective.

    Raises:
        ValueError: a source, a run or its data is at fault, or there is no protein.
    """
    corpora, settings, run = corpora_of(asked, engine)
    crop_tokens = asked.crop_tokens or settings.crop_tokens
    max_sequences, held_out = asked.max_sequences or MAX_SEQUENCES, None
    if run is not None:
        described = run.read()
        max_sequences = asked.max_sequences or described.recipe["run"]["validation_sequences"]
        held_out = HeldOutUnit.of(described.corpus) or HeldOutUnit.NOTHING
    scored = frozen_set(corpora.reader, corpora.validation, crop_tokens, max_sequences)
    return EvaluationSet(asked=asked, corpora=corpora, scored=scored, held_out=held_out, crop_tokens=crop_tokens)


def corpora_of(asked: EvaluationSetOptions, engine: Engine) -> tuple[Corpora, DataSettings, RunDirectory | None]:
    """The corpora of a run, or of sources, of which nothing is held out; collective.

    Raises:
        ValueError: as `open_evaluation_set`.
    """
    run = RunDirectory(Path(asked.data[0])) if (Path(asked.data[0]) / "run.json").is_file() else None
    settings = _of_sources(asked) if run is None else _of_run(run, asked)
    corpora = open_corpora(settings, engine.on_each_node(lambda: prepare_corpora(settings, fetches=run is None)))
    if run is not None:
        run.require_corpus({"split": corpora.split_fingerprint})
    return corpora, settings, run


def _of_sources(asked: EvaluationSetOptions) -> DataSettings:
    changed: dict[str, Any] = {"store_dir": asked.store_dir, "unknown_letters": asked.unknown_letters}
    given = {name: value for name, value in changed.items() if value is not None}
    return DataSettings(sources=asked.data, validation_fraction=0.0, **given)


def _of_run(run: RunDirectory, asked: EvaluationSetOptions) -> DataSettings:
    if len(asked.data) > 1:
        raise ValueError(f"{run.root} is a run, whose held-out proteins are scored, and stands alone; give it alone")
    if "architecture" not in run.read().model:
        raise ValueError(f"{run.root} is no pretraining run with a model; give a pretraining run, or sources")
    settings = data_settings(run.read(), run.root)
    if asked.store_dir is None:
        return settings
    Path(asked.store_dir).mkdir(parents=True, exist_ok=True)
    return replace(settings, store_dir=asked.store_dir)


def run_of_name(words: Sequence[str] | None, model: str) -> tuple[str, ...]:
    """What the words name, or the run that the model is, or lies in as its export or a checkpoint; else nothing."""
    run = run_at(model)
    return tuple(words or ()) or ((str(run),) if run else ())
