"""Generates the table of facts (src/tidelog/wire/schema) from Kafka's message definitions.

The script reads only facts (name, type, versions, tag, nullable, default ...), and omits comments and descriptions.
"""

import argparse
import json
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).parent.parent / "src" / "tidelog" / "wire" / "schema"
JARS = {
    "kafka-clients": "clients",
    "kafka-group-coordinator": "group-coordinator",
    "kafka-transaction-coordinator": "transaction-coordinator",
    "kafka-share-coordinator": "share-coordinator",
    "kafka-raft": "raft",
    "kafka-storage": "storage",
}
"""The artifacts of org.apache.kafka that contain definitions, each with its section of the table."""
FOLDERS = ("common/message/", "message/")
"""The folders of the definitions in a jar; kafka-storage uses the second one."""

HEADER = """\
# Facts of Apache Kafka {version}'s message definitions, made by script/wire-schema: do not edit.
# Message: name, kind, api key or "-", versions, flexible versions, "unstable" if the last version is.
# "struct" names a part that several fields share. Fields: see tidelog/wire/fields.py.
"""

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", help="a Kafka version (mvn downloads its jars), or a directory of jars or JSON files")
    parser.add_argument("--version", help="the Kafka version to name, if the source is a directory")
    parser.add_argument("--output", type=Path, default=SCHEMA)
    options = parser.parse_args()
    folder = Path(options.source)
    if folder.is_dir():
        if not options.version:
            parser.error("a directory needs --version, the Kafka version of its definitions")
        write_table(read_definitions(folder), options.output, options.version)
        return
    with tempfile.TemporaryDirectory() as scratch:
        fetch_jars(options.source, Path(scratch))
        write_table(read_definitions(Path(scratch)), options.output, options.source)


def fetch_jars(version: str, folder: Path) -> None:
    """Copy Kafka's jars of one version into `folder`, with Maven's own client and repository settings."""
    for artifact in JARS:
        coordinates = f"org.apache.kafka:{artifact}:{version}:jar"
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                copy,
                f"-Dartifact={coordinates}",
                f"-DoutputDirectory={folder}",
                "-Dmdep.useBaseVersion",
            ],
            check=True,
        )


def read_definitions(folder: Path) -> dict[str, list[Json]]:
    """Return the definitions of each section, sorted by name. They come from jars, or from JSON files in folders
    with the sections' names.
    """
    sections: dict[str, list[Json]] = {}
    for artifact, section in JARS.items():
        definitions = [parse_definition(text) for text in _texts(folder, artifact, section)]
        if not definitions:
            raise SystemExit(f"{folder}: no definitions of {artifact}")
        sections[section] = sorted(definitions, key=lambda definition: str(definition["name"]))
    return sections


def _texts(folder: Path, artifact: str, section: str) -> Iterator[str]:
    for path in sorted(folder.glob(f"{artifact}-[0-9]*.jar")):
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                if name.startswith(FOLDERS) and name.endswith(".json"):
                    yield jar.read(name).decode()
    for path in sorted((folder / section).glob("**/*.json")):
        yield path.read_text()


def parse_definition(text: str) -> Json:
    """Parse JSON that has lines of // comments."""
    definition: Json = json.loads("\n".join(line for line in text.split("\n") if not line.lstrip().startswith("//")))
    return definition


def write_table(sections: dict[str, list[Json]], folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for section, definitions in sections.items():
        lines = [HEADER.format(version=version)]
        for definition in definitions:
            lines += [*message_lines(definition), ""]
        (folder / f"{section}.txt").write_text("\n".join(lines))


def message_lines(definition: Json) -> list[str]:
    facts = [
        definition["name"],
        definition["type"],
        str(definition.get("apiKey", "-")),
        definition["validVersions"],
        f"flexible={definition.get('flexibleVersions', 'none')}",
    ]
    if definition.get("latestVersionUnstable"):
        facts.append("unstable")
    lines = [" ".join(facts)]
    for shared in definition.get("commonStructs", []):
        lines += [f"  struct {shared['name']}", *field_lines(shared["fields"], 2)]
    return lines + field_lines(definition.get("fields", []), 1)


def field_lines(fields: list[Json], depth: int) -> list[str]:
    lines = []
    for field in fields:
        lines.append("  " * depth + field_line(field))
        lines += field_lines(field.get("fields", []), depth + 1)
    return lines


def field_line(field: Json) -> str:
    tagged = field.get("taggedVersions", "none")
    versions = field.get("versions", tagged)
    facts = [field["name"], field["type"], versions]
    if field.get("nullableVersions", "none") != "none":
        facts.append(f"nullable={field['nullableVersions']}")
    if "tag" in field:
        if tagged != versions:
            raise SystemExit(f"{field['name']}: tagged in {tagged} of versions {versions} is not supported")
        facts.append(f"tag={field['tag']}")
    default = _default_text(field)
    if default:
        facts.append(f"default={default}")
    if field.get("ignorable"):
        facts.append("ignorable")
    if field.get("flexibleVersions") == "none":
        facts.append("rigid")
    return " ".join(facts)


def _default_text(field: Json) -> str:
    """Return the default as text, or "" if it is the default of the type. Numbers are decimal.

    Kafka's generator interprets the string "null" as null. JSON's null means that there is no default, so the
    initial value of the field is an empty array or struct.
    """
    value = field.get("default")
    if value is None:
        return ""
    text = str(value).strip()
    if text == "null":
        return text
    kind = field["type"]
    if kind == "bool":
        return "true" if text.lower() == "true" else ""
    if kind.startswith(("int", "uint")):
        number = int(text, 0)
        return str(number) if number else ""
    if kind == "string":
        return text
    raise SystemExit(f"{field['name']}: default {text!r} of type {kind} is not supported")


if __name__ == "__main__":
    main()
