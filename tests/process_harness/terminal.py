"""Commands at a terminal of a given size."""

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
        """Wait until this has been printed, and forget what came before its end; what matched, without colours."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            plain = ESCAPES.sub(b"", self._printed)
            if found := re.search(pattern.encode(), plain):
                self._printed = plain[found.end() :]
                return found[0].decode()
            ready, _, _ = select.select([self.leader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{pattern!r} did not come, but\n{plain.decode()}"
            self._printed += os.read(self.leader, 65536)

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; its exit code, and what it printed besides ^C since the last `expect`."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            ready, _, _ = select.select([self.leader], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"it has not ended, but\n{ESCAPES.sub(b'', self._printed).decode()}"
            try:
                part = os.read(self.leader, 65536)
            except OSError:  # no process has the terminal any more
                break
            if not part:
                break
            self._printed += part
        return self.process.wait(LIMIT_S), ESCAPES.sub(b"", self._printed).decode()


def _heed_interrupts() -> None:
    """Whoever runs the tests in the background may have them ignore Ctrl-C, and so their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def on_a_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, columns: int = 120, lines: int = 40
) -> Iterator[Terminal]:
    """Runs it for the block; killed at its end, if it has not ended."""
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
            preexec_fn=_heed_interrupts,
        )
    finally:
        os.close(follower)
    try:
        yield Terminal(process, leader)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
