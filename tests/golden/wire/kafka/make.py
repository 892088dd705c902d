"""Writes record_messages.tsv and record_batches.tsv: what Apache Kafka's own classes encode.

    python make.py CLASSPATH    the class path of Kafka's jars and their dependencies; needs Java 17 or newer

Of records of internal topics, three examples for each message and version: every field set, another set, and null
wherever null is allowed. Of record batches, one for each codec.
"""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "property" / "wire"))

import base64  # noqa: E402

from wire_values import KIO_DATA, record_messages, versions_of  # noqa: E402

from tidelog.model.ids import uuid_text  # noqa: E402
from tidelog.wire.decoding import struct_named  # noqa: E402
from tidelog.wire.fields import Field, fields_from_lines  # noqa: E402
from tidelog.wire.message import Struct  # noqa: E402


def example(kind: type[Struct], version: int, source: random.Random, with_nulls: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields_from_lines(kind.FIELDS):
        if version in field.versions:
            name = field.name[0].lower() + field.name[1:]
            if with_nulls and version in field.nullable:
                values[name] = None
            elif field.is_array:
                values[name] = [_value(kind, field, version, source, with_nulls) for _ in range(source.randrange(3))]
            else:
                values[name] = _value(kind, field, version, source, with_nulls)
    return values


def _value(kind: type[Struct], field: Field, version: int, source: random.Random, with_nulls: bool) -> Any:
    if field.is_struct:
        return example(struct_named(kind, field.type), version, source, with_nulls)
    if field.type == "string":
        return "".join(source.choice("abcü-") for _ in range(source.choice([0, 3, 9, 130])))
    if field.type == "bytes":
        return base64.b64encode(source.randbytes(source.choice([0, 5, 200]))).decode()
    if field.type == "uuid":
        return uuid_text(source.randbytes(16))
    if field.type == "bool":
        return source.random() < 0.5
    bits = int(field.type.removeprefix("u").removeprefix("int"))
    return (
        source.randrange(2**bits)
        if field.type.startswith("u")
        else source.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    )


def main() -> None:
    source = random.Random(1)
    lines = []
    for message in record_messages():
        if message.__name__ in KIO_DATA:
            continue
        for version in versions_of(message):
            for with_nulls in (False, False, True):
                values = example(message, version, source, with_nulls)
                lines.append(f"{message.__name__}\t{version}\t{json.dumps(values, ensure_ascii=False)}")
    encoded = run_java("EncodeRecords.java", "\n".join(lines)).split()
    rows = [f"{line}\t{data}\n" for line, data in zip(lines, encoded, strict=True)]
    head = "# Apache Kafka 4.3.1: message, version, values in Kafka's JSON form, bytes. Made by make.py.\n"
    (HERE / "record_messages.tsv").write_text(head + "".join(rows))
    head = "# Apache Kafka 4.3.1: codec, record batch. Made by make.py from EncodeBatches.java.\n"
    (HERE / "record_batches.tsv").write_text(head + run_java("EncodeBatches.java", ""))


def run_java(program: str, text: str) -> str:
    command = ["java", "-cp", sys.argv[1], str(HERE / program)]
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
