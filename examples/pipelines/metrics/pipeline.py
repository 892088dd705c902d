"""Metrics: readings of servers, roads and a room become windows, anomalies and an answer to "is somebody there?".

Topics in: metrics-series, metrics-room: lines of CSV.
Tables out: lake/metrics_by_hour, lake/room_by_5_minutes. Topic out: anomalies.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState

from tidelog.pipelines import csv, delta, json, pipeline, topic

TIMES = {"timestampFormat": "yyyy-MM-dd HH:mm:ss"}
READING = csv("series string, time timestamp, value double", TIMES)

# A series is unusual when a reading is far from the average of the recent past, compared with the usual distance.

LEARNING_READINGS = 288
"""The first readings of a series, a day at one in five minutes, only teach what is usual."""
WEIGHT = 0.005
"""Weight of a new reading in the moving average and variance: the past of about 200 readings counts."""
DISTANCE = 5.0
"""A reading is unusual at this number of standard deviations from the average."""
SILENCE_S = 4 * 3600
"""A series causes at most one alert in this time."""

ANOMALIES = "series string, time timestamp, value double, usual double, deviation double"
STATE = "readings long, average double, variance double, alerted_at long"
NO_STATE = (0, 0.0, 0.0, -SILENCE_S)

State = tuple[int, float, float, int]


def detect(readings: Iterable[tuple[int, float]], state: State) -> tuple[list[tuple[int, float, float, float]], State]:
    """Return the alerts (time, value, average, standard deviation) of one series, and its next state.

    Times are in seconds. An unusual reading moves the average only as far as the limit of what is usual.
    """
    alerts = []
    count, average, variance, alerted_at = state
    for time, value in readings:
        if count == 0:
            average = value
        deviation = variance**0.5
        difference = value - average
        limit = DISTANCE * max(deviation, 0.001 * abs(average))
        if count >= LEARNING_READINGS and abs(difference) > limit:
            if time - alerted_at >= SILENCE_S:
                alerts.append((time, value, average, deviation))
                alerted_at = time
            difference = max(-limit, min(limit, difference))
        average += WEIGHT * difference
        variance = (1 - WEIGHT) * (variance + WEIGHT * difference**2)
        count += 1
    return alerts, (count, average, variance, alerted_at)


def alerts_of_series(
    key: tuple[Any, ...], batches: Iterator[pandas.DataFrame], state: GroupState
) -> Iterator[pandas.DataFrame]:
    new = pandas.concat(list(batches)).sort_values("offset")
    seconds = new["time"].map(pandas.Timestamp.timestamp).astype("int64")
    alerts, after = detect(zip(seconds, new["value"], strict=True), state.get if state.exists else NO_STATE)
    state.update(after)
    rows = [(key[0], pandas.Timestamp(time, unit="s"), *numbers) for time, *numbers in alerts]
    yield pandas.DataFrame(rows, columns=["series", "time", "value", "usual", "deviation"])


def anomalies(readings: DataFrame) -> DataFrame:
    in_order = readings.select("series", "time", "value", f.col("kafka.offset").alias("offset"))
    return in_order.groupBy("series").applyInPandasWithState(alerts_of_series, ANOMALIES, STATE, "append", "NoTimeout")


def by_hour(readings: DataFrame) -> DataFrame:
    """Summarise each hour of a series. Its number of readings shows gaps and repeated readings."""
    summary = (
        readings.withWatermark("time", "1 hour")
        .groupBy(f.window("time", "1 hour"), "series")
        .agg(
            f.count("*").alias("readings"),
            f.avg("value").alias("average"),
            f.min("value").alias("lowest"),
            f.max("value").alias("highest"),
        )
    )
    return summary.select("series", f.col("window.start").alias("hour"), "readings", "average", "lowest", "highest")


@pipeline(
    source=topic("metrics-series", value=READING, options={"maxOffsetsPerTrigger": 20_000}),
    sink={
        "by_hour": delta("lake/metrics_by_hour"),
        "anomalies": topic("anomalies", key="series", value=json(ANOMALIES), partitions=1),
    },
    dead_letters="metrics-rejected",
)
def metrics(readings: DataFrame) -> dict[str, DataFrame]:
    return {"by_hour": by_hour(readings), "anomalies": anomalies(readings)}


ROOM = csv(
    "number int, time timestamp, temperature double, humidity double, light double, co2 double, humidity_ratio double,"
    " occupancy int",
    TIMES,
)
BRIGHT_LUX = 365
"""Light above which the room counts as occupied, found on the publishers' training data, not on the data used here."""


@pipeline(
    source=topic("metrics-room", value=ROOM),
    sink=delta("lake/room_by_5_minutes"),
    dead_letters="metrics-rejected",
)
def room(readings: DataFrame) -> DataFrame:
    """Compare with the label: `was_occupied` is what a person noted in these five minutes."""
    windows = (
        readings.withWatermark("time", "10 minutes")
        .groupBy(f.window("time", "5 minutes"))
        .agg(
            f.count("*").alias("readings"),
            f.avg("light").alias("light"),
            f.avg("co2").alias("co2"),
            (f.max("occupancy") == 1).alias("was_occupied"),
        )
    )
    return windows.select(
        f.col("window.start").alias("began"),
        "readings",
        "light",
        "co2",
        (f.col("light") > BRIGHT_LUX).alias("is_occupied"),
        "was_occupied",
    )
