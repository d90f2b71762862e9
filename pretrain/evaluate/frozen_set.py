"""Frozen sets: which proteins, crops and residues are scored, and the hash by which two scores can be compared.

In: a `CorpusReader`, the numbers of those that may be scored. Out: `FrozenSet`. Kept: nothing; crops and targets are
keyed by the number of a protein alone, and depend neither on a model, nor on a run's seed or the size of a bin.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.batches.contents import MaskedContents
from data.batches.masking import BertMask
from data.batches.packed import bins_of, split_by_tokens
from data.batches.settings import MaskSettings
from data.corpus.reader import CorpusReader
from data.order.plan import Bin, crop
from data.order.settings import BinSettings
from data.store.token_store import new_hash
from pretrain.evaluate.scores import CORRUPTIONS
from zymogen import keyed_random

SEED = 0
"""Seed of what is scored; not the run's seed, so that runs can be compared."""
_HASHED_TOKENS, _HASHED_DOCUMENTS = 1 << 20, 1 << 14
"""How much is in memory while a set is hashed."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenSet:
    """The proteins that are scored, each cut to its crop."""

    reader: CorpusReader
    """Residues of the proteins."""
    samples: NDArray[np.int64]
    """(documents,) their numbers in the corpus, rising."""
    starts: NDArray[np.int64]
    """(documents,) first token of each crop; token 0 is the begin token."""
    lengths: NDArray[np.int64]
    """(documents,) tokens of each crop."""

    @property
    def num_residues(self) -> NDArray[np.int64]:
        """(documents,) residues of each whole protein."""
        return self.reader.num_residues(self.samples)

    @property
    def residues_scored(self) -> int:
        """Residues of all crops: their tokens without begin and end tokens."""
        begins = int((self.starts == 0).sum())
        return int(self.lengths.sum()) - begins - int((self.starts + self.lengths == self.num_residues + 2).sum())

    def bins(self, settings: BinSettings) -> list[Bin]:
        """The documents in bins."""
        return bins_of(self.samples, self.starts, self.lengths, settings)

    def contents(self, mask: MaskSettings, settings: BinSettings) -> MaskedContents:
        """What the bins hold under one of `CORRUPTIONS`."""
        return MaskedContents(self.reader, settings, BertMask(mask), SEED)

    def fingerprint(self) -> str:
        """Hash of the proteins' numbers, of their crops with all residues, and of which residues are targets.

        Equal hashes mean that two models were asked for the same residues beside the same others.
        """
        parts = [new_hash() for _ in range(5)]
        tokens_before = 0
        for part in split_by_tokens(self.lengths, _HASHED_TOKENS, _HASHED_DOCUMENTS):
            samples, starts, lengths = self.samples[part], self.starts[part], self.lengths[part]
            documents = Bin(samples, np.zeros_like(samples), starts, lengths)
            tokens = self.reader.tokens(documents)
            _, targets = BertMask(CORRUPTIONS["mask_all"]).corrupt(tokens, documents, SEED)
            slots = targets.astype(np.int64) + tokens_before
            numbers = (each.astype("<i8").tobytes() for each in (samples, starts, lengths, slots))
            for digest, content in zip(parts, (*numbers, tokens.tobytes()), strict=True):
                digest.update(content)
            tokens_before += len(tokens)
        return new_hash("\n".join(digest.hexdigest() for digest in parts).encode()).hexdigest()


def frozen_set(reader: CorpusReader, samples: NDArray[np.int64], crop_tokens: int, max_sequences: int) -> FrozenSet:
    """The set of at most `max_sequences` of some proteins, chosen by hash.

    Args:
        reader: residues of the proteins.
        samples: (n,) numbers of those that may be scored, rising.
        crop_tokens: most tokens of a crop, begin and end token included.
        max_sequences: largest number of proteins that are scored.
    """
    if len(samples) > max_sequences:
        samples = samples[np.sort(np.argsort(keyed_random.hashes(SEED, samples), kind="stable")[:max_sequences])]
    starts, lengths = crop(samples, np.zeros_like(samples), reader.num_residues(samples), crop_tokens, SEED)
    return FrozenSet(reader, samples, starts, lengths)
