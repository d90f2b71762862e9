"""Compiled kernels: functions with loops over arrays, compiled by numba if it is installed.

In: a module-level function. Out: its compiled form, or None; then the caller computes the same result without it, in
NumPy or byte by byte.
Kept: machine code, in numba's own cache beside the module or in the user's cache folder.

numba is imported when the first kernel is requested, so that importing the data package does not take its time.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

SWITCH = "ZYMOGEN_COMPILED"
"""Set this environment variable to 0 to use no compiled kernels."""


@cache
def compiled(function: Callable[..., Any], *helpers: Callable[..., Any]) -> Callable[..., Any] | None:
    """The compiled form of `function`, which releases the interpreter's lock; None if `available` is false.

    Args:
        function: the kernel. It is compiled again when its own file changes, but not when that of a helper changes.
        helpers: plain functions that it calls, except `trailing_zeros`.
    """
    if not available():
        return None
    import numba

    _register_trailing_zeros()
    for helper in helpers:
        _register(helper)
    kernel: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
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


def available() -> bool:
    """Whether numba is installed and not switched off."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
