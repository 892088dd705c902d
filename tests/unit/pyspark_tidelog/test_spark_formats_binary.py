"""Avro and Protobuf values one by one, and schema registries."""

import io
import json
import pickle
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from pyspark_tidelog import http_requests
from pyspark_tidelog.errors import OptionError, SchemaError
from pyspark_tidelog.formats import avro, csv, protobuf
from pyspark_tidelog.formats import json as json_format
from pyspark_tidelog.formats import registry as registry_module
from pyspark_tidelog.formats.arrow_rows import decode_array, refuse_missing_package
from pyspark_tidelog.formats.registry import HttpRegistry, RegistryError, registry_of


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": name, "type": kind} for name, kind in fields]}


OLD = record(("id", "int"))
NEW = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "more", "type": "string", "default": "-"}],
}


def written(schema: Any, row: dict[str, Any], schema_id: int | None = None) -> bytes:
    data = io.BytesIO()
    if schema_id is not None:
        data.write(struct.pack(">bI", 0, schema_id))
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), row)
    return data.getvalue()


def results(form: Any, values: list[bytes | None]) -> list[Any]:
    """The record, or the reason why there is none."""
    codec = pickle.loads(pickle.dumps(form._codec()))
    rows = decode_array(pa.array(values, pa.binary()), codec, to_arrow_type(form.schema, timezone="UTC")).to_pylist()
    assert all((row["record"] is None) != (row["error"] is None) for row in rows)
    return [row["record"] or row["error"] for row in rows]


def test_avro_values_that_do_not_fit_have_a_reason() -> None:
    good = written(OLD, {"id": 300})
    values = [good, None, b"", good + b"x", good[:1], b"\x80" * 12]
    found = results(avro(OLD), values)
    assert found[:4] == [
        {"id": 300},
        "the value is null",
        "the value is empty",
        "the value has 1 byte after the end of the Avro record",
    ]
    assert all(reason.startswith("the value does not fit the Avro schema: ") for reason in found[4:])
    text = record(("name", "string"))
    [reason] = results(avro(text), [b"\x02\xff"])
    assert "utf-8" in reason


def test_records_are_converted_from_the_schema_that_their_header_names() -> None:
    form = avro(NEW, registry={1: OLD, 2: json.dumps(NEW)})
    values = [
        written(OLD, {"id": 5}, 1),
        written(NEW, {"id": 6, "more": "m"}, 2),
        written(OLD, {"id": 5}, 9),
        written(OLD, {"id": 5}),
        b"\x01\x00\x00\x00\x01\x0a",
    ]
    no_header = "the value does not begin with the header of a schema registry"
    assert results(form, values) == [
        {"id": 5, "more": "-"},
        {"id": 6, "more": "m"},
        "the registry has no schema with the id 9",
        no_header,
        no_header,
    ]
    assert results(avro(OLD, header=True), [written(OLD, {"id": 5}, 77)]) == [{"id": 5}]
    assert results(avro(OLD, registry={1: OLD}, header=False), [written(OLD, {"id": 5})]) == [{"id": 5}]
    encoder: Any = avro(registry={1: OLD})
    assert encoder._codec().encode({"id": 5}) == written(OLD, {"id": 5}, 1)


def test_avro_types_are_columns() -> None:
    inner = record(("x", "float"), name="Inner")
    schema = record(
        ("flag", "boolean"),
        ("maybe", ["null", "long"]),
        ("number", ["int", "long", "null"]),
        ("real", ["float", "double"]),
        ("raw", {"type": "fixed", "name": "F", "size": 2}),
        ("kind", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("time", {"type": "int", "logicalType": "time-millis"}),
        ("uuid", {"type": "string", "logicalType": "uuid"}),
        ("money", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3}),
        ("list", {"type": "array", "items": inner}),
        ("by_name", {"type": "map", "values": "Inner"}),
    )
    form = avro(schema)
    assert form.schema.simpleString() == (
        "struct<flag:boolean,maybe:bigint,number:bigint,real:double,raw:binary,kind:string,day:date,at:timestamp,"
        "local:timestamp_ntz,time:int,uuid:string,money:decimal(10,3),list:array<struct<x:float>>,"
        "by_name:map<string,struct<x:float>>>"
    )
    row = {
        "flag": True,
        "maybe": None,
        "number": 1 << 40,
        "real": 0.5,
        "raw": b"ab",
        "kind": "B",
        "day": 19_000,
        "at": 1_700_000_000_123,
        "local": 7,
        "time": 5,
        "uuid": "u",
        "money": (12_345).to_bytes(2, "big"),
        "list": [{"x": 1.0}],
        "by_name": {"a": {"x": 2.0}},
    }
    bare = json.loads(json.dumps(schema))
    for field in bare["fields"]:
        if isinstance(field["type"], dict):
            field["type"].pop("logicalType", None)
    [found] = results(form, [written(bare, row)])
    assert found["money"] == Decimal("12.345")
    assert found["at"].timestamp() == 1_700_000_000.123
    assert (found["kind"], found["number"], found["by_name"]) == ("B", 1 << 40, [("a", {"x": 2.0})])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("string", "must be a record, not string"),
        (record(("a", ["int", "string"])), "union of int, string"),
        (record(("next", ["null", "R"])), "contains itself"),
        (record(("a", "nothing")), "the Avro schema is not valid"),
        ({"type": "record"}, "the Avro schema is not valid"),
    ],
)
def test_avro_schemas_without_columns_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        avro(schema).schema  # noqa: B018


def test_avro_options_are_checked(tmp_path: Path) -> None:
    (tmp_path / "schemas.json").write_text(json.dumps({"1": OLD, "2": NEW}))
    (tmp_path / "schema.avsc").write_text(json.dumps(OLD))
    two = registry_of(tmp_path / "schemas.json")
    assert avro(tmp_path / "schema.avsc").schema == avro(registry=two, schema_id=1).schema
    for make, message in [
        (lambda: avro(), "needs a schema or a registry"),
        (lambda: avro(OLD, subject="s"), "subject has no effect"),
        (lambda: avro(OLD, subject="s", header=True), "subject has no effect"),
        (lambda: avro(OLD, registry=two, subject="s"), "subject has no effect"),
        (lambda: avro(registry=two, schema_id=1, subject="s"), "subject has no effect"),
        (lambda: avro(OLD, schema_id=1), "schema_id has no effect"),
        (lambda: avro(OLD, registry=two, schema_id=1, header=False), "schema_id has no effect"),
        (lambda: avro(registry={1: OLD}, subject="s").schema, "a file or dictionary has no subjects"),
        (lambda: avro(OLD, registry="http://a:1/x?token=hunter2"), r"remove the part after \? or #$"),
        (lambda: avro(OLD, registry="http://a:1/#x"), r"remove the part after \? or #$"),
        (lambda: avro("{no json").schema, "is not JSON"),
        (lambda: avro(tmp_path / "none.avsc").schema, "cannot be read"),
        (lambda: avro(registry=two).schema, "there are 2 schemas"),
        (lambda: avro(registry=two, schema_id=3).schema, "no schema with the id 3"),
        (lambda: avro(registry=tmp_path / "none.json"), "cannot be read as JSON"),
        (lambda: avro(registry={"x": OLD}), "'x' is not the id of a schema"),
        (lambda: avro(registry="https:///x"), "must begin with http:// or https:// and name a host"),
        (lambda: avro(registry="http://a:1").schema, "set schema, schema_id or subject"),
        (lambda: avro(OLD, header=True).encode(None), "set schema_id"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(OptionError, match=message):
            make()


NOT_HTTP = 0
"""Status of an answer whose bytes are sent without a status line and headers."""


class Service:
    """A schema registry: answers by path, and counts requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str | None]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.requests.append((self.path, self.headers["Authorization"]))
                status, body = service.answers.get(self.path, (404, b"{}"))
                if status == NOT_HTTP:
                    self.wfile.write(body)
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, path: str, **answer: Any) -> None:
        self.answers[path] = (200, json.dumps(answer).encode())


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.server.shutdown()
    service.server.server_close()


def test_schemas_of_a_service_are_requested_once(service: Service) -> None:
    service.add("/schemas/ids/4", schema=json.dumps(OLD))
    service.add("/subjects/sales%2Feu-value/versions/latest", id=5, schema=json.dumps(NEW), schemaType="AVRO")
    form = avro(registry=f"http://user:p%40ss@{service.address}/", subject="sales/eu-value")
    values = [written(OLD, {"id": n}, 4) for n in range(3)]
    assert results(form, values) == [{"id": n, "more": "-"} for n in range(3)]
    assert results(form, [written(OLD, {"id": 1}, 6)]) == ["the registry has no schema with the id 6"]
    authorization = "Basic dXNlcjpwQHNz"
    assert service.requests == [
        ("/subjects/sales%2Feu-value/versions/latest", authorization),
        ("/schemas/ids/4", authorization),
        ("/schemas/ids/6", authorization),
    ]
    encoder: Any = form
    assert encoder._codec().encode({"id": 5, "more": ""}) == written(NEW, {"id": 5, "more": ""}, 5)


def test_a_service_that_fails_is_not_a_corrupt_value(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "ANSWER_BYTES_MAX", 200)
    pauses: list[float] = []
    monkeypatch.setattr(http_requests, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic))
    url = f"http://user:secret@{service.address}"
    for answer, message in [
        ((500, b""), "the request failed after 3 attempts: status 500"),
        ((NOT_HTTP, b"garbage\r\n\r\n"), "failed after 3 attempts: garbage"),
        ((401, b""), "access is denied"),
        ((200, b"[]"), "is not a JSON object"),
        ((200, b"x" * 300), "longer than 200 bytes"),
        ((200, b"{}"), "the answer has no schema"),
    ]:
        service.answers["/schemas/ids/1"] = answer
        with pytest.raises(RegistryError, match=message) as raised:
            results(avro(OLD, registry=url), [written(OLD, {"id": 1}, 1)])
        assert "secret" not in str(raised.value)
    with pytest.raises(OptionError, match="no subject 'x'"):
        HttpRegistry(url).latest("x")
    pauses.clear()
    service.server.shutdown()
    service.server.server_close()
    with pytest.raises(RegistryError, match="failed after 3 attempts"):
        HttpRegistry(url).by_id(1)
    assert [0.25, 0.5] <= pauses <= [0.5, 1.0]
    assert len(pauses) == 2


def test_a_schema_that_cannot_be_used_makes_only_its_values_corrupt(service: Service) -> None:
    """A task that failed because of them would fail again for ever."""
    service.add("/schemas/ids/1", schema=json.dumps(OLD))
    service.add("/schemas/ids/2", schema="{}", schemaType="JSON")
    service.add("/schemas/ids/3", schema="{}", references=[{}])
    service.add("/schemas/ids/4", schema="{")
    service.add("/schemas/ids/5", schema='{"type": "record"}')
    form = avro(OLD, registry=f"http://{service.address}")
    found = results(form, [written(OLD, {"id": 7}, schema_id) for schema_id in range(1, 6)])
    assert found[0] == {"id": 7}
    for schema_id, reason in enumerate(["is JSON, not Avro", "references", "is not JSON", "is not valid"], 2):
        assert found[schema_id - 1].startswith(f"the schema with the id {schema_id} cannot be used: ")
        assert reason in found[schema_id - 1]


def test_an_id_that_the_registry_does_not_have_is_not_requested_for_each_value(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HttpRegistry(f"http://{service.address}")
    monkeypatch.setattr(registry_module, "MISSING_IDS_MAX", 2)
    for schema_id in (1, 1, 2, 2):
        assert registry.by_id(schema_id) is None
    assert len(service.requests) == 2
    assert registry.by_id(3) is None
    assert len(registry._missing_until) == 1
    service.add("/schemas/ids/3", schema='"string"')
    assert registry.by_id(3) is None
    registry._missing_until[3] = 0.0
    assert registry.by_id(3) == "string"


FIELD = descriptor_pb2.FieldDescriptorProto


def message_of(**fields: Any) -> bytes:
    return FIELD(**fields).SerializeToString()


def test_protobuf_values_that_do_not_fit_have_a_reason() -> None:
    form = protobuf(FIELD)
    [good, empty, null, bad] = results(form, [message_of(name="n", number=3), b"", None, b"\x0a\x05x"])
    assert (good["name"], good["number"], good["label"]) == ("n", 3, None)
    assert empty["name"] is None
    assert null == "the value is null"
    assert bad.startswith("the value is not a message google.protobuf.FieldDescriptorProto: ")
    [missing] = results(protobuf(descriptor_pb2.UninterpretedOption.NamePart), [b"\x10\x01"])
    assert missing.endswith("has no value for required fields: name_part")


def described(path: Path) -> Path:
    """A file descriptor set with the messages that protoc would have found in a file."""
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    sale = file.message_type.add(name="Sale")
    kinds = [("id", FIELD.TYPE_UINT64, None), ("at", FIELD.TYPE_MESSAGE, ".google.protobuf.Timestamp")]
    for number, (name, kind, type_name) in enumerate(kinds, 1):
        sale.field.add(name=name, number=number, type=kind, type_name=type_name, label=FIELD.LABEL_OPTIONAL)
    line = sale.nested_type.add(name="Line")
    line.field.add(name="text", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    entry = sale.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_UINT32, label=FIELD.LABEL_OPTIONAL)
    sale.field.add(
        name="lines", number=3, type=FIELD.TYPE_MESSAGE, type_name=".shop.Sale.Line", label=FIELD.LABEL_REPEATED
    )
    sale.field.add(
        name="counts", number=4, type=FIELD.TYPE_MESSAGE, type_name=".shop.Sale.CountsEntry", label=FIELD.LABEL_REPEATED
    )
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    path.write_bytes(files.SerializeToString())
    return path


def test_protobuf_descriptors_are_read_from_a_file(tmp_path: Path) -> None:
    form: Any = protobuf("shop.Sale", described(tmp_path / "sale.desc"))
    assert form.schema.simpleString() == (
        "struct<id:decimal(20,0),at:timestamp,lines:array<struct<text:string>>,counts:map<string,bigint>>"
    )
    at = datetime(2024, 5, 6, 7, 8, 9, 10, UTC)
    row = {"id": Decimal((1 << 64) - 1), "at": at, "lines": [{"text": "a"}, {"text": ""}], "counts": {"x": 7}}
    value = form._codec().encode(row)
    [found] = results(form, [value])
    assert found == row | {"counts": [("x", 7)]}
    with_header: Any = protobuf("shop.Sale", tmp_path / "sale.desc", header=True)
    assert results(with_header, [b"\x00\x00\x00\x00\x09\x00" + value]) == [found]
    nested: Any = protobuf("shop.Sale.Line", tmp_path / "sale.desc", header=True)
    # The path to the message: two indexes, 0 and 0, as zigzag varints.
    assert results(nested, [b"\x00\x00\x00\x00\x09\x04\x00\x00\x0a\x01t"]) == [{"text": "t"}]
    other = "the header names another message than shop.Sale"
    no_header = "the value does not begin with the header of a schema registry"
    not_complete = "the header of the value is not complete"
    bad = [b"\x00\x00\x00\x00\x09\x02\x02" + value, b"\x07" + value, b"\x00\x00\x00\x00\x09\x80"]
    negative = "the header of the value is not valid: it has a negative number of indexes"
    bad.append(b"\x00\x00\x00\x00\x09\x01" + value)
    assert results(with_header, bad) == [other, no_header, not_complete, negative]
    late = {"at": datetime(9999, 12, 31, tzinfo=UTC)}
    assert results(form, [form._codec().encode(late)])[0]["at"].year == 9999
    too_late = b"\x12\x08\x08" + b"\xff" * 6 + b"\x7f"
    [reason] = results(form, [too_late])
    assert "out of range" in reason


def test_protobuf_options_are_checked(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    complete = descriptor_pb2.FileDescriptorSet.FromString(described(tmp_path / "complete").read_bytes())
    without_import = descriptor_pb2.FileDescriptorSet(file=complete.file[:1]).SerializeToString()
    for make, message in [
        (lambda: protobuf("shop.Sale"), "the argument descriptors is missing: pass a file descriptor set"),
        (lambda: protobuf(3), "is neither a generated class nor the name"),
        (lambda: protobuf("a.B", tmp_path / "none"), "cannot be read"),
        (lambda: protobuf("a.B", tmp_path / "empty"), "is not a file descriptor set"),
        (lambda: protobuf("a.B", b"\xff"), "is not a file descriptor set"),
        (
            lambda: protobuf("shop.Sale", without_import).schema,
            "lack the imported file google/protobuf/",
        ),
        (lambda: protobuf("a.B", described(tmp_path / "d")).schema, "have no message a.B"),
        (lambda: protobuf(FIELD, header=True).encode(None), "does not write the header"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(OptionError, match=message):
            make()
    with pytest.raises(SchemaError, match="contains itself"):
        protobuf(descriptor_pb2.DescriptorProto).schema  # noqa: B018


def test_a_missing_package_names_the_remedy() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tidelog\[avro\]'"):
        refuse_missing_package("no_such_package", "avro")


def test_options_that_decide_what_is_corrupt_cannot_be_set() -> None:
    for make in (json_format, csv):
        with pytest.raises(SchemaError, match=r"option Mode of from_\w+ cannot be set"):
            make("a int", {"Mode": "FAILFAST"})
        with pytest.raises(SchemaError, match="must be a list of columns"):
            make(StructType()).schema  # noqa: B018


def test_a_record_that_does_not_fit_its_columns_is_an_error_of_its_row() -> None:
    class Numbers:
        def decode(self, value: bytes) -> dict[str, Any]:
            return {"a": int(value)}

        def encode(self, row: Any) -> bytes:
            raise NotImplementedError

    kind = pa.struct([("a", pa.int32())])
    rows = decode_array(pa.array([b"1", b"99999999999", b"3"]), Numbers(), kind).to_pylist()
    assert [row["record"] for row in rows] == [{"a": 1}, None, {"a": 3}]
    assert rows[1]["error"] == "a value of the record does not fit the type of its column"
