r"""A child process of low priority for long computations: the broker's side of the pipe.

A call starts the process if it is not running. `LoopTasks` ends it after some time without a call. The child exits when
the pipe is closed, so it never runs longer than the broker, even if the broker is killed. Frames in both directions
consist of kind (1 byte), length (uint32) and content.

    broker -> child   C  MODULE:FUNCTION \n request
    child -> broker   R  one result       D  done       F  one line: the reason of the failure
"""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import IO

from tidelog.runtime.forks import drop_when_forked
from tidelog.runtime.interfaces import ChildWork, WorkEnded

FRAME = Struct(">cI")
"""Head of a frame: its kind, which is one of the next four constants, and the length of its content."""
CALL, RESULT, DONE, FAILED = b"C", b"R", b"D", b"F"
REQUEST_BYTES_MAX = 64 << 20
RESULT_BYTES_MAX = 1 << 20
LANE = "child-process"
"""The lane of all calls that wait for the child process, so that they run one at a time; see `Tasks.run_blocking`."""
END_S = 5.0
"""Time, in seconds, after which the child is killed if it has not exited by itself."""


class ChildProcess:
    """The child process. `kill` is thread-safe. `call` and `end` block, so both run in LANE. After the last call, `end`
    may also run on another thread.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._current_token: object | None = None
        """The token of the running call, so that `kill` ends only this call; None between two calls."""
        self.calls = 0
        """Number of calls that have begun."""
        drop_when_forked(self)

    def call(self, token: object, work: ChildWork, request: bytes, report: Callable[[bytes], None]) -> None:
        """Run `work` in the child and pass each of its results to `report`. Raises WorkEnded."""
        self.calls += 1
        self._current_token = token
        try:
            self._exchange(work, request, report)
        except OSError as error:
            raise WorkEnded(f"{self._how_it_ended()} ({error})") from error
        finally:
            self._current_token = None

    def _exchange(self, work: ChildWork, request: bytes, report: Callable[[bytes], None]) -> None:
        if len(request) > REQUEST_BYTES_MAX:
            raise WorkEnded(f"a request of {len(request)} bytes is too large, the limit is {REQUEST_BYTES_MAX}")
        requests, results = self._pipes()
        content = f"{work.__module__}:{work.__qualname__}\n".encode() + request
        requests.write(FRAME.pack(CALL, len(content)) + content)
        requests.flush()
        while True:
            header = results.read(FRAME.size)
            if len(header) < FRAME.size:
                raise WorkEnded(self._how_it_ended())
            kind, length = FRAME.unpack(header)
            content = results.read(length) if length <= RESULT_BYTES_MAX else b""
            if len(content) < length or kind not in (RESULT, DONE, FAILED):
                self.end()
                raise WorkEnded("the process sent an invalid frame")
            if kind == DONE:
                return
            if kind == FAILED:
                raise WorkEnded(content.decode(errors="replace"))
            report(content)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None or self._process.poll() is not None:
            self._process = self._start_process()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _start_process(self) -> "subprocess.Popen[bytes]":
        self.end()
        # The child uses the import path of this process. The path may name a checkout, an environment or the directory
        # of an application.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tidelog.runtime.child_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C must reach only the broker, which then ends the child
        )

    def kill(self, token: object) -> None:
        """Kill the process if it is running the call with this token."""
        process = self._process
        if process is not None and self._current_token is token:
            process.kill()

    def end(self) -> None:
        """End the process, even if it is still working on a call, and wait until it has exited. If it does not exit by
        itself within END_S, it is killed.
        """
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # the process may have exited before it has read all bytes
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def drop_in_forked_child(self) -> None:
        """In a process that was forked from the broker process, close its copies of the pipes. Otherwise the child
        process that runs the calls would not end when the broker closes the request pipe.

        The raw pipes are closed, not the buffers. Closing a buffer would flush bytes that the parent is writing, so
        they would be sent twice.
        """
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if isinstance(pipe, io.BufferedWriter | io.BufferedReader):
                    pipe.raw.close()

    def _how_it_ended(self) -> str:
        """Return why the process does not answer, as text. Waits up to END_S for its exit."""
        process = self._process
        if process is None:
            return "the process could not be started"
        try:
            return f"the process ended with status {process.wait(END_S)}"
        except subprocess.TimeoutExpired:
            return "the process does not answer"
