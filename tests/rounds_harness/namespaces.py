"""Machines for a cluster on one host: network namespaces joined by a bridge, whose packets can be lost on purpose.

The program runs in namespaces of its own (`enter`), so it changes nothing of the host, it needs no free ports, and the
kernel ends all its processes and removes its interfaces and mounts when it ends, however that happens.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

INSIDE = "TIDELOG_ROUNDS_INSIDE"
"""The variable of the environment that says that the program runs in namespaces of its own; its value is their kind."""
CLIENTS = "clients"
"""The machine on which this program runs, and thus all clients."""
CLIENTS_ADDRESS = "10.77.0.1"
NOBODY = "02:00:00:00:00:01"
"""A hardware address that no interface has. Packets to it are lost without an error, as on a broken link."""
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
KINDS = {"root": NAMESPACES, "user": ("--user", "--map-root-user", *NAMESPACES)}


def enter(module: str, arguments: Sequence[str]) -> str:
    """Start this program again in namespaces of its own. Return the reason if this machine does not allow them.

    Return an empty text if the program runs in its own namespaces already.
    """
    if INSIDE in os.environ:
        return ""
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "ip")):
        return "the machine lacks unshare, nsenter or ip"
    for kind, options in KINDS.items():
        interfaces = "ip link add rounds type bridge && ip link add port0 type veth peer name end0"
        probe = ["unshare", *options, "sh", "-c", interfaces]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[INSIDE] = kind
            sys.stdout.flush()
            os.execvp("unshare", ["unshare", *options, sys.executable, "-m", module, *arguments])
    return "the machine allows no network namespaces: neither as root, nor in a user namespace"


class Network:
    """Machines with addresses of their own. Every machine reaches every other one until a link is cut."""

    def __init__(self, machines: Sequence[str]) -> None:
        self.addresses = {CLIENTS: CLIENTS_ADDRESS}
        self._holders: dict[str, subprocess.Popen[str]] = {}
        """A process for each machine; its namespace exists as long as the process."""
        self._cuts: set[tuple[str, str]] = set()
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "rounds", "type", "bridge")
        _run("ip", "address", "add", f"{CLIENTS_ADDRESS}/24", "dev", "rounds")
        _run("ip", "link", "set", "rounds", "up")
        for number, machine in enumerate(machines):
            self._add(machine, number)

    def _add(self, machine: str, number: int) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        holder.stdout.readline()
        self._holders[machine] = holder
        address = self.addresses[machine] = f"10.77.0.{11 + number}"
        _run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", f"end{number}")
        _run("ip", "link", "set", f"port{number}", "master", "rounds", "up")
        _run("ip", "link", "set", f"end{number}", "netns", str(holder.pid), "name", "eth0")
        _run(*self.before(machine), "ip", "link", "set", "lo", "up")
        _run(*self.before(machine), "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _run(*self.before(machine), "ip", "link", "set", "eth0", "up")

    def before(self, machine: str) -> list[str]:
        """Return the beginning of a command that runs the rest of the command on this machine."""
        return [] if machine == CLIENTS else ["nsenter", f"--net=/proc/{self._holders[machine].pid}/ns/net"]

    def cut(self, source: str, target: str) -> None:
        """Lose all packets from `source` to `target`."""
        self._cuts.add((source, target))
        self._set_neighbour(source, target, "replace", "lladdr", NOBODY, "nud", "permanent")

    def heal(self) -> None:
        """Undo all cuts."""
        for source, target in self._cuts:
            self._set_neighbour(source, target, "del")
        self._cuts.clear()

    def _set_neighbour(self, source: str, target: str, verb: str, *rest: str) -> None:
        device = "rounds" if source == CLIENTS else "eth0"
        _run(*self.before(source), "ip", "neighbour", verb, self.addresses[target], "dev", device, *rest)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip()}")
