"""Compiled kernels: a function of loops over arrays, compiled by numba where numba is there.

In: a module-level function. Out: its compiled form, or None, and then the caller does the same without: in this package
in NumPy or byte by byte, with the same result.
Kept: machine code, in numba's own cache beside the module or in the user's cache folder.

numba is imported when a kernel is first asked for, so that importing the data package costs nothing of it.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

SWITCH = "ZYMOGEN_COMPILED"
"""Set this environment variable to 0 to go without compiled kernels."""


@cache
def compiled(function: Callable[..., Any], *helpers: Callable[..., Any]) -> Callable[..., Any] | None:
    """The compiled form of `function`, without the interpreter's lock; None where numba is absent or switched off.

    Args:
        function: the kernel. Its cache is renewed when its own file changes, and not when that of a helper does.
        helpers: plain functions that it calls, `trailing_zeros` excepted.
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
    """The number of the lowest bit that is set, of a word that is not 0; in kernels one instruction."""
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
    """Whether numba is there and not switched off."""
    if os.environ.get(SWITCH) == "0":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True
