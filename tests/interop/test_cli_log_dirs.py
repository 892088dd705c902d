"""`tidelog log dirs` with a live broker, Tidelog or Apache Kafka, and Kafka's own tool with either."""

import json
import os
import subprocess
import sys
from typing import Any

from interop_harness.java_tools import JavaTools
from interop_harness.suite import NewTopicNamed, Unique

LIMIT_S = 60


def tidelog(bootstrap: str, *arguments: object, code: int = 0) -> str:
    """What the command prints; an error's line when `code` is not 0."""
    command = [sys.executable, "-m", "tidelog", *map(str, arguments)]
    environment = os.environ | {"TIDELOG_BOOTSTRAP": bootstrap, "COLUMNS": "200"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stderr if code else ran.stdout


def test_directories_and_a_move_to_where_it_lies(bootstrap: str, new_topic: NewTopicNamed) -> None:
    topic = new_topic(partitions=2)
    [directory] = json.loads(tidelog(bootstrap, "log", "dirs", "--topic", topic, "--json"))
    assert (directory["error"], directory["cordoned"]) == ("", False)
    assert 0 < directory["usable_bytes"] < directory["total_bytes"]
    assert directory["replicas"] == [
        {"topic": topic, "partition": number, "bytes": 0, "offset_lag": 0, "future": False} for number in (0, 1)
    ]
    path = directory["path"]
    assert tidelog(bootstrap, "log", "dirs", "--move", f"{topic}-1={path}", "--wait") == f"Moved {topic}-1 to {path}.\n"
    refused = tidelog(bootstrap, "log", "dirs", "--move", f"{topic}-1=/no/such", code=1)
    assert (
        f"/no/such is not a data directory of broker {directory['broker']}; its data directories are {path}" in refused
    )


def test_kafkas_log_dirs_tool(java: JavaTools, bootstrap: str, new_topic: NewTopicNamed, unique: Unique) -> None:
    del unique
    topic = new_topic(partitions=3)
    ran = java.run("log-dirs", "--bootstrap-server", bootstrap, "--describe", "--topic-list", topic)
    document: dict[str, Any] = json.loads(ran.out.splitlines()[-1])
    [broker] = document["brokers"]
    [directory] = broker["logDirs"]
    assert directory["error"] is None
    partitions = sorted(directory["partitions"], key=lambda partition: partition["partition"])
    assert partitions == [
        {"partition": f"{topic}-{number}", "size": 0, "offsetLag": 0, "isFuture": False} for number in range(3)
    ]
