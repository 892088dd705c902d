"""Random values of a type hint, for the codecs that are driven by type hints."""

import collections.abc
import types
from enum import Enum
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=20),
    type(None): st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return st.builds(hint, **{name: values_of(each) for name, each in get_type_hints(hint).items()})
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values_of, arguments))
    items = [values_of(each) for each in arguments if each is not ...]
    if origin is tuple:
        return st.lists(items[0], max_size=3).map(tuple)
    if origin in (list, collections.abc.Sequence):
        return st.lists(items[0], max_size=3)
    if origin in (frozenset, collections.abc.Set):
        return st.frozensets(items[0], max_size=3)
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(items[0], items[1], max_size=3)
    raise AssertionError(f"no values of {hint}")


def with_tuples(value: Any) -> Any:
    """Return the value with tuples in place of lists. Codecs read a sequence as a tuple."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(with_tuples, value))
    if isinstance(value, list | tuple):
        return tuple(map(with_tuples, value))
    if isinstance(value, dict):
        return {key: with_tuples(each) for key, each in value.items()}
    return value
