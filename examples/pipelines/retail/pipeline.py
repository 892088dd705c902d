"""Retail: sales and shipments are joined; what sells well is ordered again, what does not gets a lower price.

Topics in: retail-sales (lines of CSV), retail-shipments (JSON, all values are text as in the original file).
Topics out: reorders, price-adjustments, retail-dirt.
"""

import csv as csv_files
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tidelog.pipelines import csv, json, pipeline, topic

CATALOGUE = Path(__file__).resolve().parents[1] / "data/catalogue.csv"

SALE = csv(
    "InvoiceNo string, StockCode string, Description string, Quantity int, InvoiceDate timestamp, UnitPrice double,"
    " CustomerID string, Country string",
    {"timestampFormat": "yyyy-MM-dd HH:mm:ss"},
)
SHIPMENT = json(
    "ID string, `Item Description` string, `PO Sent to Vendor Date` string, `Delivered to Client Date` string,"
    " `Line Item Quantity` string, Pack_Price string, Unit_Price string, Weight string, Freight_Cost string,"
    " `Line Item Insurance (USD)` string"
)


SALES_BEGIN = "2010-12-01"
"""The first day of the sales. An earlier delivery cannot be compared with what it sold."""


def problems(conditions: dict[str, Column]) -> Column:
    """Return an array with the names of the conditions that hold."""
    named = [f.when(condition, f.lit(name)) for name, condition in conditions.items()]
    return f.array_compact(f.array(*named))


def sales_lines(sales: DataFrame) -> DataFrame:
    is_cancellation = f.col("InvoiceNo").startswith("C")
    is_product = f.col("StockCode").rlike(r"^\d{5}")
    return sales.select(
        f.col("StockCode").alias("product"),
        f.col("InvoiceDate").alias("sold_at"),
        f.col("Quantity").alias("quantity"),
        f.col("UnitPrice").alias("price"),
        problems(
            {
                "cancellation": is_cancellation,
                "negative quantity, no cancellation": (f.col("Quantity") < 0) & ~is_cancellation,
                "no price": f.col("UnitPrice") <= 0,
                "no customer": f.col("CustomerID").isNull(),
                "no description": f.col("Description").isNull(),
                "no product (postage, fees, manual)": ~is_product,
            }
        ).alias("problems"),
    )


def shipment_lines(shipments: DataFrame) -> DataFrame:
    """Type the columns. A number or a date may be a word, or a reference to another shipment."""
    delivered = f.try_to_timestamp("Delivered to Client Date", f.lit("d-MMM-yy"))
    packs, weight = f.col("Line Item Quantity").try_cast("long"), f.col("Weight").try_cast("double")
    ordered = f.col("PO Sent to Vendor Date")
    has_american_date = f.try_to_timestamp(ordered, f.lit("M/d/yy")).isNotNull()
    has_date = f.try_to_timestamp(ordered, f.lit("d-MMM-yy")).isNotNull()
    freight = f.col("Freight_Cost").try_cast("double")
    return shipments.join(f.broadcast(catalogue(shipments)), f.col("Item Description") == f.col("item"), "left").select(
        f.col("ID").alias("shipment"),
        "product",
        delivered.alias("delivered"),
        f.floor(packs / f.col("packs_per_unit")).alias("units"),
        problems(
            {
                "no date of delivery": delivered.isNull(),
                "delivered before the sales begin": delivered < SALES_BEGIN,
                "no date of the order": ~has_date & ~has_american_date,
                "American date of the order": has_american_date,
                "no weight": weight.isNull(),
                "weight in another shipment": f.col("Weight").startswith("See "),
                "no cost of freight": freight.isNull(),
                "freight in another shipment": f.col("Freight_Cost").startswith("See "),
                "no insurance": f.coalesce(f.col("Line Item Insurance (USD)"), f.lit("")) == "",
                "price of 0": f.col("Unit_Price").try_cast("double") == 0,
                "not in the catalogue": f.col("product").isNull(),
                "less than one unit": packs < f.col("packs_per_unit"),
            }
        ).alias("problems"),
    )


def catalogue(frame: DataFrame) -> DataFrame:
    """Return the catalogue: which item is supplied for which product, and in which quantity."""
    with CATALOGUE.open(newline="") as file:
        rows = [(row["stock_code"], row["item"], int(row["packs_per_unit"])) for row in csv_files.DictReader(file)]
    return frame.sparkSession.createDataFrame(rows, "product string, item string, packs_per_unit int")


ENOUGH = 0.8
"""A product is ordered again if the first week after a delivery sells at least this part of it."""
TOO_LITTLE = 0.2
"""The price of a product falls if the first week after a delivery sells less than this part of it."""
CHANGE_PERCENT = -10


def first_weeks(sales: DataFrame, shipments: DataFrame) -> DataFrame:
    """Return each delivery with the units and the revenue of its product in the seven days after it.

    Both sides have watermarks, so Spark can forget deliveries and sales: the join says how far apart they may be.
    """
    deliveries = (
        shipment_lines(shipments)
        .where(f.col("product").isNotNull() & (f.col("units") > 0) & (f.col("delivered") >= SALES_BEGIN))
        .drop("problems")
        .withWatermark("delivered", "1 day")
    )
    sold = (
        sales_lines(sales)
        .where((f.col("quantity") > 0) & (f.col("price") > 0))
        .select(f.col("product").alias("sold_product"), "sold_at", "quantity", "price")
        .withWatermark("sold_at", "1 day")
    )
    is_in_first_week = (
        (f.col("product") == f.col("sold_product"))
        & (f.col("sold_at") >= f.col("delivered"))
        & (f.col("sold_at") < f.col("delivered") + f.expr("interval 7 days"))
    )
    # A delivery without any sale must appear, too: therefore the outer join.
    return (
        deliveries.join(sold, is_in_first_week, "leftOuter")
        .groupBy(f.window("delivered", "1 day"), "shipment", "product", "units")
        .agg(
            f.coalesce(f.sum("quantity"), f.lit(0)).alias("sold"),
            f.coalesce(f.sum(f.col("quantity") * f.col("price")), f.lit(0.0)).alias("revenue"),
        )
        .select("shipment", "product", f.col("window.start").alias("delivered"), "units", "sold", "revenue")
    )


@pipeline(
    source={
        "sales": topic("retail-sales", value=SALE, options={"maxOffsetsPerTrigger": 8000}),
        "shipments": topic("retail-shipments", value=SHIPMENT, options={"maxOffsetsPerTrigger": 240}),
    },
    sink=topic(key="product"),
    dead_letters="retail-rejected",
)
def decisions(sales: DataFrame, shipments: DataFrame) -> DataFrame:
    """Each row names its topic: one query writes reorders and price adjustments, in one transaction."""
    part = f.col("sold") / f.col("units")
    reorder = f.to_json(f.struct("shipment", "delivered", "units", "sold", f.col("sold").alias("order_units")))
    adjustment = f.to_json(
        f.struct("shipment", "delivered", "units", "sold", f.lit(CHANGE_PERCENT).alias("change_percent"))
    )
    decided = first_weeks(sales, shipments).where((part >= ENOUGH) | (part < TOO_LITTLE))
    return decided.select(
        "product",
        f.when(part >= ENOUGH, "reorders").otherwise("price-adjustments").alias("topic"),
        f.when(part >= ENOUGH, reorder).otherwise(adjustment).alias("value"),
    )


@pipeline(
    source={"sales": topic("retail-sales", value=SALE), "shipments": topic("retail-shipments", value=SHIPMENT)},
    sink=topic(
        "retail-dirt",
        key=["data", "problem"],
        value=json("lines long"),
        partitions=1,
        settings={"cleanup.policy": "compact"},
    ),
    output_mode="update",
    dead_letters="retail-rejected",
)
def dirt(sales: DataFrame, shipments: DataFrame) -> DataFrame:
    """Count the lines of each problem, and all lines. A line may have several problems."""
    both = sales_lines(sales).select(f.lit("sales").alias("data"), "problems")
    both = both.union(shipment_lines(shipments).select(f.lit("shipments"), "problems"))
    named = both.select("data", f.explode(f.array_append("problems", f.lit("all lines"))).alias("problem"))
    return named.groupBy("data", "problem").agg(f.count("*").alias("lines"))
