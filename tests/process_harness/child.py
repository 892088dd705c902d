"""Run `tidelog start` directly, with options that `tidelog.testing.Broker` does not have: a separate mount, limits."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

READY = re.compile(r"Tidelog \S+ listening on 127\.0\.0\.1:(\d+) ")
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def can_mount() -> bool:
    """Return whether a child may mount a tmpfs that only it sees."""
    probe = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


def start(
    data: Path, log: IO[bytes], *flags: str, before: Sequence[str] = (), listen: str = "127.0.0.1:0"
) -> subprocess.Popen[bytes]:
    """Start a broker. `before` is a command that runs its arguments at its end. The broker logs to `log`."""
    command = [sys.executable, "-m", "tidelog", "start", "--listen", listen, "--data", str(data), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    return subprocess.Popen([*before, *command], stdout=subprocess.PIPE, stderr=log, env=environment)


def address_of(broker: subprocess.Popen[bytes]) -> tuple[str, int]:
    assert broker.stdout is not None
    line = broker.stdout.readline().decode()
    found = READY.match(line)
    assert found is not None, f"not ready: {line!r}"
    return "127.0.0.1", int(found[1])


def on_small_disk(directory: Path, size_bytes: int) -> list[str]:
    """Return a command for `before` that mounts a tmpfs of this size at `directory`."""
    script = f'mount -t tmpfs -o size={size_bytes} tmpfs {directory} && exec "$@"'
    return [*NAMESPACE, "sh", "-c", script, "sh"]
