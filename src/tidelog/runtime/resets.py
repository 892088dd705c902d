"""Tells of resets on connections whose other side has shut its sending side.

The loop can only be asked whether such a socket is readable, which it is for ever after the end of its input. An epoll
that asks for nothing reports errors alone, and is itself readable when it has one to report.
"""

import asyncio
import logging
import select
import sys
from collections.abc import Callable

from tidelog.runtime.forks import drop_when_forked

log = logging.getLogger("tidelog.network")

EVENTS_MAX = 64
"""Of one turn of the loop; the others are reported in the next one."""


class Resets:
    """The watched connections of one network. Where there is no epoll, a reset is noticed by the next write."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._watched: dict[int, Callable[[], object]] = {}
        drop_when_forked(self)

    def watch(self, descriptor: int, was_reset: Callable[[], object]) -> None:
        """Call `was_reset` once when the connection is broken, unless it is forgotten before."""
        if sys.platform != "linux":
            return
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._loop.add_reader(self._epoll.fileno(), self._report)
            self._epoll.register(descriptor, 0)
        except OSError as error:  # no free descriptor, or no memory
            log.debug("a reset will be noticed by the next write only error=%s", error)
            return
        self._watched[descriptor] = was_reset

    def forget(self, descriptor: int) -> None:
        """To be called before the descriptor is closed. Does nothing for one that is not watched."""
        if self._watched.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def drop_in_forked_child(self) -> None:
        """Close the child's copy of the epoll. The loop is left alone: its selector is the parent's as well."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def _report(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0, EVENTS_MAX):
            was_reset = self._watched.get(descriptor)
            if was_reset is not None:
                self.forget(descriptor)
                was_reset()
