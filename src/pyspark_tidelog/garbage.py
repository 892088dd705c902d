"""Make the garbage collections between the tasks of a Spark worker cheap.

After each task, the worker runs a full garbage collection. It examines every object of the imported modules, most of
which belong to numba, pyarrow and pandas. This takes 0.1 s of CPU time, more than a small task itself. `gc.freeze`
exempts the objects that exist at the time of the call.
"""

import gc
from functools import cache
from typing import Literal


def exempt_imported_objects(action: Literal["read", "write"]) -> None:
    """Exempt all existing objects of a Spark worker from later garbage collections. Do nothing in other processes.

    Call this at the end of a task; `action` says what the task did. The first task that reads and the first task that
    writes import modules and load machine code. Therefore only the first call with each `action` has an effect. An
    exempted object is still freed when its reference count becomes 0. But a reference cycle of exempted objects is
    never freed.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _exempt_once(action)


@cache
def _exempt_once(action: str) -> None:
    gc.collect()  # Without this call, unreachable objects would also be exempted, and never freed.
    gc.freeze()
