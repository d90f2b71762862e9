"""Compiled kernels: functions with loops over arrays, compiled by numba.

In: a module-level function. Out: its compiled form. Kept: machine code, in NUMBA_CACHE_DIR, beside the module, in
the user's cache folder or in a temporary one (`environment`); none of it where none of these can be written.

numba is imported when the first kernel is requested, so that importing the data package does not take its time. It is
absent only where benchmarks run on a GPU machine that has torch and NumPy alone. There the function itself makes the
same arrays, about a microsecond a token.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def compiled(function: Callable[..., Any], *helpers: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled form of `function`, which releases the interpreter's lock; without numba, `function` as it is.

    Args:
        function: the kernel. It is compiled again when its own file changes, but not when that of a helper changes.
        helpers: plain functions that it calls, except `trailing_zeros`.
    """
    try:
        import numba
    except ImportError:
        return np.errstate(over="ignore")(function)  # NumPy warns where compiled integers wrap around
    _register_trailing_zeros()
    for helper in helpers:
        _register(helper)
    kernel: Callable[..., Any]
    try:
        kernel = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        kernel = numba.njit(nogil=True)(function)
    return kernel


def trailing_zeros(word: np.uint64) -> int:
    """The index of the lowest bit that is set in a word that is not 0; in kernels it is one instruction."""
    return (int(word) & -int(word)).bit_length() - 1


@cache
def _register(helper: Callable[..., Any]) -> None:
    """Let kernels call `helper`."""
    from numba.extending import register_jitable

    register_jitable(helper)


@cache
def _register_trailing_zeros() -> None:
    from numba.cpython.unsafe.numbers import trailing_zeros as count
    from numba.extending import overload

    overload(trailing_zeros)(lambda word: lambda word: count(word))  # type: ignore[call-arg]
