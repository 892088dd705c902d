"""What a process that is forked off a running broker's process must not keep.

A broker may run in a thread of any program, and programs fork (multiprocessing, gunicorn). The child inherits every
open descriptor and none of the threads. If it kept the sockets, the port would stay busy and clients would wait for
answers after the broker has stopped; if it kept the files, deleted segments would stay on the disk; if it kept a pipe
that tells another process of the broker's end, that process would not end.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object that a forked child finds in its memory and has no use for."""

    def drop_in_forked_child(self) -> None:
        """Close the child's copies of the descriptors; the parent's must not notice.

        Called in the child alone, where no other thread runs: locks may be held by threads that are not there any
        more, and must not be taken.
        """


_inherited: WeakSet[Inherited] = WeakSet()


def drop_when_forked(held: Inherited) -> None:
    """Have `held` dropped in every process that this one forks from now on."""
    _inherited.add(held)


def _drop_all() -> None:
    held = list(_inherited)
    _inherited.clear()
    for each in held:
        each.drop_in_forked_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)
