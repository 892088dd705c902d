"""The table of facts and the generated modules: both follow from their sources."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
WIRE = ROOT / "src" / "tidelog" / "wire"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "script" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wire_schema = script("wire_schema")
wire_generate = script("wire_generate")


def test_generated_files_are_what_the_table_gives() -> None:
    files = wire_generate.generate({path.stem: path.read_text() for path in sorted((WIRE / "schema").glob("*.txt"))})
    assert {name: (WIRE / name).read_text() for name in files} == files
    assert {path.name for path in (WIRE / "messages").glob("*.py")} == {
        Path(name).name for name in files if name.startswith("messages/")
    }


def test_every_definition_of_the_table_has_its_class() -> None:
    from tidelog.wire.apis import APIS

    for section in sorted((WIRE / "schema").glob("*.txt")):
        for definition in wire_generate.read_table(section.read_text()):
            if definition.name in wire_generate.WITHOUT_CLASS or definition.versions == wire_generate.NO_VERSIONS:
                continue
            module = wire_generate.module_of(section.stem, definition)
            message = getattr(importlib.import_module(f"tidelog.wire.messages.{module}"), definition.name)
            assert (message.min_version, message.max_version) == tuple(definition.versions)
            if definition.kind == "request":
                assert APIS[definition.key].module == module


DEFINITION = """
// A comment that stays behind.
{
  "apiKey": 99, "type": "request", "name": "ShelfRequest", "validVersions": "0-3", "flexibleVersions": "2+",
  "latestVersionUnstable": true,
  // Another.
  "fields": [
    { "name": "ClientId", "type": "string", "versions": "0+", "nullableVersions": "1+", "default": "null",
      "flexibleVersions": "none", "about": "Words that stay behind." },
    { "name": "BytesMax", "type": "int32", "versions": "1+", "default": "0x7fffffff", "ignorable": true },
    { "name": "Next", "type": "int64", "taggedVersions": "2+", "tag": 0, "default": -1 },
    { "name": "Books", "type": "[]Book", "versions": "0+", "fields": [
      { "name": "Title", "type": "string", "versions": "0+", "mapKey": true, "entityType": "topicName" }
    ]},
    { "name": "Later", "type": "bool", "versions": "3+", "default": "false" }
  ],
  "commonStructs": [
    { "name": "Page", "versions": "0+", "fields": [{ "name": "N", "type": "int16", "versions": "0+" }] }
  ]
}
"""


def test_facts_of_a_definition() -> None:
    assert wire_schema.message_lines(wire_schema.parse_definition(DEFINITION)) == [
        "ShelfRequest request 99 0-3 flexible=2+ unstable",
        "  struct Page",
        "    N int16 0+",
        "  ClientId string 0+ nullable=1+ default=null rigid",
        "  BytesMax int32 1+ default=2147483647 ignorable",
        "  Next int64 2+ tag=0 default=-1",
        "  Books []Book 0+",
        "    Title string 0+",
        "  Later bool 3+",
    ]


def test_an_unstable_version_is_left_out() -> None:
    (definition,) = wire_generate.read_table("\n".join(wire_schema.message_lines(json_definition())))
    assert definition.versions == (0, 2)
    assert [line.split()[0] for line in definition.lines] == ["ClientId", "BytesMax", "Next", "Books"]


def json_definition() -> object:
    return wire_schema.parse_definition(DEFINITION)


def test_a_definition_that_is_not_understood_is_refused() -> None:
    with pytest.raises(SystemExit, match="tagged in 2\\+ of versions 1\\+"):
        wire_schema.field_line({"name": "A", "type": "int8", "versions": "1+", "taggedVersions": "2+", "tag": 0})
    with pytest.raises(SystemExit, match="default"):
        wire_schema.field_line({"name": "A", "type": "uuid", "versions": "1+", "default": "x"})


def test_a_table_from_jars_and_from_folders_is_the_same(tmp_path: Path) -> None:
    import zipfile

    jars, folders = tmp_path / "jars", tmp_path / "folders"
    jars.mkdir()
    for artifact, section in wire_schema.JARS.items():
        definition = {"apiKey": 1, "type": "data", "name": section.title().replace("-", ""), "validVersions": "0"}
        text = json.dumps(definition | {"fields": [{"name": "A", "type": "int8", "versions": "0+"}]})
        (folders / section).mkdir(parents=True)
        (folders / section / "A.json").write_text(text)
        with zipfile.ZipFile(jars / f"{artifact}-9.9.9.jar", "w") as jar:
            jar.writestr("common/message/A.json", text)
            jar.writestr("other/B.json", "not JSON")
    for source in (jars, folders):
        wire_schema.write_table(wire_schema.read_definitions(source), tmp_path / f"{source.name}-table", "9.9.9")
    tables = [
        {path.name: path.read_text() for path in sorted((tmp_path / f"{name}-table").iterdir())}
        for name in ("jars", "folders")
    ]
    assert tables[0] == tables[1]
    assert tables[0]["clients.txt"].endswith("Clients data 1 0 flexible=none\n  A int8 0+\n")


def test_equal_structs_are_one_class_and_different_ones_are_told_apart() -> None:
    table = """\
LendRequest request 90 0 flexible=0+
  Books []Book 0+
    Title string 0+
  Place Shelf 0+
    Number int16 0+

LendResponse response 90 0 flexible=0+
  Books []Book 0+
    Title string 0+
    ErrorCode int16 0+
  Place Shelf 0+
    Number int16 0+
"""
    text = wire_generate.generate({"clients": table})["messages/lend.py"]
    assert text.count("class Book(Struct)") == 1
    assert text.count("class ResponseBook(Struct)") == 1
    assert text.count("class Shelf(Struct)") == 1
    assert "Books []ResponseBook 0+" in text


def test_a_struct_is_written_before_what_uses_it() -> None:
    table = """\
TreeValue coordinator-value 1 0 flexible=0+
  struct Branch
    Leaves []Leaf 0+
  struct Leaf
    Colour string 0+
  Trunk Branch 0+
"""
    text = wire_generate.generate({"share-coordinator": table})["messages/share_records.py"]
    assert text.index("class Leaf(") < text.index("class Branch(") < text.index("class TreeValue(")
