"""One session with ZooKeeper: kazoo's client, the translation of its errors, and the length of the session.

kazoo has its own threads, sockets and clock. It retries connections, but its retries of calls are not used, so a call
is sent at most once. The methods of `ZooKeeperSession` block, and may be called on several threads.
"""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tidelog.metadata.store import StoreFailed, StoreUnavailable
from tidelog.model.addresses import host_port_text

logger = logging.getLogger("tidelog.metadata")
kazoo_logger = logging.getLogger("tidelog.metadata.kazoo")
kazoo_logger.setLevel(logging.ERROR)  # at lower levels, kazoo logs each attempt to connect and the session's password

ANSWER_TIMEOUT_S: Final = 5.0
"""Longest time that a call waits for its answer, unless `limit_answers` has set a shorter limit. After this time, the
connection to the server is closed, and kazoo connects to another server. Without this limit, kazoo could take two
thirds of the session's length to notice a hung server."""
CONNECT_WAIT_S: Final = 2.0
"""Longest time that a call waits for a connection before it fails, in seconds."""
FIRST_CONNECT_WAIT_S: Final = 8.0
"""Replaces CONNECT_WAIT_S before the first connection."""


class AnswerLost(Exception):
    """A call was sent and may have been executed, but no answer has arrived."""


class ZooKeeperSession:
    """A connection that kazoo restores after each loss. If the session has expired, kazoo begins a new session."""

    def __init__(self, url: str, servers: list[tuple[str, int]], session_ms: int) -> None:
        """`url` names the store in errors. `session_ms` is the requested length of the session.

        Raises StoreFailed if kazoo is not installed.
        """
        try:
            import kazoo  # noqa: F401 - only whether it exists
        except ImportError:
            raise StoreFailed(f"metadata.store={url} needs kazoo: pip install 'tidelog[zookeeper]'") from None
        self._url = url
        self._servers = servers
        self._session_ms = session_ms
        self._client: Any = None
        self._connected: Any = None
        """An event of kazoo: set while there is a connection."""
        self._was_connected = False
        self._is_closed = False
        self._limits = threading.local()
        """`answer_s`: the limit of `limit_answers` for one thread."""
        self._server: tuple[Any, ...] = ()
        """The server of the last attempt to connect: name, address and port."""
        self._connections = 0
        """Number of connections that were made."""
        self.negotiated_ms = 0
        """The length of the session that the servers have granted; 0 before the first connection."""

    @property
    def session_id(self) -> int:
        client_id = self.client.client_id
        return int(client_id[0]) if client_id is not None else 0

    @property
    def client(self) -> Any:
        """kazoo's client, which is connected. Raises StoreUnavailable, StoreFailed."""
        if self._client is None:
            self._start()
        wait_s = CONNECT_WAIT_S if self._was_connected else FIRST_CONNECT_WAIT_S
        if not self._connected.wait(wait_s):
            servers = ", ".join(f"{host}:{port}" for host, port in self._servers)
            raise StoreUnavailable(f"{self._url} cannot be reached (no connection to {servers} for {wait_s:g} s)")
        return self._client

    def event(self) -> Any:
        """Return a new event for kazoo's threads."""
        return self.client.handler.event_object()

    def answer(self, result: Any) -> Any:
        """Return the answer to a call of one of kazoo's asynchronous methods.

        If the answer does not arrive in time, the connection is closed, so that the next call uses another server.

        Raises AnswerLost; StoreUnavailable if the session has ended (the call was not executed in this case);
        StoreFailed if Tidelog has no permission; and the other errors of ZooKeeper unchanged.
        """
        from kazoo import exceptions
        from kazoo.handlers.threading import KazooTimeoutError

        connections = self._connections
        try:
            return result.get(timeout=min(ANSWER_TIMEOUT_S, getattr(self._limits, "answer_s", ANSWER_TIMEOUT_S)))
        except KazooTimeoutError:
            if connections == self._connections:
                self._leave_server()
            raise AnswerLost(f"{self._url} has not answered") from None
        except (exceptions.ConnectionLoss, exceptions.OperationTimeoutError):
            raise AnswerLost(f"{self._url} has not answered") from None
        except (exceptions.SessionExpiredError, exceptions.ConnectionClosedError) as error:
            raise StoreUnavailable(f"{self._url}: the session has ended ({error!r})") from None
        except (exceptions.AuthFailedError, exceptions.NoAuthError, exceptions.InvalidACLError) as error:
            raise StoreFailed(
                f"{self._url}: no permission ({error!r}): Tidelog does not authenticate itself to ZooKeeper"
            ) from None

    def limit_answers(self, limit_s: float) -> None:
        """Let each later call on this thread wait for its answer for at most `limit_s` seconds."""
        self._limits.answer_s = limit_s

    def _leave_server(self) -> None:
        """Close the connection; kazoo then connects to another server. kazoo has no public API for leaving a server."""
        client = self._client
        stream = client._connection._socket if client is not None else None
        if stream is not None:
            with suppress(OSError):  # kazoo may have closed it already
                stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session: its ephemeral nodes are deleted at once."""
        client, self._client = self._client, None
        self._is_closed = True
        if client is not None:
            from kazoo.exceptions import WriterNotClosedException

            with suppress(WriterNotClosedException):  # kazoo is still connecting to a server that does not answer
                client.stop()
                client.close()

    def _start(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self._url} was closed")
        from kazoo.client import KazooClient

        hosts = ",".join(host_port_text(host, port) for host, port in self._servers)
        client = KazooClient(
            hosts,
            timeout=self._session_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
            logger=kazoo_logger,
        )
        self._connected = client.handler.event_object()
        client.add_listener(self._on_state)
        self._learn_length(client._connection)
        self._try_other_servers_first(client._connection)
        self._client = client
        client.start_async()

    def _learn_length(self, connection: Any) -> None:
        """Store the length of each session that the servers grant. kazoo has no public API that returns this length."""
        connect = connection._connect

        def connect_and_learn(*arguments: Any) -> Any:
            self._server = arguments
            read_timeout_ms, connect_timeout_ms = connect(*arguments)
            self._connections += 1
            self.negotiated_ms = int(read_timeout_ms * 3 / 2)  # kazoo's timeout of reads is two thirds of the session
            return read_timeout_ms, connect_timeout_ms

        connection._connect = connect_and_learn

    def _try_other_servers_first(self, connection: Any) -> None:
        """Let kazoo try all other servers, in random order, before the one that it has tried most recently. An attempt
        to connect to a hung server takes some seconds. kazoo has no public API for this order.
        """
        expand = connection._expand_client_hosts
        connection._expand_client_hosts = lambda: sorted(expand(), key=self._server.__eq__)

    def _on_state(self, state: str) -> None:
        """Note a change of the connection's state. kazoo calls this method on its own thread. If the connection is
        lost, kazoo first lets the requests that wait for an answer fail, and then calls this method.
        """
        if state == "CONNECTED":
            self._connected.set()
            self._was_connected = True
            logger.info("metadata store connected store=%s", self._url)
        else:
            self._connected.clear()
            if not self._is_closed:
                reason = "session expired" if state == "LOST" else "connection lost"
                logger.warning("metadata store disconnected store=%s reason=%s", self._url, reason)


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Raise StoreUnavailable for a lost answer, and StoreFailed for other errors of ZooKeeper."""
    from kazoo.exceptions import KazooException

    try:
        yield
    except AnswerLost as error:
        raise StoreUnavailable(str(error)) from error
    except KazooException as error:
        raise StoreFailed(f"{url}: {error!r}") from error
