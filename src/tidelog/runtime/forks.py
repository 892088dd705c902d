"""Close a broker's descriptors in processes that are forked from the broker's process.

A broker may run in a thread of any program, and the program may fork (multiprocessing, gunicorn). The child inherits
every open descriptor but none of the threads. Open sockets in the child would have two effects after the broker has
stopped: the port would still be in use, and clients would wait for responses. Because of open files, deleted segments
would still occupy the disk. The broker also starts a process for computations (`ChildProcess`), which exits when its
request pipe is closed. If a forked child kept this pipe open, the process for computations would never exit.
"""

import os
from typing import Protocol
from weakref import WeakSet


class InheritedResource(Protocol):
    """A resource that a forked child inherits and must not use."""

    def drop_in_forked_child(self) -> None:
        """Close the child's copies of the descriptors. The parent's descriptors must not be affected.

        This is called only in the child, where no other thread runs. It must not acquire locks, since a thread of the
        parent may have locked them at the time of the fork.
        """


_registered: WeakSet[InheritedResource] = WeakSet()


def drop_when_forked(resource: InheritedResource) -> None:
    """Call `resource.drop_in_forked_child` in every process that is forked from this process from now on."""
    _registered.add(resource)


def _drop_all() -> None:
    resources = list(_registered)
    _registered.clear()
    for resource in resources:
        resource.drop_in_forked_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)
