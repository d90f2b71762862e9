"""Proteins for benchmarks of models: the same ones packed into bins, and padded as transformers' users pad.

In: how many, and the longest. Out: documents, which of them make up a round, and either side's batches. Kept: nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.alphabet import CLS, EOS, PAD, STANDARD_IDS
from data.batches.batch import IGNORED, Batch
from data.batches.collate import FilledBin, collate
from data.batches.masking import BertMask
from data.batches.settings import MaskSettings
from data.order.packing import pack
from data.order.plan import SPECIAL_TOKENS, Bin
from data.settings import DataSettings
from zymogen.onednn import ROWS

MEGABATCH = 50
"""Batches that transformers' `LengthGroupedSampler` sorts together."""


class Document(NamedTuple):
    """One protein, masked: 15% of residues are targets, 80/10/10."""

    inputs: NDArray[np.uint8]
    """(tokens,) corrupted ids, <cls> and <eos> included."""
    targets: NDArray[np.int64]
    """(targets,) positions that are predicted, ascending."""
    truths: NDArray[np.uint8]
    """(targets,) their true ids."""

    def __len__(self) -> int:
        return len(self.inputs)


def lengths(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Residues of `count` proteins: log-normal, mean 280, median 203."""
    drawn = np.random.default_rng(seed).lognormal(np.log(203), 0.8, count)
    return np.clip(drawn, 16, 35_000).astype(np.int64)


def draw(num_tokens: NDArray[np.int64], seed: int = 0) -> list[Document]:
    """Random proteins of `num_tokens` each, <cls> and <eos> counted."""
    documents = np.arange(len(num_tokens))
    ends = np.cumsum(num_tokens)
    tokens = STANDARD_IDS[np.random.default_rng(seed).integers(0, len(STANDARD_IDS), int(ends[-1]))].astype(np.uint8)
    tokens[ends - num_tokens], tokens[ends - 1] = CLS, EOS
    whole = Bin(documents, np.zeros_like(documents), np.zeros_like(documents), num_tokens)
    inputs, targets = BertMask(MaskSettings()).corrupt(tokens, whole, seed)
    truths = tokens[targets]
    cuts = np.searchsorted(targets, ends[:-1])
    return [
        Document(i, t.astype(np.int64) - first, true)
        for i, t, true, first in zip(
            np.split(inputs, ends[:-1]),
            np.split(targets, cuts),
            np.split(truths, cuts),
            (ends - num_tokens).tolist(),
            strict=True,
        )
    ]


def batches(batch_sequences: int, crop: int, seed: int, *, grouped: bool) -> list[list[Document]]:
    """A megabatch of log-normal proteins, cut into batches: as it comes, or sorted by length.

    Args:
        batch_sequences: proteins of a batch.
        crop: most tokens of one; longer proteins are cut.
        seed: of lengths, residues and masks; the proteins are the same for either value of `grouped`.
        grouped: batches of similar lengths, as ``train_sampling_strategy = "group_by_length"`` makes them.
    """
    num_tokens = np.minimum(lengths(MEGABATCH * batch_sequences, seed) + SPECIAL_TOKENS, crop)
    documents = draw(num_tokens, seed)
    if grouped:
        documents.sort(key=len, reverse=True)
    return [documents[i : i + batch_sequences] for i in range(0, len(documents), batch_sequences)]


def representative(all_batches: Sequence[Sequence[Document]], count: int, seed: int = 0) -> list[list[Document]]:
    """`count` of the batches that cost, together, what the average batch does.

    What the time of both sides depends on is matched to the mean of all batches: tokens, squared lengths, slots of the
    padded batch, and their squares. Padding makes single batches differ by a factor of two, so that a few taken at
    random would not be comparable.
    """
    terms = np.array([_costs([len(d) for d in batch]) for batch in all_batches])
    rng = np.random.default_rng(seed)
    choices = np.array([rng.permutation(len(terms))[:count] for _ in range(5000)])
    off = ((terms[choices].mean(1) / terms.mean(0) - 1) ** 2).sum(1)
    return [list(all_batches[i]) for i in choices[off.argmin()]]


def _costs(num_tokens: Sequence[int]) -> tuple[int, int, int, int]:
    longest, documents = max(num_tokens), len(num_tokens)
    return sum(num_tokens), sum(n * n for n in num_tokens), documents * longest, documents * longest**2


def packed(documents: Sequence[Document], bin_tokens: int) -> list[Batch]:
    """One batch a bin, all bins of one size: about `bin_tokens`, and hardly more than the documents need.

    A corpus packs to within 0.5% (`benchmarks.data`). A few documents would leave the last bin half empty, which no run
    does, so the size of the bins is fitted to them.
    """
    in_order = sorted(documents, key=len, reverse=True)
    num_tokens = np.array([len(d) for d in in_order])
    wanted = max(1, round(int(num_tokens.sum()) / bin_tokens))
    step = ROWS if bin_tokens >= 8 * ROWS else 16
    slots = step * int(np.ceil(max(num_tokens.sum() / wanted, num_tokens.max()) / step))
    while (groups := pack(num_tokens, slots, max(1, slots // 8))).num_bins > wanted:
        slots += step
    settings = DataSettings(sources=("-",), bin_tokens=slots, crop_tokens=int(num_tokens.max()))
    return [collate([filled([in_order[i] for i in members])], settings, [0]) for members in groups.bins()]


def filled(documents: Sequence[Document]) -> FilledBin:
    """One bin of these documents, in this order."""
    num_tokens = np.array([len(d) for d in documents])
    firsts = np.cumsum(num_tokens) - num_tokens
    targets = np.concatenate([d.targets + first for d, first in zip(documents, firsts, strict=True)]).astype(np.int32)
    return FilledBin(
        num_tokens,
        np.concatenate([d.inputs for d in documents]),
        ((targets, np.concatenate([d.truths for d in documents])),),
        0,
    )


def padded(documents: Sequence[Document]) -> dict[str, Tensor]:
    """What transformers' `DataCollatorForLanguageModeling` returns: ids, mask and labels ``(batch, longest)`` int64."""
    size = len(documents), max(len(d) for d in documents)
    input_ids, labels = torch.full(size, PAD), torch.full(size, IGNORED)
    attention_mask = torch.zeros(size, dtype=torch.int64)
    for row, document in enumerate(documents):
        input_ids[row, : len(document)] = torch.from_numpy(document.inputs)
        attention_mask[row, : len(document)] = 1
        labels[row, torch.from_numpy(document.targets)] = torch.from_numpy(document.truths).long()
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class Work(NamedTuple):
    """What some documents require of a model: the arguments of `pretrain.model.memory`."""

    tokens: int
    squared_lengths: int
    targets: int


def work(documents: Sequence[Document]) -> Work:
    """Real tokens, sum of squared lengths, targets."""
    num_tokens = [len(d) for d in documents]
    return Work(sum(num_tokens), sum(n * n for n in num_tokens), sum(len(d.targets) for d in documents))
