"""Commands that run on a terminal of a given size."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

LIMIT_S = 60

ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Terminal:
    """A command whose stdin, stdout and stderr are one terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", leader: int) -> None:
        self.process = process
        self.leader = leader
        self._printed = b""

    def expect(self, pattern: str) -> str:
        """Wait until the output matches, and drop the output up to the match's end. Return the match, without
        colours.
        """
        deadline = time.monotonic() + LIMIT_S
        while True:
            plain = ESCAPES.sub(b"", self._printed)
            if found := re.search(pattern.encode(), plain):
                self._printed = plain[found.end() :]
                return found[0].decode()
            ready, _, _ = select.select([self.leader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{pattern!r} was not printed, but\n{plain.decode()}"
            self._printed += os.read(self.leader, 65536)

    def end(self) -> tuple[int, str]:
        """Wait for the end. Return the exit code, and the output besides ^C since the last `expect`."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            ready, _, _ = select.select([self.leader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"it has not ended, but\n{ESCAPES.sub(b'', self._printed).decode()}"
            try:
                part = os.read(self.leader, 65536)
            except OSError:  # no process has the terminal open
                break
            if not part:
                break
            self._printed += part
        return self.process.wait(LIMIT_S), ESCAPES.sub(b"", self._printed).decode()


def _restore_interrupts() -> None:
    """Restore the default handling of Ctrl-C in the child: a test run in the background may ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def on_a_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, columns: int = 120, lines: int = 40
) -> Iterator[Terminal]:
    """Run a command for the block. At the block's end it is killed if it still runs."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (lines, columns))
    size = {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm-256color"}
    try:
        process = subprocess.Popen(
            command,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**environment, **size},
            preexec_fn=_restore_interrupts,
        )
    finally:
        os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
