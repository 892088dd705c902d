"""Find the columns of an Iceberg table in its Parquet files. A column is identified by its field id, not by its name:
it may have been renamed since a file was written, and another column may have its old name now.

Files that have no field ids, such as those that Tidelog's sink writes, are read with the table's name mapping. It says
which names a column has had.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField

FIELD_ID = b"PARQUET:field_id"
"""The key in the metadata of an Arrow field. Its value is the field id that the Parquet file states."""


class TableColumns(NamedTuple):
    """The columns of a table, in a form that can be sent to executors."""

    schema_json: str
    mapping_json: str
    """The name mapping of the table. If the table has none: a mapping from its present names to the field ids."""

    @classmethod
    def of(cls, table: "Table") -> "TableColumns":
        from pyiceberg.table.name_mapping import create_mapping_from_schema

        mapping = table.name_mapping() or create_mapping_from_schema(table.schema())
        return cls(table.schema().model_dump_json(), mapping.model_dump_json())

    def names(self) -> dict[int, str]:
        """Return the full name of each field by its id. Fields inside of structs, arrays and maps are included."""
        schema = self._schema()
        return {number: schema.find_column_name(number) or "" for number in schema.field_ids}

    def projection(self, stored: "pa.Schema") -> "Projection":
        """Return how to read the table's columns from a file with the columns `stored`."""
        from pyiceberg.table.name_mapping import NameMapping

        mapping = NameMapping.model_validate_json(self.mapping_json)
        fields = {field.name: field for field in self._schema().fields}
        return Projection(fields, list(mapping), has_ids=any(FIELD_ID in (field.metadata or {}) for field in stored))

    def _schema(self) -> "Schema":
        from pyiceberg.schema import Schema

        return Schema.model_validate_json(self.schema_json)


class Projection:
    """Converts the columns of one file to the columns of its table."""

    def __init__(self, fields: "Mapping[str, NestedField]", mapping: "Sequence[MappedField]", *, has_ids: bool) -> None:
        self._fields = fields
        self._mapping = mapping
        self._has_ids = has_ids
        """Whether the file states field ids. If not, `_mapping` is used."""

    def stored_names(self, stored: "pa.Schema", wanted: "pa.Schema") -> list[str]:
        """Return the names that the wanted columns have in the file. Columns that it does not have are omitted."""
        positions = self._positions(list(stored), self._mapping)
        ids = [self._fields[field.name].field_id for field in wanted]
        return [stored.field(positions[number][0]).name for number in ids if number in positions]

    def batch(self, batch: "pa.RecordBatch", wanted: "pa.Schema") -> "pa.RecordBatch":
        """Return the rows with the columns and types `wanted`."""
        import pyarrow as pa

        fields = [self._fields[field.name] for field in wanted]
        columns = self._children(batch.num_rows, batch.columns, list(batch.schema), self._mapping, fields, list(wanted))
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _positions(
        self, stored: "Sequence[pa.Field]", mapping: "Sequence[MappedField]"
    ) -> "dict[int, tuple[int, Sequence[MappedField]]]":
        """Return, for each field id among the stored fields, the field's position and the mapping of its children."""
        positions: dict[int, tuple[int, Sequence[MappedField]]] = {}
        for position, field in enumerate(stored):
            entry = next((each for each in mapping if field.name in each.names), None)
            number = entry.field_id if entry is not None else None
            if self._has_ids:
                number = int(field.metadata[FIELD_ID]) if FIELD_ID in (field.metadata or {}) else None
            if number is not None:
                positions[number] = (position, entry.fields if entry is not None else [])
        return positions

    def _children(
        self,
        rows: int,
        arrays: "Sequence[pa.Array]",
        stored: "Sequence[pa.Field]",
        mapping: "Sequence[MappedField]",
        fields: "Sequence[NestedField]",
        wanted: "Sequence[pa.Field]",
    ) -> "list[pa.Array]":
        """Return one array for each field of the table, from the arrays of a file or of one of its structs."""
        import pyarrow as pa

        positions = self._positions(stored, mapping)
        columns = []
        for field, target in zip(fields, wanted, strict=True):
            if field.field_id in positions:
                position, children = positions[field.field_id]
                columns.append(self._array(arrays[position], children, field.field_type, target.type))
            else:
                columns.append(pa.repeat(pa.scalar(field.initial_default, target.type), rows))
        return columns

    def _array(
        self, array: "pa.Array", mapping: "Sequence[MappedField]", kind: "IcebergType", target: "pa.DataType"
    ) -> "pa.Array":
        import pyarrow as pa
        from pyiceberg.types import ListType, MapType, StructType

        if not isinstance(kind, StructType | ListType | MapType):
            return array.cast(target)
        if array.offset:
            array = array.take(pa.array(range(len(array))))  # Arrow builds no list or map from a part of an array
        if isinstance(kind, StructType):
            parts = [array.field(position) for position in range(array.type.num_fields)]
            columns = self._children(len(array), parts, list(array.type), mapping, kind.fields, list(target))
            return pa.StructArray.from_arrays(columns, fields=list(target), mask=array.is_null())
        if isinstance(kind, ListType):
            if not pa.types.is_list(array.type):
                array = array.cast(pa.list_(array.type.value_field))
            values = self._array(array.values, _named(mapping, "element"), kind.element_type, target.value_type)
            return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=array.is_null())
        keys = self._array(array.keys, _named(mapping, "key"), kind.key_type, target.key_type)
        items = self._array(array.items, _named(mapping, "value"), kind.value_type, target.item_type)
        validity: Any = array.is_valid().buffers()[1] if array.null_count else None
        entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(
            target, len(array), [validity, array.offsets.buffers()[1]], array.null_count, children=[entries]
        )


def _named(mapping: "Sequence[MappedField]", name: str) -> "Sequence[MappedField]":
    """Return the mapping of the children of an element, a key or a value."""
    return next((each.fields for each in mapping if name in each.names), [])
