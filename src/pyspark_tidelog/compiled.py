"""Numba, where it is installed: functions over arrays become machine code, kept in a cache between processes."""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

logger = logging.getLogger("tidelog.spark")

F = TypeVar("F", bound=Callable[..., object])

AVAILABLE = find_spec("numba") is not None
"""False on a Python that is newer than numba: the numpy path serves until then."""

_numba: Any = import_module("numba") if AVAILABLE else None


def compiled(function: F) -> F:
    """Compile at the first call with a given set of argument types; returned as it is where numba is missing.

    The machine code is cached beside the module, or in the user's cache directory where that cannot be written; where
    neither can, it is compiled anew in each process (2 to 3 s).
    """
    if not AVAILABLE:
        return function
    try:
        return cast(F, _numba.njit(function, cache=True, nogil=True))
    except RuntimeError as error:  # no directory for the cache
        logger.warning("numba keeps no cache of compiled code: %s", error)
        return cast(F, _numba.njit(function, nogil=True))


def called(function: F) -> F:
    """Compile for compiled callers, which do not take it in: for what is rare and large. Quicker to compile."""
    return cast(F, _numba.njit(function)) if AVAILABLE else function


def inlined(function: F) -> F:
    """Compile into its callers; returned as it is where numba is missing."""
    return cast(F, _numba.njit(function, inline="always")) if AVAILABLE else function
