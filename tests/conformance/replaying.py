"""A broker that replays a recording. It answers a recorded request with the recorded bytes."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from .exchange import LENGTH, Outcome, Transcript


class Replay:
    """The outcomes of some transcripts. Each of them is used once, for the request to which it belongs."""

    def __init__(self, transcripts: list[Transcript]) -> None:
        self._lock = threading.Lock()
        self._remaining = [o for t in transcripts for o in t.outcomes]

    def answer(self, frame: bytes) -> tuple[str, bytes]:
        """Return the outcome's kind, and the answer with the correlation id of this request.

        Return ("closed", b"") for a request that was not recorded.
        """
        with self._lock:
            for index, outcome in enumerate(self._remaining):
                if _without_correlation(outcome.request) == _without_correlation(frame):
                    del self._remaining[index]
                    return outcome.kind, frame[4:8] + outcome.answer[4:]
        return "closed", b""


def _without_correlation(frame: bytes) -> bytes:
    return frame[:4] + frame[8:]


@contextlib.contextmanager
def serve_recording(transcripts: list[Transcript]) -> Iterator[tuple[str, int]]:
    """Serve the recording on a free port. Yield (host, port)."""
    replay = Replay(transcripts)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=_accept, args=(listener, replay))
        acceptor.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()


def _accept(listener: socket.socket, replay: Replay) -> None:
    threads = []
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=_serve, args=(connection, replay)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(connection: socket.socket, replay: Replay) -> None:
    with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError, struct.error):
        while header := stream.read(LENGTH.size):
            kind, answer = replay.answer(stream.read(LENGTH.unpack(header)[0]))
            if kind == "closed":
                return
            if kind == "answer":
                connection.sendall(LENGTH.pack(len(answer)) + answer)


def change_answer(transcript: Transcript, step: int, change: tuple[bytes, bytes]) -> Transcript:
    """Return the transcript with some bytes of one step's answer changed."""
    outcomes: list[Outcome] = []
    for outcome in transcript.outcomes:
        if outcome.step == step:
            assert outcome.answer.count(change[0]) == 1
            outcome = outcome._replace(answer=outcome.answer.replace(*change))
        outcomes.append(outcome)
    return transcript._replace(outcomes=tuple(outcomes))
