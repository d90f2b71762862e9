"""What the model makes of a few held-out proteins, residue by residue, for a reader to look at.

In: a model, corpora. Out: `Prediction`s. Kept: nothing; which proteins are shown follows from the split alone.

Each residue is hidden once: of seven copies of a protein, copy t hides the residues at the places t, t + 7, t + 14 and
so on. So a seventh is hidden at a time, about the share that training hides, and a few forward passes suffice.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from data.alphabet import IS_TARGET, MASK, TOKENS
from data.batches.collate import FilledBin, fill_bin
from data.batches.contents import Contents
from data.batches.packed import TokenArrays, bins_of
from data.corpus.corpora import Corpora
from data.order.plan import Bin
from data.order.sampler import CORPUS_BITS
from data.settings import DataSettings
from pretrain.evaluate.frozen_set import frozen_set
from pretrain.evaluate.scores import Prediction
from pretrain.evaluate.validation import losses_by_batch
from zymogen.trainer.engine.engine import Engine

TURNS = 7
"""Copies of a protein, each with other residues hidden."""
PROTEINS = 3
"""Most proteins that are shown."""
MOST_TOKENS = 162
"""Most tokens of each; a longer protein is cropped."""


def predict(
    model: nn.Module, corpora: Corpora, settings: DataSettings, engine: Engine, unigram: NDArray[np.float64]
) -> list[Prediction]:
    """Predict every residue of a few held-out proteins; collective.

    Args:
        model: a `MaskedLanguageModel`, as the engine prepared it; left in the mode it was in.
        corpora: the corpora whose validation side is read.
        settings: sizes of crop and bin.
        engine: the engine to whose ranks the bins are dealt.
        unigram: (33,) loss of each token id under residue frequencies.
    """
    most_tokens = min(settings.crop_tokens, settings.bin_tokens, MOST_TOKENS)
    shown = frozen_set(corpora.reader, corpora.validation, most_tokens, PROTEINS)
    documents = Bin(shown.samples, np.zeros_like(shown.samples), shown.starts, shown.lengths)
    tokens = np.split(corpora.reader.tokens(documents), np.cumsum(shown.lengths)[:-1])
    nats = _hidden_in_turn(model, tokens, settings, engine)
    return [
        _prediction(int(sample), int(of), int(start), true, losses, name, unigram)
        for sample, of, start, true, losses, name in zip(
            shown.samples, shown.num_residues, shown.starts, tokens, nats, corpora.names(shown.samples), strict=True
        )
    ]


def _hidden_in_turn(
    model: nn.Module, proteins: Sequence[NDArray[np.uint8]], settings: DataSettings, engine: Engine
) -> list[NDArray[np.float64]]:
    """For each protein, (tokens,) the loss in nats of each token while that is hidden; NaN where it never is."""
    contents = _MaskedCopies(TokenArrays(proteins), settings)
    lengths = np.repeat([len(tokens) for tokens in proteins], TURNS)
    bins = bins_of(np.arange(len(lengths)), np.zeros_like(lengths), lengths, settings)
    rows: list[tuple[int, int, float]] = []
    for bin_, batch, losses in losses_by_batch(model, bins, contents, engine):
        slots = contents.slots(bin_)[batch.targets[0].slots.numpy()].tolist()
        rows += [(copy // TURNS, place, loss) for (copy, place), loss in zip(slots, losses.tolist(), strict=True)]
    nats = [np.full(len(tokens), np.nan) for tokens in proteins]
    for protein, place, loss in (row for part in engine.gather(rows) for row in part):
        nats[protein][place] = loss
    return nats


class _MaskedCopies(Contents):
    """Copies of proteins: copy n is of protein n // TURNS; its residues of turn n % TURNS are hidden: the targets."""

    def fill(self, bin_: Bin) -> FilledBin:
        """The copies of a bin."""
        tokens = self.residues.tokens(bin_._replace(samples=bin_.samples // TURNS))
        copies, places = self.slots(bin_).T
        hidden = IS_TARGET[tokens] & (places % TURNS == copies % TURNS)
        inputs = np.where(hidden, np.uint8(MASK), tokens)
        return fill_bin(bin_, inputs, (np.flatnonzero(hidden).astype(np.int32), tokens[hidden]))

    @staticmethod
    def slots(bin_: Bin) -> NDArray[np.int64]:
        """(slots, 2) the copy of each slot, and the place in that."""
        places = np.concatenate([np.arange(length) for length in bin_.lengths.tolist()])
        return np.stack([np.repeat(bin_.samples, bin_.lengths), places], axis=1)


def _prediction(
    sample: int,
    whole: int,
    start: int,
    tokens: NDArray[np.uint8],
    nats: NDArray[np.float64],
    name: str,
    unigram: NDArray[np.float64],
) -> Prediction:
    """The protein without its begin and end token."""
    inside = slice(1 if start == 0 else 0, len(tokens) - 1 if start + len(tokens) == whole + 2 else len(tokens))
    letters = [text if len(text) == 1 else "X" for text in (TOKENS[token] for token in tokens[inside].tolist())]
    probabilities = [None if np.isnan(loss) else float(np.exp(-loss)) for loss in nats[inside]]
    corpus, record = sample >> CORPUS_BITS, sample & ((1 << CORPUS_BITS) - 1)
    by_frequencies = float(np.exp(-unigram[tokens[~np.isnan(nats)]]).mean()) if np.isfinite(nats).any() else 0.0
    return Prediction(corpus, record, whole, max(start - 1, 0), "".join(letters), probabilities, name, by_frequencies)
