"""Kafka's own command-line tools: every command of docs/kafka-tools.md is run.

A command that needs an API which is not served yet has to be refused; as soon as it is served, it has to work.
"""

import json
import re
from pathlib import Path

import pytest

from interop_harness.java_tools import JavaTools, Ran
from interop_harness.kafka_tools import SCENES, Command, bare, missing
from interop_harness.suite import NewTopicNamed, Unique, wait_until

CLIENT = "Java kafka-clients and Kafka's tools"


@pytest.fixture(scope="session")
def broker(java: JavaTools, bootstrap: str) -> str:
    """Its number."""
    found = re.search(r"\(id: (\d+)", java.run("broker-api-versions", "--bootstrap-server", bootstrap).out)
    assert found
    return found[1]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.exercises("admin-topics", "admin-groups")
def test_scene(
    scene: str,
    java: JavaTools,
    bootstrap: str,
    broker: str,
    is_tidelog: bool,
    new_topic: NewTopicNamed,
    unique: Unique,
    tmp_path: Path,
) -> None:
    words = {
        "topic": new_topic(),
        "group": unique("group"),
        "name": unique("tools"),
        "broker": broker,
        "files": str(tmp_path),
    }
    write_files(tmp_path, words["topic"], int(broker))
    for command in SCENES[scene]:
        check(command, java, bootstrap, words, is_tidelog=is_tidelog)


def write_files(directory: Path, topic: str, broker: int) -> None:
    """What the tools read from files."""
    partition = {"topic": topic, "partition": 0}
    (directory / "delete.json").write_text(json.dumps({"version": 1, "partitions": [partition | {"offset": 1}]}))
    (directory / "topics.json").write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    (directory / "move.json").write_text(json.dumps({"version": 1, "partitions": [partition | {"replicas": [broker]}]}))


def check(command: Command, java: JavaTools, bootstrap: str, words: dict[str, str], *, is_tidelog: bool) -> None:
    line = [filled(word, words) for word in command.line.split()]
    address = ["--bootstrap-server", bootstrap]
    arguments = [*line, *address] if bare(command.tool) else [*address, *line]

    def run() -> Ran:
        return java.run(command.tool, *arguments, input=command.input, code=None)

    ran = run()
    said = f"{command.tool} {' '.join(line)}: {ran.code}\n{ran.out[-2000:]}\n{ran.err[-2000:]}"
    if is_tidelog and missing(command):
        assert re.search(command.refusal, ran.out + ran.err), said
        assert ran.code == command.refusal_code, said
    elif is_tidelog and command.otherwise:
        assert re.search(command.otherwise, ran.out + ran.err), said
        assert ran.code == command.refusal_code, said
    elif command.settles:
        shows = filled(command.shows, words)
        wait_until(lambda: re.search(shows, (again := run()).out + again.err) is not None, f"{shows!r} of {said}")
    else:
        assert re.search(filled(command.shows, words), ran.out + ran.err), said
        assert ran.code == command.code, said


def filled(text: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text
