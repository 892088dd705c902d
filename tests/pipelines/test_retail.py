"""The pipelines of retail: decisions and counted dirt, compared with computations on the raw files."""

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import duckdb
import pandas
import pytest

from pipelines_harness import DATA, Example, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def retail(spark: "SparkSession", bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example("retail", spark, bootstrap, tmp_path_factory.mktemp("retail"))


def raw_sales() -> pandas.DataFrame:
    return pandas.read_csv(DATA / "online_retail.csv.gz", dtype=str, keep_default_na=False)


def raw_shipments() -> pandas.DataFrame:
    text = gzip.decompress((DATA / "scms_shipments.csv.gz").read_bytes()).decode("utf-8-sig")
    return pandas.read_csv(io.StringIO(text.replace("\r", "\n")), dtype=str, keep_default_na=False)


FIRST_WEEKS = """
    SELECT shipments.ID AS shipment, stock_code AS product, delivered, units,
        coalesce(sum(cast(Quantity AS int)), 0) AS sold
    FROM (
        SELECT *, strptime("Delivered to Client Date", '%d-%b-%y') AS delivered,
            cast("Line Item Quantity" AS int) // packs_per_unit AS units
        FROM shipments JOIN catalogue ON "Item Description" = item
    ) AS shipments
    LEFT JOIN sales ON sales.StockCode = stock_code AND cast(Quantity AS int) > 0 AND cast(UnitPrice AS double) > 0
        AND cast(InvoiceDate AS timestamp) >= delivered
        AND cast(InvoiceDate AS timestamp) < delivered + INTERVAL 7 DAY
    WHERE units > 0 AND delivered >= '2010-12-01'
    GROUP BY ALL
"""


def first_weeks() -> pandas.DataFrame:
    """The delivery and what the following seven days sold, by SQL in DuckDB."""
    with duckdb.connect() as database:
        database.register("sales", raw_sales())
        database.register("shipments", raw_shipments())
        database.register("catalogue", pandas.read_csv(DATA / "catalogue.csv", dtype={"stock_code": str}))
        return database.sql(FIRST_WEEKS).df()


def last_complete_day() -> pandas.Timestamp:
    """The watermark is a day behind the slower stream, and a sale may be seven days after its delivery."""
    delivered = pandas.to_datetime(raw_shipments()["Delivered to Client Date"], format="%d-%b-%y")
    sold = pandas.to_datetime(raw_sales()["InvoiceDate"])
    return min(delivered.max(), sold.max()) - pandas.Timedelta("1D") - pandas.Timedelta("7D")


def decisions(retail: Example, topic: str) -> list[dict[str, Any]]:
    messages = read_topic(retail.bootstrap, topic)
    rows = [json.loads(message.value()) | {"product": message.key().decode()} for message in messages]
    return sorted(rows, key=lambda row: int(row["shipment"]))


def test_decisions_follow_from_the_first_week_after_each_delivery(retail: Example) -> None:
    weeks = first_weeks()
    complete = weeks[weeks["delivered"] + pandas.Timedelta("1D") <= last_complete_day()]
    assert 0 < len(complete) < len(weeks)
    part = complete["sold"] / complete["units"]
    stated = retail.stated()
    for topic, chosen, decided, value in (
        ("reorders", complete[part >= 0.8], "order_units", "sold"),
        ("price-adjustments", complete[part < 0.2], "change_percent", None),
    ):
        expected = [
            {
                "shipment": row.shipment,
                "delivered": row.delivered.strftime("%Y-%m-%dT00:00:00.000Z"),
                "units": row.units,
                "sold": row.sold,
                decided: row.sold if value else -10,
                "product": row.product,
            }
            for row in chosen.itertuples()
        ]
        assert decisions(retail, topic) == sorted(expected, key=lambda row: int(row["shipment"]))
        assert stated[topic] == len(expected)
    assert stated["units ordered again"] == complete.loc[part >= 0.8, "sold"].sum()
    assert stated["deliveries that can be judged"] == len(complete)


def expected_dirt() -> dict[str, dict[str, int]]:
    sales, shipments = raw_sales(), raw_shipments()
    quantity, price = sales["Quantity"].astype(int), sales["UnitPrice"].astype(float)
    is_cancellation = sales["InvoiceNo"].str[0] == "C"
    catalogue = pandas.read_csv(DATA / "catalogue.csv").set_index("item")["packs_per_unit"]
    ordered = shipments["PO Sent to Vendor Date"]
    delivered = pandas.to_datetime(shipments["Delivered to Client Date"], format="%d-%b-%y")
    is_number = {
        name: pandas.to_numeric(shipments[name], errors="coerce").notna() for name in ("Weight", "Freight_Cost")
    }
    packs_per_unit = shipments["Item Description"].map(catalogue)
    return {
        "sales": {
            "all lines": len(sales),
            "cancellation": is_cancellation.sum(),
            "negative quantity, no cancellation": ((quantity < 0) & ~is_cancellation).sum(),
            "no price": (price <= 0).sum(),
            "no customer": (sales["CustomerID"] == "").sum(),
            "no description": (sales["Description"] == "").sum(),
            "no product (postage, fees, manual)": (~sales["StockCode"].str[:5].str.isdigit()).sum(),
        },
        "shipments": {
            "all lines": len(shipments),
            "delivered before the sales begin": (delivered < "2010-12-01").sum(),
            "American date of the order": ordered.str.contains(r"^\d+/").sum(),
            "no date of the order": (~ordered.str[:1].str.isdigit()).sum(),
            "no weight": (~is_number["Weight"]).sum(),
            "weight in another shipment": shipments["Weight"].str.contains("ID#").sum(),
            "no cost of freight": (~is_number["Freight_Cost"]).sum(),
            "freight in another shipment": shipments["Freight_Cost"].str.contains("ID#").sum(),
            "no insurance": (shipments["Line Item Insurance (USD)"] == "").sum(),
            "price of 0": (shipments["Unit_Price"].astype(float) == 0).sum(),
            "not in the catalogue": packs_per_unit.isna().sum(),
            "less than one unit": (shipments["Line Item Quantity"].astype(int) < packs_per_unit).sum(),
        },
    }


def test_dirt_is_counted(retail: Example) -> None:
    expected = {
        (data, problem): int(number)
        for data, numbers in expected_dirt().items()
        for problem, number in numbers.items()
        if number
    }
    found = {}
    for message in read_topic(retail.bootstrap, "retail-dirt"):  # a later count of the same key replaces an earlier one
        key = json.loads(message.key())
        found[key["data"], key["problem"]] = json.loads(message.value())["lines"]
    assert found == expected
    stated = retail.stated()
    assert {f"{data}: {problem}": stated[f"{data}: {problem}"] for data, problem in expected} == {
        f"{data}: {problem}": number for (data, problem), number in expected.items()
    }


def test_the_title_of_the_file_is_a_dead_letter_of_each_pipeline(retail: Example) -> None:
    messages = read_topic(retail.bootstrap, "retail-rejected")
    title = gzip.decompress((DATA / "online_retail.csv.gz").read_bytes()).splitlines()[0]
    assert [message.value() for message in messages] == [title, title]
    assert sorted(dict(message.headers())["pipeline"] for message in messages) == [b"decisions", b"dirt"]
