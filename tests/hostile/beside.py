"""The well-behaved client in a separate process, while a test attacks its broker."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tidelog.testing import Broker


class WellBehaved:
    """The client process, from its first request to `account`."""

    def __init__(self, broker: Broker, topic: str) -> None:
        script = Path(__file__).with_name("well_behaved.py")
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, str(script), str(broker.port), topic]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]

    def account(self) -> dict[str, float]:
        output, errors = self._process.communicate(timeout=60)
        assert self._process.returncode == 0, errors
        return dict(json.loads(output))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
