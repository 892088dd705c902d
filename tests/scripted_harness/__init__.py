"""A broker that a test scripts: it answers ApiVersions by itself, and every other request by a function of the test."""

from collections import deque
from collections.abc import Callable, Iterable

from tidelog.client.connection import response_class
from tidelog.runtime.interfaces import Listener, Runtime, Stream
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from wire_harness import RequestHeader, decode_request_header, encode_response


class ScriptedConnection:
    """One connection to a scripted broker."""

    def __init__(self, broker: "ScriptedBroker") -> None:
        self.stream: Stream
        self.open = False
        self._broker = broker
        self._data = bytearray()
        self._frames: deque[bytes] = deque()
        self._unanswered = 0
        self._buffer = memoryview(bytearray(10_000))

    def connected(self, stream: Stream) -> None:
        self.stream = stream
        self.open = True
        self._broker.connections.append(self)

    def get_buffer(self) -> memoryview:
        return self._buffer

    def received(self, count: int) -> None:
        self._data += self._buffer[:count]
        while len(self._data) >= 4 and len(self._data) >= (end := 4 + int.from_bytes(self._data[:4], "big")):
            frame = bytes(self._data[4:end])
            del self._data[:end]
            self._frames.append(frame)
        self.process_frames()

    def process_frames(self) -> None:
        """Process the requests; with `in_order`, each one only when the request before it has its response."""
        while self._frames and self.open and not (self._broker.in_order and self._unanswered):
            self._unanswered += 1
            self._process(self._frames.popleft())

    def _process(self, frame: bytes) -> None:
        header, position = decode_request_header(frame, 0)
        broker = self._broker
        if header.api_key == ApiVersionsRequest.api_key:
            broker.greetings += 1
            if broker.greets:
                self.send(header, ApiVersionsResponse(error_code=broker.greeting_error, api_keys=broker.ranges))
            return
        request, _ = broker.requests_by_key[header.api_key].decode(frame, position, header.api_version)
        broker.requests.append(request)
        response = broker.answer(Asked(self, header, request))
        if response is not None:
            self.send(header, response)

    def send(self, header: RequestHeader, response: Message) -> None:
        assert type(response) is response_class(header.api_key)
        self.stream.write(encode_response(response, header.api_version, header.correlation_id))
        self._unanswered -= 1

    def drained(self) -> None:
        pass

    def closed(self, error: OSError | None) -> None:
        self.open = False


class Asked:
    """A request that a scripted broker received."""

    def __init__(self, connection: ScriptedConnection, header: RequestHeader, request: Message) -> None:
        self.connection = connection
        self.header = header
        self.request = request

    def answer(self, response: Message) -> None:
        self.connection.send(self.header, response)
        self.connection.process_frames()


class ScriptedBroker:
    """`answer` returns the response to a request, or None if the test answers later or never."""

    def __init__(self, answer: Callable[[Asked], Message | None], requests: Iterable[type[Message]]) -> None:
        self.answer = answer
        self.greets = True
        """Whether requests for the broker's versions are answered."""
        self.greeting_error = 0
        self.in_order = False
        """Whether a request waits until the request before it on the same connection is answered, as at a broker."""
        self.greetings = 0
        self.requests: list[Message] = []
        self.connections: list[ScriptedConnection] = []
        self.requests_by_key = {request.api_key: request for request in requests}
        self.ranges = [ApiVersion(api_key=key, min_version=0, max_version=99) for key in self.requests_by_key]
        self._listener: Listener | None = None

    async def listen(self, runtime: Runtime, host: str, port: int) -> int:
        """Listen for connections, and return the port."""
        self._listener = (await runtime.network.bind(host, port)).listen(lambda: ScriptedConnection(self))
        return self._listener.port

    def stop(self) -> None:
        """Refuse new connections. Open connections stay open."""
        assert self._listener is not None
        self._listener.close()

    def cut(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            if connection.open:
                connection.stream.abort()
