"""Numba, where it is installed: functions over arrays become machine code, kept in a cache between processes."""

import logging
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("tidelog.spark")

F = TypeVar("F", bound=Callable[..., object])

try:
    import numba
except ImportError:  # numba comes later than Python's newest release: the numpy path serves until then
    numba = None

AVAILABLE = numba is not None


def compiled(function: F) -> F:
    """Compile at the first call with a given set of argument types; returned as it is where numba is missing.

    The machine code is cached beside the module, or in the user's cache directory where that cannot be written; where
    neither can, it is compiled anew in each process (2 to 3 s).
    """
    if numba is None:
        return function
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError as error:  # no directory for the cache
        logger.warning("numba keeps no cache of compiled code: %s", error)
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


def inlined(function: F) -> F:
    """Compile into its callers; returned as it is where numba is missing."""
    return function if numba is None else numba.njit(function, inline="always")
