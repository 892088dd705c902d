"""The tables of change data capture, against a computation with pandas over the same events."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"
DATA = EXAMPLES / "data"


def module() -> Any:
    spec = importlib.util.spec_from_file_location("cdc_example", EXAMPLES / "cdc/cdc.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def changes(event: object) -> list[tuple[str, str, dict[str, Any]]]:
    return [tuple(each) for each in module().changes_of(json.dumps(event).encode())]  # type: ignore[misc]


def test_debezium_has_the_row_before_or_after() -> None:
    source = {"table": "t", "db": "d"}
    for operation in ("c", "r", "u"):
        event = {"op": operation, "before": {"id": 1}, "after": {"id": 1, "a": 2}, "source": source}
        assert changes(event) == changes({"schema": {}, "payload": event}) == [("t", "upsert", {"id": 1, "a": 2})]
    deletion = {"op": "d", "before": {"id": 1, "a": 2}, "after": None, "source": source}
    assert changes(deletion) == [("t", "delete", {"id": 1, "a": 2})]
    assert changes({"op": "m", "source": source}) == changes(None) == changes({"schema": None, "payload": None}) == []
    assert list(module().changes_of(None)) == []


def test_canal_has_several_rows_as_texts() -> None:
    event = {
        "isDdl": False,
        "type": "INSERT",
        "table": "t",
        "pkNames": ["k"],
        "mysqlType": {"k": "int", "w": "double", "u": "BIGINT UNSIGNED", "v": "varchar(10)"},
        "old": None,
        "data": [
            {"k": "1", "w": "0.5", "u": "18446744073709551615", "v": "7"},
            {"k": "2", "w": None, "u": None, "v": None},
        ],
    }
    assert changes(event) == [
        ("t", "upsert", {"k": 1, "w": 0.5, "u": 18446744073709551615, "v": "7"}),
        ("t", "upsert", {"k": 2, "w": None, "u": None, "v": None}),
    ]
    assert [each[1] for each in changes(event | {"type": "DELETE"})] == ["delete", "delete"]
    assert changes({"isDdl": True, "data": None, "type": "ALTER", "table": "t", "sql": "ALTER TABLE t"}) == []


def test_an_update_of_the_key_removes_the_previous_row() -> None:
    canal = {"isDdl": False, "type": "UPDATE", "table": "t", "pkNames": ["k"], "mysqlType": {"k": "int"}}
    expected = [("t", "delete", {"k": 1}), ("t", "upsert", {"k": 2})]
    assert changes(canal | {"data": [{"k": "2"}], "old": [{"k": "1"}]}) == expected
    maxwell = {"database": "d", "table": "t", "type": "update", "primary_key_columns": ["k"]}
    assert changes(maxwell | {"data": {"k": 2}, "old": {"k": 1}}) == expected
    assert changes(maxwell | {"data": {"k": 2, "v": 1}, "old": {"v": 0}}) == [("t", "upsert", {"k": 2, "v": 1})]
    assert changes({"database": "d", "table": "t", "type": "table-alter"}) == []


@pytest.mark.parametrize("value", [b"{", b"7", b'{"a": 1}', b'{"op": "t", "source": {"table": "t"}}'])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        list(module().changes_of(value))


def lines(*names: str) -> list[bytes]:
    return [line for name in names for line in (DATA / name).read_bytes().splitlines()]


def events(*names: str) -> list[Any]:
    return [json.loads(line) for line in lines(*names)]


def newest(rows: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """The last version of each key, without deleted ones. `rows` has the column `is_deleted`."""
    last = rows.drop_duplicates(key, keep="last")
    return last[~last["is_deleted"]].drop(columns="is_deleted").dropna(axis="columns", how="all")


def debezium_t1() -> "pd.DataFrame":
    import pandas as pd

    payloads = [e.get("payload", e) for e in events("cdc_debezium.jsonl", "cdc_debezium_later.jsonl") if e]
    rows = [
        (p["after"] or p["before"]) | {"is_deleted": p["op"] == "d"} for p in payloads if p["source"]["table"] == "t1"
    ]
    return newest(pd.DataFrame(rows), "id")


def canal(name: str, key: str, **types: str) -> Callable[[], "pd.DataFrame"]:
    def expected() -> "pd.DataFrame":
        import pandas as pd

        rows = [row | {"is_deleted": e["type"] == "DELETE"} for e in events(name) for row in e["data"] or ()]
        return newest(pd.DataFrame(rows), key).astype({key: "int64"} | types)

    return expected


def maxwell_products() -> "pd.DataFrame":
    import pandas as pd

    rows = pd.DataFrame(events("cdc_maxwell.jsonl"))
    values = pd.json_normalize(rows["data"].tolist()).assign(is_deleted=(rows["type"] == "delete").tolist())
    return newest(values, "id")


TABLES: list[tuple[str, str, list[list[str]], str, Callable[[], "pd.DataFrame"]]] = [
    ("debezium_t1", "cdc-debezium", [["cdc_debezium.jsonl"], ["cdc_debezium_later.jsonl"]], "id", debezium_t1),
    (
        "canal_products",
        "cdc-canal-products",
        [["cdc_canal_products.jsonl"], []],
        "id",
        canal("cdc_canal_products.jsonl", "id"),
    ),
    ("canal_t1", "cdc-canal-t1", [["cdc_canal_t1.jsonl"], []], "k", canal("cdc_canal_t1.jsonl", "k", v2="Int64")),
    ("maxwell_products", "cdc-maxwell", [["cdc_maxwell.jsonl"], []], "id", maxwell_products),
]


ROWS = {"debezium_t1": 4, "canal_products": 8, "canal_t1": 5, "maxwell_products": 8}
"""The numbers of rows that the README states."""


def test_the_readme_states_the_numbers_of_rows() -> None:
    readme = (EXAMPLES / "cdc/README.md").read_text()
    for name, _, _, _, expected in TABLES:
        assert len(expected()) == ROWS[name] > 0
        [line] = [line for line in readme.splitlines() if f"`lake/{name}`" in line]
        assert line.endswith(f"| {ROWS[name]} |")


def test_the_tables_are_current(
    bootstrap: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two runs, of which the second one adds a column, and changes and deletes rows of the first one."""
    from deltalake import DeltaTable

    from tidelog.pipelines.loading import load
    from tidelog.pipelines.running import run

    monkeypatch.chdir(tmp_path)
    pipelines = {each.name: each for each in load(str(EXAMPLES / "cdc/cdc.py"))}
    assert set(pipelines) == set(ROWS)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1) for _, topic, *_ in TABLES]).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for part in range(2):
        written = []
        for name, topic, files, *_ in TABLES:
            for line in lines(*files[part]):
                producer.produce(topic, None if line == b"null" else line)
                written.append(name)
        assert producer.flush(30) == 0
        for name in dict.fromkeys(written):  # one after another: Spark gives up on a source that starts slowly
            status = run(pipelines[name], bootstrap=bootstrap, spark=spark)[name]
            assert (status.restarts, status.error) == (0, None), name
            assert status.queries[0].rows == written.count(name), "each record is read once"
    for name, _, _, key, expected in TABLES:
        table = DeltaTable(str(tmp_path / "lake" / name)).to_pandas().drop(columns="position")
        wanted = expected()
        assert len(wanted) == ROWS[name]
        assert set(table.columns) == set(wanted.columns), name
        got = table.sort_values(key)[list(wanted.columns)].astype(object).where(table.notna(), None)
        assert json_rows(got) == json_rows(wanted.sort_values(key)), name


def json_rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return rows
