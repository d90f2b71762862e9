"""The digest of a tensor, which no sharding changes: those of its pieces add up to that of the whole.

In: elements `[start, stop)` of a tensor, flattened, on any device. Out: two sums modulo 2^64. Kept: nothing.

    first = sum over elements of bits,    second = sum over elements of bits * index    modulo 2^64

`bits` are those of the float32 as a signed integer. Sums have no order, so it does not matter which rank adds which
elements. A change of one element changes `first`. A change of two elements changes one of the sums: where the changes
cancel in `first`, they are d and -d, and `second` changes by d times the distance of the two, which is below 2^64 in a
tensor of fewer than 2^32 elements. Changes of three or more elements are missed if they cancel in both sums. The chance
of that is near 2^-64 for values that are wrong by accident; where signs alone are wrong, it is about 1 over the number
of elements times the number of wrong signs. Against somebody who makes changes on purpose it says nothing: that is what
the SHA-256 of files is for, which no shard of another cut could compute.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zymogen.trainer.checkpoint.canonical import canonical

_CHUNKS = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Elements at a time: on the host so few that they stay in the cache and take one thread, beside those of training."""


@torch.no_grad()
def sums(values: Tensor, start: int = 0) -> Tensor:
    """Both sums of some elements of a tensor, the first of which is number `start`: ``(2,)`` int64 on the device."""
    if values.device.type not in _CHUNKS:  # integers of 64 bits are not exact everywhere
        values = values.cpu()
    flat, size = values.detach().reshape(-1), _CHUNKS[values.device.type]
    places = torch.arange(min(size, len(flat)), device=flat.device)
    total = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for begin in range(0, len(flat), size):
        words = flat[begin : begin + size].float().view(torch.int32).to(torch.int64)
        first = words.sum()
        total[0] += first
        total[1] += (words * places[: len(words)]).sum() + first * (start + begin)
    return total


def hexadecimal(found: Tensor | NDArray[np.int64]) -> str:
    """Both sums, 32 digits."""
    return "".join(f"{int(each) % (1 << 64):016x}" for each in found)


def identity(shapes: Mapping[str, Sequence[int]], digests: Mapping[str, str]) -> str:
    """One hash of named tensors: SHA-256 of their names, shapes and digests as JSON, lower-case hex."""
    return hashlib.sha256(canonical({name: [list(shapes[name]), digests[name]] for name in digests})).hexdigest()


def identity_of(weights: Iterable[tuple[str, Tensor]]) -> str:
    """The identity of whole weights, given one at a time in any order."""
    shapes, digests = dict[str, tuple[int, ...]](), dict[str, str]()
    for name, weight in weights:
        shapes[name], digests[name] = tuple(weight.shape), hexadecimal(sums(weight))
    return identity(shapes, digests)
