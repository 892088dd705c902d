"""A connection to one broker over the network of any runtime. The connection is not restored after a failure; a
`Channel` opens a new one.
"""

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from tidelog.client.connection import NEWEST, ClientConnection
from tidelog.client.errors import BrokenProtocol
from tidelog.client.frame_reader import FrameReader
from tidelog.wire.message import Message
from tidelog.wire.primitives import Buffer

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Piece, Runtime, Stream

M = TypeVar("M", bound=Message)

logger = logging.getLogger("tidelog.channel")

FRAME_BYTES_MAX = 512 << 20
"""Upper bound on an accepted response frame, in bytes. A peer that states a larger size does not speak Kafka's
protocol."""


class AsyncLink:
    """One connection to one broker. `connect` opens it and requests the broker's versions (the greeting).

    Several requests may wait for their responses at the same time. This class never sends a request again. The
    caller handles the error codes in the responses.
    """

    def __init__(
        self, runtime: "Runtime", client_id: str = "tidelog", *, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self.open = False
        self.closed_by: OSError | BrokenProtocol | None = None
        """The error that ended the connection; None if the connection is open, or if one side closed it without an
        error."""
        self.on_closed: Callable[[AsyncLink], None] | None = None
        """Called once, when the connection has ended."""
        self._runtime = runtime
        self._connection = ClientConnection(client_id)
        self._stream: Stream
        self._frames = FrameReader(frame_bytes_max)
        self._is_greeting = False
        self._pending_responses: deque[asyncio.Future[Any]] = deque()

    @classmethod
    async def connect(
        cls,
        runtime: "Runtime",
        host: str,
        port: int,
        client_id: str = "tidelog",
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> Self:
        """Open a connection and request the broker's versions. Raises OSError or BrokenProtocol if the connection
        fails, and ApiError if the broker rejects the first request (ApiVersions).
        """
        link = cls(runtime, client_id, frame_bytes_max=frame_bytes_max)
        await runtime.network.connect(host, port, link)
        try:
            await link._greet()
        except BaseException:
            link.close()
            raise
        return link

    async def _greet(self) -> None:
        connection = self._connection
        self._is_greeting = True
        pieces: list[Piece] | None = connection.begin_greeting()
        while pieces is not None:
            frame = await self._send(pieces)
            pieces = connection.continue_greeting(cast(Buffer, frame))
        self._is_greeting = False

    def close(self) -> None:
        """Close the connection. Requests that wait for their responses fail with OSError."""
        if self.open:
            self.open = False
            self._stream.abort()

    def post(self, request: Message, *, version_max: int = NEWEST) -> "asyncio.Future[Message]":
        """Send a request immediately, and return a future of its response.

        The future fails with OSError if the connection ends before the response, and with BrokenProtocol if the peer
        violates the protocol. `records` fields of the response are views of the received bytes. Raises
        ApiNotSupported. If the connection has already ended, `post` itself raises the OSError or BrokenProtocol.
        """
        if not self.open:
            raise self._connection_error()
        return self._send(self._connection.request(request, version_max))

    async def ask(self, request: Message, response_class: type[M], *, version_max: int = NEWEST) -> M:
        """Send a request and wait for its response, which must be of the class `response_class`. Raises the errors of
        `post` and of its future.
        """
        response = await self.post(request, version_max=version_max)
        assert isinstance(response, response_class)
        return response

    def _send(self, pieces: "list[Piece]") -> "asyncio.Future[Any]":
        response: asyncio.Future[Any] = self._runtime.tasks.future()
        self._pending_responses.append(response)
        self._stream.write(pieces)
        return response

    # Callbacks of the stream

    def connected(self, stream: "Stream") -> None:
        self._stream = stream
        self.open = True

    def get_buffer(self) -> memoryview:
        return self._frames.get_buffer()

    def received(self, count: int) -> None:
        try:
            for frame in self._frames.received(count):
                self._process_frame(frame)
        except BrokenProtocol as error:
            logger.warning(
                "connection closed, the peer violates the protocol peer=%s error=%r", self._stream.peer, error
            )
            self.closed_by = error
            self._stream.abort()

    def drained(self) -> None:
        """Do nothing. The caller of `post` limits the number of requests in progress. So `post` never waits until the
        bytes of earlier requests have been sent.
        """

    def closed(self, error: OSError | None) -> None:
        self.open = False
        self.closed_by = self.closed_by or error
        while self._pending_responses:
            pending = self._pending_responses.popleft()
            if not pending.done():
                pending.set_exception(self._connection_error())
        if self.on_closed is not None:
            self.on_closed(self)

    def _process_frame(self, frame: Buffer) -> None:
        if not self._pending_responses:
            raise BrokenProtocol("the broker sent a response without a request")
        # Decode the response even if the caller no longer waits for it, because the decoder checks the order of the
        # correlation ids.
        response = frame if self._is_greeting else self._connection.answer(frame)
        pending = self._pending_responses.popleft()
        if not pending.done():
            pending.set_result(response)

    def _connection_error(self) -> OSError | BrokenProtocol:
        if isinstance(self.closed_by, BrokenProtocol):
            return BrokenProtocol(str(self.closed_by))
        return ConnectionResetError(
            errno.ECONNRESET, f"the connection has ended: {self.closed_by or 'one side closed it'}"
        )
