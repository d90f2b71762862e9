"""The corpora of a run: stores, splits and what is drawn from them.

In: open stores, clusters and splits (`data.corpus.stores` opens them). Out: the plan, the validation side, the
description for run.json. Kept: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.batches.contents import MaskedContents
from data.batches.masking import mask_policy
from data.corpus.reader import CorpusReader
from data.homology.clusters import ClusterMembers, Clusters
from data.homology.name_table import names
from data.homology.split import CorpusSplit
from data.order.plan import CorpusProgress, Cursor, Plan
from data.order.sampler import CORPUS_BITS, Epochs, Mixture, Sampler
from data.settings import CorpusSettings, DataSettings
from data.sources.synthetic import Families
from data.store.token_store import TokenStore, new_hash
from zymogen import keyed_random

_MOST_COUNTED = 20_000_000
"""Records among which equal sequences are counted, by sorting 8 bytes of each."""
_MOST_SCORED = 100_000
"""Training records among which those are chosen that are scored, where nothing is held out."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """One corpus, open."""

    settings: CorpusSettings
    store: TokenStore
    split: CorpusSplit
    clusters: Clusters | None
    """None while the store is still growing."""
    families: Families | None
    """Settings of the embedded corpus; None for any other."""

    def size(self, wanted: int) -> int:
        """Number of items of a pass: clusters, or records, at most `wanted` of a store that is still written.

        It waits for records that are still to be written.
        """
        return self.store.wait(wanted) if self.members is None else len(self.members.clusters)

    def records(self, items: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """The record of each item; -1 for one that is held out, excluded or a copy.

        It is the item itself, or a member of the cluster, chosen by a keyed hash (ESM-2's sampling; Rives et al. 2021).
        """
        records = items
        if self.members is not None:
            clusters, first = self.members.clusters[items], self.members.offsets[items]
            count = (self.members.offsets[items + 1] - first).astype(np.int64)
            chosen = first.astype(np.int64) + keyed_random.integers(keyed_random.hashes(key, clusters), count)
            records = self.members.records[chosen].astype(np.int64)
        return np.where(self.split.is_training(records), records, -1)

    def in_order(self, epoch: int) -> bool:
        """True for the first pass of a stream, which takes records as they arrive."""
        return self.settings.streaming and epoch == 0

    @property
    def members(self) -> ClusterMembers | None:
        """The records of each cluster, of which a pass draws one; None if it draws every record."""
        return self.clusters.members if self.clusters and self.settings.sample_by == "cluster" else None


@dataclass(frozen=True, slots=True)
class Corpora:
    """Everything that a run trains on and is scored on."""

    settings: DataSettings
    parts: tuple[Corpus, ...]
    reader: CorpusReader

    def plan(self, seed: int) -> Plan:
        """The plan of a run's bins."""
        settings = self.settings
        sampler: Sampler = Epochs(self.parts[0], seed, settings.window_sequences)
        if settings.mixture:
            sampler = Mixture(self.parts, settings.weights, seed, settings.window_sequences)
        return Plan(sampler, self.reader.num_residues, settings, seed)

    def masked(self, seed: int) -> MaskedContents:
        """The contents of a run's bins for masked language modelling."""
        return MaskedContents(self.reader, self.settings, mask_policy(self.settings.mask), seed)

    @property
    def holds_out(self) -> bool:
        """Whether any protein is held out; if not, training proteins are scored."""
        return any(len(part.split.validation) for part in self.parts)

    @property
    def validation(self) -> NDArray[np.int64]:
        """Sample ids of the proteins that are scored, ascending: all that are held out, or if none is, of training."""
        of_parts = (part.split.validation if self.holds_out else _some_training(part) for part in self.parts)
        return np.concatenate([np.asarray(ids) | (n << CORPUS_BITS) for n, ids in enumerate(of_parts)])

    def clusters_of(self, samples: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(n,) hash of the cluster of each sample id; without a table, equal sequences share a cluster."""
        hashes = np.empty(len(samples), np.uint64)
        for number, part in enumerate(self.parts):
            mine = samples >> CORPUS_BITS == number
            hashes[mine] = part.split.clusters.of_records[samples[mine] & ((1 << CORPUS_BITS) - 1)]
        return hashes

    def names(self, samples: NDArray[np.int64]) -> list[str]:
        """The first word of the header of each sample id."""
        records = ((self.parts[sample >> CORPUS_BITS].store, sample & ((1 << CORPUS_BITS) - 1)) for sample in samples)
        headers = (store.headers(int(record), int(record) + 1)[0] for store, record in records)
        return [names(header)[0].decode("utf-8", "replace") for header in headers]

    @property
    def num_training(self) -> int | None:
        """Number of records that train; None while one of the corpora is still being read."""
        if any(part.store.is_growing for part in self.parts):
            return None
        return sum(part.split.num_training for part in self.parts)

    @property
    def by_cluster(self) -> bool:
        """Whether clusters are held out whole, in each corpus; without a table only equal sequences are."""
        return all(part.clusters is not None and part.clusters.folder is not None for part in self.parts)

    def progress(self, plan: Plan, cursor: Cursor) -> CorpusProgress | None:
        """What a run has trained on up to a cursor of its plan.

        Returns:
            None for a mixture, or where one member of each cluster is drawn: neither has passes over its records.
        """
        (part, *others) = self.parts
        if others or part.settings.sample_by == "cluster":
            return None
        parts = [plan.sampler.window(cursor.epoch, number) for number in range(cursor.window)]
        bins = plan.window(cursor.epoch, cursor.window, cursor.tokens_before_window) or []
        in_pass = [items.samples for items in parts if items is not None] + [b.samples for b in bins[: cursor.bin]]
        records = np.concatenate([np.zeros(0, np.int64), *in_pass])
        if part.store.is_growing and not cursor.epoch:
            return CorpusProgress(_distinct(part.store, records), None)
        whole = np.arange(part.store.wait(1 << CORPUS_BITS))
        whole = whole[part.split.is_training(whole)]
        passes = cursor.epoch + len(records) / len(whole)
        return CorpusProgress(_distinct(part.store, whole if cursor.epoch else records), passes)

    @property
    def families(self) -> Families | None:
        """Settings of the embedded corpus; None unless it is the only corpus."""
        return self.parts[0].families if len(self.parts) == 1 else None

    @property
    def fingerprint(self) -> str:
        """Hash of what is drawn from: the content of the stores and, where clusters are drawn, the clusters."""
        each = []
        for part in self.parts:
            if part.store.is_growing:
                each.append(f"stream of {part.split.fingerprint}")
            elif part.settings.sample_by == "cluster" and part.clusters:
                each.append(f"{part.store.fingerprint} by {part.clusters.fingerprint}")
            else:
                each.append(part.store.fingerprint)
        return each[0] if len(each) == 1 else _hash(each)

    @property
    def split_fingerprint(self) -> str:
        """Hash of the records that are held out, that are excluded, and that are taken out as equal to one of these."""
        each = [part.split.fingerprint for part in self.parts]
        return each[0] if len(each) == 1 else _hash(each)

    def token_counts(self, most_residues: int) -> NDArray[np.int64]:
        """(33,) how often each token id occurs on the training side, over the first `most_residues` of each corpus."""
        counts = np.zeros(33, np.int64)
        for part in self.parts:
            records = part.store.wait(self.settings.window_sequences)
            last = int(np.searchsorted(part.store.offsets[: records + 1], most_residues, side="right")) - 1
            end = int(part.store.offsets[max(last, 1)])
            for start in range(0, end, 1 << 22):  # in pieces, as bincount makes 8 bytes of each token
                counts += np.bincount(part.store.tokens[start : min(end, start + (1 << 22))], minlength=33)
            for record in np.flatnonzero(~part.split.is_training(np.arange(max(last, 1)))).tolist():
                counts -= np.bincount(part.store.residues(record), minlength=33)
        return counts

    def facts(self) -> list[tuple[str, str]]:
        """(name, text) for readers: how many proteins train and validate, and what was held out together."""
        validation = sum(len(part.split.validation) for part in self.parts)
        training = self.num_training
        shown = "as many as arrive" if training is None else f"{training:,}"
        proteins = f"{shown} for training, {validation:,} for validation"
        for what, counts in (
            ("excluded", [len(part.split.excluded) for part in self.parts]),
            ("left out as copies", [p.split.copies_of_validation + p.split.copies_of_excluded for p in self.parts]),
        ):
            proteins += f", {sum(counts):,} {what}" if sum(counts) else ""
        splits = dict.fromkeys(_split_in_words(part) for part in self.parts)
        return [("proteins", proteins), ("split", "; ".join(splits))]

    def description(self) -> dict[str, Any]:
        """The description for run.json; counts are None for a corpus that is still being read."""
        parts = [
            {
                "store": str(part.store.folder),
                "records": None if part.store.is_growing else part.store.num_records,
                "residues": None if part.store.is_growing else int(part.store.facts["residues"]),
                "training_records": None if part.store.is_growing else part.split.num_training,
                "validation_records": len(part.split.validation),
                "excluded_records": len(part.split.excluded),
                "copies_of_validation": part.split.copies_of_validation,
                "copies_of_excluded": part.split.copies_of_excluded,
                "unknown_letters": None if part.store.is_growing else part.store.unknown_letters,
            }
            for part in self.parts
        ]
        facts = {"fingerprint": self.fingerprint, "split": self.split_fingerprint}
        return facts | (parts[0] if len(parts) == 1 else {"mixture": parts})


def _distinct(store: TokenStore, records: NDArray[np.int64]) -> int | None:
    """Number of distinct sequences among some records; None if there are more than are sorted in seconds."""
    return len(np.unique(store.digests[records])) if len(records) <= _MOST_COUNTED else None


def _split_in_words(part: Corpus) -> str:
    if not len(part.split.validation):
        return "nothing is held out: scores are of training proteins"
    if part.clusters is None or part.clusters.folder is None:
        return "by equal sequences only: relatives of a validation protein may train"
    return f"by {part.clusters.description}"


def _some_training(part: Corpus) -> NDArray[np.int64]:
    """Training records of a corpus, spread over it, at most `_MOST_SCORED`, int64, rising."""
    records = part.store.wait(_MOST_SCORED)
    spread = np.unique(np.linspace(0, records - 1, min(records, _MOST_SCORED)).astype(np.int64))
    return spread[part.split.is_training(spread)]


def _hash(texts: Sequence[str]) -> str:
    return new_hash("\n".join(texts).encode()).hexdigest()
