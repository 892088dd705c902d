"""Run commands of `tidelog` in this process, on streams of any encoding. Run brokers whose answers the test decides."""

import io
import json
import socket
import ssl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from tidelog.cli.main import main
from tidelog.client.connection import decoder
from tidelog.wire.apis import APIS
from tidelog.wire.encoding import build_encoders
from tidelog.wire.message import Message
from tidelog.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from wire_harness import decode_request_header, encode_response_header

ENCODINGS = ("utf-8", "ascii", "latin-1")


class Ran(NamedTuple):
    code: int
    out: bytes
    err: bytes
    encoding: str

    @property
    def text(self) -> str:
        """Return the text as a program reads it in the stream's encoding. Fails if the bytes are invalid in that
        encoding.
        """
        return self.out.decode(self.encoding)

    @property
    def errors(self) -> str:
        return self.err.decode(self.encoding)

    def json(self) -> Any:
        return json.loads(self.text)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


def tidelog(*arguments: str, encoding: str = "utf-8", stdin: bytes = b"", code: int | None = 0) -> Ran:
    """Run a command with stdout and stderr of this encoding. They raise for unencodable text, as Python's own
    streams do.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding=encoding)
        sys.stdout = open(out.fileno(), "w", encoding=encoding, errors="strict", closefd=False)  # noqa: SIM115
        sys.stderr = open(err.fileno(), "w", encoding=encoding, errors="strict", closefd=False)  # noqa: SIM115
        try:
            exit_code = main(arguments)
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.close()
            sys.stdin, sys.stdout, sys.stderr = before
        for file in (out, err):
            file.seek(0)
        ran = Ran(exit_code, out.read(), err.read(), encoding)
    assert b"Traceback" not in ran.err
    assert code is None or ran.code == code, (arguments, ran)
    return ran


Answer = Callable[[Any], Message | None]
"""A function that returns the answer to a request, or None to close the connection. Lone surrogates in strings are sent
as the bytes that they represent."""


class AnsweringBroker:
    """A broker that answers each API with a function of the request. It offers only ApiVersions and these APIs."""

    def __init__(
        self, answers: Mapping[str, Answer], versions: Mapping[str, int], tls: ssl.SSLContext | None = None
    ) -> None:
        """`versions` has the newest version that is offered of an API. By default that is the newest that exists."""
        self._tls = tls
        self.answers = dict(answers)
        self.asked: list[Message] = []
        self._versions = dict(versions)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self.bootstrap = f"{self.host}:{self.port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            if self._tls is not None:
                try:
                    accepted = self._tls.wrap_socket(accepted, server_side=True)
                except OSError:
                    continue  # the client does not trust this broker's certificate
            self._sockets.append(accepted)
            thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream, suppress(OSError):
            while len(size := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(size, "big"))
                answer = self._answer(frame)
                if answer is None:
                    return
                peer.sendall(len(answer).to_bytes(4, "big") + answer)

    def _answer(self, frame: bytes) -> bytes | None:
        header, position = decode_request_header(frame, 0)
        if header.api_key == ApiVersionsRequest.api_key:
            return _encode(self._offer(), header.api_version, header.correlation_id)
        api = APIS[header.api_key]
        request, _ = decoder(_class(header.api_key, "Request"), header.api_version)(frame, position)
        self.asked.append(request)
        answer = self.answers[api.name](request)
        return None if answer is None else _encode(answer, header.api_version, header.correlation_id)

    def _offer(self) -> ApiVersionsResponse:
        keys = {api.name: key for key, api in APIS.items()}
        offered = [ApiVersion(ApiVersionsRequest.api_key, 0, ApiVersionsRequest.max_version)]
        for name in self.answers:
            newest = self._versions.get(name, _class(keys[name], "Request").max_version)
            offered.append(ApiVersion(keys[name], 0, newest))
        return ApiVersionsResponse(api_keys=offered)


@contextmanager
def answering(
    answers: Mapping[str, Answer], versions: Mapping[str, int] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[AnsweringBroker]:
    broker = AnsweringBroker(answers, versions or {}, tls)
    try:
        yield broker
    finally:
        broker.close()


def _class(api_key: int, ending: str) -> type[Message]:
    from importlib import import_module

    api = APIS[api_key]
    message_class: type[Message] = getattr(import_module(f"tidelog.wire.messages.{api.module}"), f"{api.name}{ending}")
    return message_class


def _encode(answer: Message, version: int, correlation_id: int) -> bytes:
    encode, _ = build_encoders(type(answer), version, any_text=True)
    return encode_response_header(answer.api_key, version, correlation_id) + encode(answer)
