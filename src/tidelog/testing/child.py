"""A broker in a child process, which ends when this process ends."""

import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import tidelog
from tidelog.runtime.forks import drop_when_forked
from tidelog.testing.failure import BrokerFailedError

START_S = 60.0
STOP_S = 60.0
"""Time limits for a start and a stop, in seconds. They are long enough for a machine under load; a start usually
takes a fraction of a second."""

ADDRESS = " listening on "
"""The text before the address in the line that the broker prints on stdout."""


class BrokerProcess:
    """A broker in a child process. The constructor starts it, and returns when the broker has printed its address.

    Raises BrokerFailedError with the broker's error line.
    """

    def __init__(self, host: str, port: int, data: Path, settings: Mapping[str, str]) -> None:
        # This process has the writing end of the pipe and never writes. When this process ends, for any reason, the
        # broker reads end of file, and ends too.
        reading_end, self._writing_end = os.pipe()
        self._log = tempfile.TemporaryFile(prefix="tidelog-log-")  # noqa: SIM115 - closed by _release
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        arguments = ["--listen", address, "--data", str(data), "--parent-pipe", str(reading_end)]
        for name, value in settings.items():
            arguments += ["--set", f"{name}={value}"]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidelog", "start", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                pass_fds=[reading_end],
                env=child_environment(os.environ),
                process_group=0,  # a terminal's Ctrl-C reaches only this process, which then stops the broker
            )
        except BaseException:
            os.close(self._writing_end)
            self._log.close()
            raise
        finally:
            os.close(reading_end)
        self.pid = self._process.pid
        drop_when_forked(self)
        try:
            self.host, self.port = self._read_address()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        try:
            ended_by_itself = self._process.poll() is not None
            if not ended_by_itself:
                self._process.terminate()
                try:
                    self._process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            if ended_by_itself or self._process.returncode != 0:
                how = "ended by itself" if ended_by_itself else "did not stop cleanly"
                raise BrokerFailedError(f"the broker {how} (exit code {self._process.returncode}): {self._last_line()}")
        finally:
            self._release()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._release()

    def log(self) -> str:
        # The broker writes at the position of the shared file description. pread does not move this position.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def drop_in_forked_child(self) -> None:
        """Close the copy of the writing end in a forked child. Otherwise the broker would run until that child ends."""
        os.close(self._writing_end)

    def _read_address(self) -> tuple[str, int]:
        line = self._read_line()
        if ADDRESS not in line:
            self._process.kill()
            self._process.wait()
            raise BrokerFailedError(self._last_line() or f"the broker ended with exit code {self._process.returncode}")
        host, _, port = line.partition(ADDRESS)[2].split(" ", 1)[0].rpartition(":")
        return host.strip("[]"), int(port)

    def _read_line(self) -> str:
        """Return the only line that the broker prints on stdout, or "" if the broker ended without printing one.

        Raises BrokerFailedError if the broker has printed no line after START_S seconds.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout
        deadline = time.monotonic() + START_S
        line = b""
        with selectors.DefaultSelector() as selector, pipe:
            selector.register(pipe, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise BrokerFailedError(f"the broker was not ready after {START_S:.0f} s: {self._last_line()}")
                part = os.read(pipe.fileno(), 4096)
                if not part:
                    break
                line += part
        return line.decode(errors="replace")

    def _last_line(self) -> str:
        lines = self.log().splitlines()
        return lines[-1].removeprefix("Error: ") if lines else ""

    def _release(self) -> None:
        os.close(self._writing_end)
        self._log.close()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the TIDELOG_ variables, which may be broker settings.

    If this package is not installed, the directory that contains it is added to PYTHONPATH, so that the child process
    finds it.
    """
    packages = str(Path(tidelog.__file__).parents[1])
    variables = {name: value for name, value in environment.items() if not name.startswith("TIDELOG_")}
    if "site-packages" not in packages:
        path = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{path}{os.pathsep}{packages}" if path else packages
    return variables
