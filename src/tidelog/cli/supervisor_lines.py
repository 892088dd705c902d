"""The lines that the supervisor of several brokers prints on stdout, as text or as JSON, and the lines that it reads
from the brokers.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidelog.cli.output import drop_output
from tidelog.model.addresses import host_port_text

logger = logging.getLogger("tidelog.supervisor")

BOLD, GREEN, RESET = "\x1b[1m", "\x1b[32m", "\x1b[0m"


class ServingBroker(NamedTuple):
    """A broker that accepts connections."""

    number: int
    host: str
    port: int
    directories: list[str]
    cluster_id: str
    pid: int

    @property
    def address(self) -> str:
        return host_port_text(self.host, self.port)


def read_serving_line(line: bytes) -> ServingBroker | None:
    """Decode the line that a broker prints when it serves (`serve.ready_json`). Return None for an empty line, which
    means that the process has ended.
    """
    if not line.strip():
        return None
    facts = json.loads(line)
    return ServingBroker(
        facts["broker"], facts["host"], facts["port"], facts["data"], facts["cluster_id"], facts["pid"]
    )


class LineReporter:
    """Prints events on stdout, one line for each, as text or as JSON. The end of a broker is always logged, but it is
    printed only as JSON. If the reader of stdout closes the pipe, the brokers continue.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_ready = False

    def serving(self, broker: ServingBroker) -> None:
        directories = ", ".join(broker.directories)
        self._print(
            f"{bold(f'Broker {broker.number}')} listening on {green(broker.address)} "
            f"(data {directories}, process {broker.pid})",
            {
                "event": "serving",
                "broker": broker.number,
                "host": broker.host,
                "port": broker.port,
                "data": broker.directories,
                "cluster_id": broker.cluster_id,
                "pid": broker.pid,
            },
        )

    def ready(self, brokers: Sequence[ServingBroker]) -> None:
        """Report that every broker has begun to serve. Only the first call prints a line."""
        if self._is_ready:
            return
        self._is_ready = True
        bootstrap = ",".join(broker.address for broker in brokers)
        cluster_id = brokers[0].cluster_id
        count = f"{len(brokers)} broker{'s' * (len(brokers) > 1)}"
        self._print(
            f"{bold('Ready:')} {count}, cluster ID {cluster_id}, bootstrap {green(bootstrap)}",
            {"event": "ready", "brokers": len(brokers), "cluster_id": cluster_id, "bootstrap": bootstrap},
        )

    def ended(self, number: int, pid: int, exit_code: int, pause_s: float) -> None:
        """Report the end of a process that will be started again."""
        how = signal_name(-exit_code) if exit_code < 0 else str(exit_code)
        logger.warning("broker ended node=%d pid=%d exit=%s restart_in_s=%.1f", number, pid, how, pause_s)
        if self._as_json:
            facts = {"event": "ended", "broker": number, "pid": pid, "exit_code": exit_code, "restart_in_s": pause_s}
            self._print("", facts)

    def _print(self, text: str, facts: dict[str, Any]) -> None:
        try:
            print(json.dumps(facts) if self._as_json else text, flush=True)
        except OSError as error:
            drop_output()
            logger.warning("stdout cannot be written reason=%s", error.strerror)


def bold(text: str) -> str:
    return f"{BOLD}{text}{RESET}" if has_colour() else text


def green(text: str) -> str:
    return f"{GREEN}{text}{RESET}" if has_colour() else text


def has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
