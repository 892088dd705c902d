"""Detect resets of connections whose peer has shut its sending side.

When the peer has shut its sending side, a socket is always readable: a read returns the end of the stream. A reset also
makes a socket readable, so the event loop cannot distinguish the two. If an epoll watches the socket, and no events are
requested, this epoll reports only errors of the socket (a reset is one) and the end of both directions. While there is
such a report, the epoll itself is readable, so the loop can watch the epoll.
"""

import asyncio
import logging
import select
import sys
from collections.abc import Callable

from tidelog.runtime.forks import drop_when_forked

log = logging.getLogger("tidelog.network")

EVENTS_MAX = 64
"""Upper bound on the resets that are reported in one turn of the loop. Further resets are reported in the next turn."""


class Resets:
    """The watched connections of one network. Without epoll, a reset is noticed only by the next write."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._watched: dict[int, Callable[[], object]] = {}
        drop_when_forked(self)

    def watch(self, descriptor: int, on_reset: Callable[[], object]) -> None:
        """Call `on_reset` once when the connection is reset, unless `forget` is called first."""
        if sys.platform != "linux":
            return
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
                self._loop.add_reader(self._epoll.fileno(), self._report_resets)
            self._epoll.register(descriptor, 0)
        except OSError as error:  # for example, no descriptor is free
            log.debug("resets of a connection are not watched error=%s", error)
            return
        self._watched[descriptor] = on_reset

    def forget(self, descriptor: int) -> None:
        """Stop watching the descriptor. This must be called before the descriptor is closed. Nothing happens if it is
        not watched.
        """
        if self._watched.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def drop_in_forked_child(self) -> None:
        """Close the child's copy of the epoll. The loop is not changed, since its selector is shared with the
        parent.
        """
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def _report_resets(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0, EVENTS_MAX):
            on_reset = self._watched.get(descriptor)
            if on_reset is not None:
                self.forget(descriptor)
                on_reset()
