"""Use numba, if it is installed, to compile functions that work on arrays. The machine code is cached on disk, so that
other processes need not compile again.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

logger = logging.getLogger("tidelog.spark")

F = TypeVar("F", bound=Callable[..., object])

AVAILABLE = find_spec("numba") is not None
"""Whether numba is installed. It is missing if it does not support this version of Python yet. Without it, decoding
uses numpy, and encoding uses plain Python."""

_numba: Any = import_module("numba") if AVAILABLE else None


def compile_function(function: F) -> F:
    """Return a version of `function` that is compiled at the first call with each set of argument types. If numba is
    missing, return `function` itself.

    The machine code is cached beside the module, or in the user's cache directory if the module's directory is not
    writable. If neither directory is writable, each process compiles again (2 to 3 s).
    """
    if not AVAILABLE:
        return function
    try:
        return cast(F, _numba.njit(function, cache=True, nogil=True))
    except RuntimeError as error:  # neither cache directory is writable
        logger.warning("numba cannot cache compiled code, therefore each process compiles again: %s", error)
        return cast(F, _numba.njit(function, nogil=True))


def compile_callee(function: F) -> F:
    """Compile `function` as a separate function, for calls by other compiled functions. If the code of `function` is
    large, compilation takes less time than with inlining. If numba is missing, return `function` itself.
    """
    return cast(F, _numba.njit(function)) if AVAILABLE else function


def compile_inline(function: F) -> F:
    """Inline `function` when its callers are compiled. If numba is missing, return `function` itself."""
    return cast(F, _numba.njit(function, inline="always")) if AVAILABLE else function
