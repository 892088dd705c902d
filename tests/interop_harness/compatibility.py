"""Generate the table of docs/compatibility.md from the capabilities that the tests declare
(`@pytest.mark.exercises`).
"""

import ast
import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from interop_harness.target import ROOT, kafka_version

SUITES = ROOT / "tests/interop"
DOCUMENT = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- made by script/compatibility: begin -->", "<!-- end -->"

PYTHON_CLIENTS = {"confluent-kafka": "confluent-kafka", "kafka-python": "kafka-python", "aiokafka": "aiokafka"}
"""Client -> its distribution on PyPI."""
KCAT, JAVA, ALL = "kcat", "Java kafka-clients and Kafka's tools", "every client"
CLIENTS = [*PYTHON_CLIENTS, KCAT, JAVA]

CAPABILITIES = {
    "codecs": "none, gzip, snappy, lz4, zstd: written and read",
    "across": "reads what every other client wrote, to the byte",
    "records": "keys, headers, null keys and null values",
    "empty": "empty topics",
    "big": "messages at the limit, and the error one byte above it",
    "timestamps": "timestamps, offsets for times",
    "acks": "acks 0, 1 and all",
    "idempotent": "idempotent producer",
    "auto-create": "topics created on demand",
    "seek": "seek and replay, into compressed batches too",
    "groups": "groups: members join and leave (eager)",
    "cooperative": "groups: cooperative rebalance",
    "consumer-protocol": "groups: the consumer protocol (KIP-848), and both protocols at once",
    "static": "groups: static members",
    "rolling": "goes on while the brokers of a cluster are restarted and killed, and partitions move",
    "commits": "commits and their metadata",
    "admin-topics": "admin: topics, partitions, settings, offsets, cluster",
    "admin-groups": "admin: groups",
    "files": "dump-log reads our segments, indexes, snapshots, groups and transactions",
    "transactions": "transactions: committed, aborted, fenced",
    "transactional-offsets": "transactions: offsets of a group (consume, transform, produce)",
    "admin-transactions": "admin: transactions",
}


class Capability(NamedTuple):
    client: str
    capability: str


def exercised_capabilities() -> set[Capability]:
    """Return the capabilities of each client that the tests exercise.

    Raises ValueError for a client or a capability that the table does not have.
    """
    pairs = set()
    for path in sorted(SUITES.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        clients = list(_clients(tree))
        for name in _capabilities(tree):
            if not clients or not {*clients} <= {*CLIENTS} or name not in CAPABILITIES:
                raise ValueError(f"{path.name}: {clients} and {name!r} are not in the table")
            pairs |= {Capability(client, name) for client in clients}
    return pairs


def _clients(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CLIENT":
            names = ast.literal_eval(node.value)
            yield from CLIENTS if names == ALL else [names] if isinstance(names, str) else names


def _capabilities(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.exercises":
            for argument in node.args:
                yield ast.literal_eval(argument)


def versions() -> dict[str, str]:
    """Return the installed version of each client; for a missing client, the version in the document."""
    versions_by_client = {client: importlib.metadata.version(name) for client, name in PYTHON_CLIENTS.items()}
    versions_by_client[JAVA] = kafka_version()
    versions_by_client[KCAT] = _kcat_version() or _kcat_version_documented()
    return versions_by_client


def _kcat_version() -> str | None:
    program = shutil.which("kcat")
    if program is None:
        return None
    output = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", output)
    return f"{found[1]} (librdkafka {found[2]})" if found else None


def _kcat_version_documented() -> str:
    row = next((line for line in DOCUMENT.read_text().splitlines() if line.startswith("| version")), "")
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    return cells[1 + CLIENTS.index(KCAT)] if len(cells) > len(CLIENTS) else "unknown"


def table() -> str:
    done, installed = exercised_capabilities(), versions()
    head = ["", *CLIENTS]
    rows = [["version", *(installed[client] for client in CLIENTS)]]
    for name, text in CAPABILITIES.items():
        rows.append([text, *("yes" if Capability(client, name) in done else "" for client in CLIENTS)])
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def document(text: str) -> str:
    """Return `text` with a new table between its marks. Raises ValueError if the marks are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} and {END} in {DOCUMENT.name}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"
