"""Compile functions over arrays to machine code with numba, where it is installed, and cache the code between
processes.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

logger = logging.getLogger("tidelog.spark")

F = TypeVar("F", bound=Callable[..., object])

AVAILABLE = find_spec("numba") is not None
"""Whether numba is installed. It is missing on a Python that numba does not support yet; numpy does the work there."""

_numba: Any = import_module("numba") if AVAILABLE else None


def compiled(function: F) -> F:
    """Return `function`, compiled at the first call with each set of argument types; unchanged if numba is missing.

    The machine code is cached beside the module, or in the user's cache directory if the module's cannot be written.
    If neither can be written, each process compiles again (2 to 3 s).
    """
    if not AVAILABLE:
        return function
    try:
        return cast(F, _numba.njit(function, cache=True, nogil=True))
    except RuntimeError as error:  # no directory for the cache can be written
        logger.warning("numba cannot cache compiled code, so that each process compiles again: %s", error)
        return cast(F, _numba.njit(function, nogil=True))


def compiled_callee(function: F) -> F:
    """Compile as a separate function that compiled callers call: for rare and large code, which compiles faster this
    way.
    """
    return cast(F, _numba.njit(function)) if AVAILABLE else function


def inlined(function: F) -> F:
    """Compile `function` into its callers; return it unchanged if numba is missing."""
    return cast(F, _numba.njit(function, inline="always")) if AVAILABLE else function
