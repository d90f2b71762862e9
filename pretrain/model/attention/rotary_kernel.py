"""The rotation on a CPU, in one pass over memory.

In: queries or keys as projected, angles. Out: the same, turned, in the dtype that attention computes in. Kept: a pool
of threads, as many as torch has.

By hand, because torch's operators walk rows of K / 2 = 8 numbers at a time here and take three times as long, 6 % of
a training step of the 8M model. Without numba they do it all the same, equal to rounding.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from data.compiled import compiled


def turned(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, *, back: bool = False) -> Tensor:
    """Turn `x` ``(S, H, K)`` by the angles of its slots, or `back`, into a new contiguous tensor of `dtype`.

    Args:
        x: any floating dtype, on the host.
        cos: ``(S, 1, K / 2)`` float32.
        sin: likewise.
        dtype: float32 or float64.
        back: by the negative of the angles, which takes a gradient back through the rotation.
    """
    sign = np.float32(-1 if back else 1)  # a float64 would make the kernel compute in that
    kernel = compiled(_turn)
    if kernel is None or dtype != torch.float32:
        return _turned_by_operators(x, cos, sin, dtype, float(sign))
    out = torch.empty(x.shape, dtype=dtype)
    # numpy has no bfloat16: what is not float32 becomes it first, and is then turned in its place.
    source = x.detach() if x.dtype == dtype else out.copy_(x)
    arrays = [t.detach().numpy() for t in (source, cos, sin, out)]
    threads, slots = torch.get_num_threads(), len(x)
    if threads == 1 or slots < _FEWEST * threads:
        kernel(*arrays, sign)
        return out
    bounds = [slots * part // threads for part in range(threads + 1)]
    parts = [[a[start:end] for a in arrays] for start, end in pairwise(bounds)]
    list(thread_pool(threads).map(lambda part: kernel(*part, sign), parts))
    return out


_FEWEST = 256
"""Slots of a thread below which handing them out costs more than it saves."""


@lru_cache(maxsize=1)
def thread_pool(threads: int) -> ThreadPoolExecutor:
    """Threads for kernels that work without the interpreter's lock."""
    return ThreadPoolExecutor(threads, "kernels")


os.register_at_fork(after_in_child=thread_pool.cache_clear)  # a child has the pool, and none of its threads


def _turned_by_operators(x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, sign: float) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half].to(dtype), x[..., half:].to(dtype)
    out = torch.empty(x.shape, dtype=dtype)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin.to(dtype), value=-sign)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin.to(dtype), value=sign)
    return out


def _turn(x, cos, sin, out, sign):  # type: ignore[no-untyped-def]
    slots, heads, channels = x.shape
    half = channels // 2
    for slot in range(slots):
        for head in range(heads):
            for pair in range(half):
                c, s = cos[slot, 0, pair], sign * sin[slot, 0, pair]
                first, second = x[slot, head, pair], x[slot, head, pair + half]
                out[slot, head, pair] = first * c - second * s
                out[slot, head, pair + half] = second * c + first * s
