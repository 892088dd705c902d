"""Close a broker's descriptors in processes that are forked from the broker's process.

A broker may run in a thread of any program, and programs fork (multiprocessing, gunicorn). The child inherits every
open descriptor and none of the threads. If it kept the sockets, the port would stay in use and clients would wait
for responses after the broker has stopped. If it kept the files, deleted segments would still occupy the disk. If it
kept a pipe that another process reads to detect the broker's end, that process would never end.
"""

import os
from typing import Protocol
from weakref import WeakSet


class InheritedResource(Protocol):
    """A resource that a forked child inherits and must not use."""

    def drop_in_forked_child(self) -> None:
        """Close the child's copies of the descriptors. The parent's descriptors must not be affected.

        Called only in the child, where no other thread runs. Locks must not be acquired: a thread of the parent may
        hold them.
        """


_registered: WeakSet[InheritedResource] = WeakSet()


def drop_when_forked(resource: InheritedResource) -> None:
    """Call `resource.drop_in_forked_child` in every process that is forked from this one from now on."""
    _registered.add(resource)


def _drop_all() -> None:
    resources = list(_registered)
    _registered.clear()
    for resource in resources:
        resource.drop_in_forked_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)
