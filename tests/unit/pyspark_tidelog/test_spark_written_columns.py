"""The columns of rows and the schema of a format: no column is left out, and no value changes, without an error."""

import pickle
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

from google.protobuf import descriptor_pb2
from pyspark.sql import types as t

from pyspark_tidelog.errors import SchemaError
from pyspark_tidelog.formats import avro, csv, json, protobuf

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
SALE = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "quantity", "type": ["null", "int"], "default": None},
        {"name": "note", "type": "string", "default": "-"},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            "default": "",
        },
        {"name": "flag", "type": ["null", "boolean"]},
        {"name": "rate", "type": ["null", "float"]},
        {"name": "lines", "type": ["null", {"type": "array", "items": INNER}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    ],
}


def message_with(*fields: tuple[str, int]) -> Any:
    """A message with these fields: their names, and the numbers of their types in protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Sale")
    for number, (name, kind) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return protobuf("shop.Sale", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def columns(**types: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in types.items()])


LONG, INT, DOUBLE, TEXT = t.LongType(), t.IntegerType(), t.DoubleType(), t.StringType()
SALE_IN_PROTOBUF = message_with(("id", 3), ("quantity", 5), ("rate", 2), ("flag", 8), ("total", 4))


@pytest.mark.parametrize("form", [avro(SALE), SALE_IN_PROTOBUF], ids=["avro", "protobuf"])
def test_columns_that_do_not_fit_are_refused(form: Any) -> None:
    for rows, message in [
        (
            columns(id=LONG, quantitty=INT),
            "a column quantitty, which the schema does not have: leave it out, or add it",
        ),
        (columns(id=LONG, Quantity=INT), r"a column Quantity, .* \(but it has quantity\): rename the column"),
        (columns(id=DOUBLE), "id is bigint in the schema and double in the rows, so values could change: cast it"),
        (columns(id=t.BooleanType()), "id is bigint in the schema and boolean in the rows"),
        (columns(id=t.DecimalType(10, 2)), "id is bigint in the schema and decimal"),
        (columns(id=LONG, rate=DOUBLE), "rate is float in the schema and double in the rows"),
        (columns(id=LONG, flag=INT), "flag is boolean in the schema and int in the rows"),
    ]:
        with pytest.raises(SchemaError, match=message):
            form.written_names(rows)
    fitting = columns(quantity=LONG, id=INT)
    assert form.written_names(fitting) == ["quantity", "id"]
    assert form.written_names(columns(id=t.NullType())) == ["id"]


def test_nested_columns_and_missing_ones() -> None:
    form = avro(SALE)
    line = columns(x=INT, y=INT)
    for rows, message in [
        (columns(id=LONG, lines=t.ArrayType(line)), "a column lines.element.y, which the schema does not have"),
        (columns(id=LONG, lines=t.ArrayType(columns(X=INT))), r"lines.element.X, .* \(but it has lines.element.x\)"),
        (columns(id=LONG, lines=t.ArrayType(t.StructType())), "the schema has a column lines.element.x, but"),
        (columns(quantity=INT), "the schema has a column id, but the rows have only quantity: add it to the rows"),
        (columns(id=LONG, price=t.DecimalType(6, 3)), r"price is decimal\(6,2\) in the schema and decimal\(6,3\)"),
        (columns(id=LONG, at=t.TimestampNTZType()), "at is timestamp in the schema and timestamp_ntz in the rows"),
    ]:
        with pytest.raises(SchemaError, match=message):
            form.written_names(rows)
    with pytest.raises(SchemaError, match="total is decimal"):
        SALE_IN_PROTOBUF.written_names(columns(total=t.DecimalType(20, 1)))


def test_values_that_do_not_fit_are_refused() -> None:
    """A number may fit a narrower type, so each of them is checked."""
    rows = columns(id=LONG, quantity=LONG, price=t.DecimalType(10, 2))
    codec = pickle.loads(pickle.dumps(avro(SALE)._codec()))  # type: ignore[attr-defined]
    codec.check(rows)
    found = codec.decode(codec.encode({"id": 1, "quantity": 7, "price": Decimal("1.25")}))
    assert (found["quantity"], found["price"], found["note"]) == (7, Decimal("1.25"), "-")
    for record in (
        {"id": 1, "quantity": 1 << 40, "price": Decimal(1)},
        {"id": None, "price": Decimal(1)},
        {"id": 1, "price": Decimal("123456.78")},
    ):
        with pytest.raises(SchemaError, match=r"a row does not fit the Avro schema, so it is not written: .*"):
            codec.encode(record)
    codec.check(avro(SALE).schema)
    with pytest.raises(SchemaError, match=r"a row does not fit the Avro schema, so it is not written: .* on field id"):
        codec.encode({"id": None})
    codec = SALE_IN_PROTOBUF._codec()
    with pytest.raises(SchemaError, match=r"a row does not fit the message shop.Sale, so it is not written: .*range"):
        codec.encode({"quantity": 1 << 40})


def test_a_line_of_csv_has_the_columns_of_its_schema() -> None:
    form = csv(columns(a=INT, b=INT))
    assert form.written_names(columns(b=INT, a=INT)) == ["a", "b"]
    with pytest.raises(SchemaError, match="the schema has a column b, but the rows have only a: add it to the rows"):
        form.written_names(columns(a=INT))
    with pytest.raises(SchemaError, match="a column c, which the schema does not have"):
        form.written_names(columns(a=INT, b=INT, c=INT))
    for other in (csv(), json(), json(columns(x=INT))):
        assert other.written_names(columns(b=TEXT, a=INT)) == ["b", "a"]
