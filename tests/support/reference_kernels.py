"""What the compiled kernels of `data` compute, in a second way: with arrays, slices and bisection.

In: what the kernels are given. Out: the same numbers, more slowly. Kept: nothing.
"""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from data.alphabet import CLS, EOS, IS_TARGET, MASK, PAD, STANDARD_IDS
from data.batches.settings import MaskSettings
from data.corpus.reader import CorpusReader
from data.order.plan import Bin
from zymogen import keyed_random


def gathered(reader: CorpusReader, bin_: Bin) -> NDArray[np.uint8]:
    """(real slots,) true token ids of the documents of a bin, concatenated."""
    proteins = [np.array([CLS, *reader.residues(sample).tolist(), EOS], np.uint8) for sample in bin_.samples.tolist()]
    cuts = zip(proteins, bin_.starts.tolist(), bin_.lengths.tolist(), strict=True)
    return np.concatenate([whole[start : start + length] for whole, start, length in cuts])


def best_fit(
    lengths: NDArray[np.int64], bin_tokens: int, documents_per_bin: int, shortest: int
) -> tuple[NDArray[np.int64], int]:
    """The bin of each document, and how many bins there are."""
    chosen = np.empty(len(lengths), np.int64)
    rooms: list[int] = []  # the different rooms of open bins, sorted: the first that is large enough is the best fit
    open_bins: dict[int, list[int]] = {}
    held: list[int] = []
    for index, length in enumerate(lengths.tolist()):
        at = bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            target = open_bins[room].pop()
            if not open_bins[room]:
                del rooms[at], open_bins[room]
        else:
            room, target = bin_tokens, len(held)
            held.append(0)
        chosen[index] = target
        held[target] += 1
        if room - length >= shortest and held[target] < documents_per_bin:
            if room - length not in open_bins:
                insort(rooms, room - length)
                open_bins[room - length] = []
            open_bins[room - length].append(target)
    return chosen, len(held)


def corrupted(
    tokens: NDArray[np.uint8], bin_: Bin, mask: MaskSettings, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Inputs, (slots,), and the slots of the targets, (targets,), ascending."""
    lengths = bin_.lengths
    keys = np.array(
        [
            [keyed_random.key(seed, use, p) for p in bin_.epochs.tolist()]
            for use in (keyed_random.SELECT, keyed_random.REPLACE)
        ],
        np.uint64,
    )
    select_keys, replace_keys = keyed_random.hashes(keys, bin_.samples)
    firsts = np.cumsum(lengths) - lengths
    residues = np.arange(len(tokens)) - np.repeat(firsts - bin_.starts, lengths) - 1
    drawn = keyed_random.hashes(np.repeat(select_keys, lengths), residues)
    targets = np.flatnonzero(keyed_random.below(drawn, mask.select_prob) & IS_TARGET[tokens])

    inputs = tokens.copy()
    fate = keyed_random.hashes(np.repeat(replace_keys, lengths)[targets], residues[targets])
    masked = keyed_random.below(fate, mask.mask_prob)
    replaced = keyed_random.below(fate, mask.mask_prob + mask.random_prob) & ~masked
    inputs[targets[masked]] = MASK
    # `fate` itself is no longer random here, as it lies in [mask_prob, mask_prob + random_prob), so it is hashed again.
    inputs[targets[replaced]] = STANDARD_IDS[
        keyed_random.integers(keyed_random.hashes(0, fate[replaced]), len(STANDARD_IDS))
    ]
    return inputs, targets.astype(np.int32)


def spread(lengths: NDArray[np.int64], inputs: NDArray[np.uint8], slots: int, first_document: int) -> NDArray[np.int64]:
    """(3, slots) tokens, positions and documents of one bin."""
    flat = np.full((3, slots), PAD, np.int64)
    flat[0, : len(inputs)] = inputs
    every = np.append(lengths, slots - len(inputs))
    flat[1] = np.arange(slots) - np.repeat(np.cumsum(every) - every, every)
    flat[2] = first_document + np.repeat(np.arange(len(every)), every)
    return flat
