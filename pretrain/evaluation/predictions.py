"""What the model makes of a few held-out proteins, residue by residue, for a reader to look at.

In: a model, corpora. Out: `Prediction`s. Kept: nothing; which proteins are shown follows from the split alone.

Each residue is hidden once: of seven copies of a protein, copy t hides the residues at the places t, t + 7, t + 14 and
so on. So a seventh is hidden at a time, about the share that training hides, and a few forward passes suffice.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data import draw
from data.alphabet import IS_TARGET, MASK, TOKENS
from data.batches.collate import lay_out
from data.batches.filling import FilledBin, filled
from data.corpus.corpora import Corpora
from data.order.packing import pack
from data.order.plan import Bin, crop
from data.order.sampler import CORPUS_BITS
from data.recipe.settings import DataSettings
from pretrain.engine.engine import Engine

TURNS = 7
"""Copies of a protein, each with other residues hidden."""
PROTEINS = 3
"""Most proteins that are shown."""
MOST_TOKENS = 162
"""Most tokens of each; a longer protein is cropped."""
_SEED = 0
"""Seed of what is shown; not the run's seed, so that runs can be compared."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A held-out protein, or a slice of one, as the model predicts it."""

    corpus: int
    """Number of its corpus in the mixture, from 0."""
    record: int
    """Number of the protein in its corpus, from 0."""
    whole: int
    """Residues of the whole protein."""
    first: int
    """Residues of the protein before the slice."""
    residues: str
    """True residues of the slice, one letter each."""
    probabilities: list[float | None]
    """The model's probability of each true residue while that is hidden; None for a letter that is no target."""

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


@torch.no_grad()
def predict(model: nn.Module, corpora: Corpora, settings: DataSettings, engine: Engine) -> list[Prediction]:
    """Predict every residue of a few held-out proteins; collective.

    Args:
        model: a `MaskedLanguageModel`, as the engine prepared it; left in the mode it was in.
        corpora: the corpora whose validation side is read.
        settings: sizes of crop and bin.
        engine: the engine to whose ranks the bins are dealt.
    """
    chosen = corpora.validation
    chosen = chosen[np.argsort(draw.hashes(_SEED, chosen), kind="stable")[:PROTEINS]]
    passes, whole = np.zeros_like(chosen), corpora.shelves.num_residues(chosen)
    starts, lengths = crop(chosen, passes, whole, min(settings.crop_tokens, settings.bin_tokens, MOST_TOKENS), _SEED)
    proteins = Bin(chosen, passes, starts, lengths, 0)
    nats = _hidden_in_turn(model, corpora, proteins, settings, engine)
    tokens = np.split(corpora.shelves.tokens(proteins), np.cumsum(lengths)[:-1])
    return [
        _prediction(int(sample), int(of), int(start), true, losses)
        for sample, of, start, true, losses in zip(chosen, whole, starts, tokens, nats, strict=True)
    ]


def _hidden_in_turn(
    model: nn.Module, corpora: Corpora, proteins: Bin, settings: DataSettings, engine: Engine
) -> list[NDArray[np.float64]]:
    """For each protein, (tokens,) the loss in nats of each token while that is hidden; NaN where it never is."""
    copies = np.repeat(np.arange(len(proteins.samples)), TURNS)
    turns = np.tile(np.arange(TURNS), len(proteins.samples))
    groups = pack(proteins.lengths[copies], settings.bin_tokens, settings.documents_per_bin).bins()
    was_training = model.training
    model.train(False)
    rows: list[tuple[int, int, float]] = []
    # As in `evaluate`: every rank takes as many forward passes, the last one idle if need be.
    for turn in range(0, len(groups), engine.data_world_size):
        engine.stop_together()
        index = turn + engine.data_rank
        members = groups[min(index, len(groups) - 1)]
        content, slots = _filled(corpora, proteins, copies[members], turns[members])
        batch = lay_out([content], settings, [0])
        batch = engine.share(batch if index < len(groups) else batch.idle())
        with engine.autocast():
            losses = model(batch.to(engine.device), each=True).cpu().numpy().astype(np.float64)
        places = slots[batch.targets[0].slots.numpy()].tolist() if index < len(groups) else []
        rows += [(protein, place, loss) for (protein, place), loss in zip(places, losses.tolist(), strict=True)]
    model.train(was_training)
    nats = [np.full(length, np.nan) for length in proteins.lengths.tolist()]
    for protein, place, loss in (row for part in engine.gather(rows) for row in part):
        nats[protein][place] = loss
    return nats


def _filled(
    corpora: Corpora, proteins: Bin, which: NDArray[np.int64], turns: NDArray[np.int64]
) -> tuple[FilledBin, NDArray[np.int64]]:
    """A bin of copies, and (slots, 2) the protein of each of its slots and the place in that."""
    starts, lengths = proteins.starts[which], proteins.lengths[which]
    bin_ = Bin(proteins.samples[which], proteins.passes[which], starts, lengths, 0)
    tokens = corpora.shelves.tokens(bin_)
    places = np.concatenate([np.arange(length) for length in bin_.lengths.tolist()])
    hidden = IS_TARGET[tokens] & (places % TURNS == np.repeat(turns, bin_.lengths))
    inputs = np.where(hidden, np.uint8(MASK), tokens)
    content = filled(bin_, inputs, (np.flatnonzero(hidden).astype(np.int32), tokens[hidden]))
    return content, np.stack([np.repeat(which, bin_.lengths), places], axis=1)


def _prediction(
    sample: int, whole: int, start: int, tokens: NDArray[np.uint8], nats: NDArray[np.float64]
) -> Prediction:
    """The protein without its begin and end token."""
    inside = slice(1 if start == 0 else 0, len(tokens) - 1 if start + len(tokens) == whole + 2 else len(tokens))
    letters = [text if len(text) == 1 else "X" for text in (TOKENS[token] for token in tokens[inside].tolist())]
    probabilities = [None if np.isnan(loss) else float(np.exp(-loss)) for loss in nats[inside]]
    corpus, record = sample >> CORPUS_BITS, sample & ((1 << CORPUS_BITS) - 1)
    return Prediction(corpus, record, whole, max(start - 1, 0), "".join(letters), probabilities)
