"""The pipelines of metrics: windows and anomalies, compared with computations on the raw files and with the labels."""

import gzip
import json
import math
from typing import TYPE_CHECKING

import numpy
import pandas
import pytest

from pipelines_harness import DATA, Example, read_json, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def metrics(spark: "SparkSession", bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example("metrics", spark, bootstrap, tmp_path_factory.mktemp("metrics"))


def raw_readings() -> pandas.DataFrame:
    return pandas.read_csv(DATA / "nab_series.csv.gz", parse_dates=["timestamp"], float_precision="round_trip")


def test_hours_of_each_series(metrics: Example) -> None:
    readings = raw_readings()
    hours = readings.groupby(["series", readings["timestamp"].dt.floor("h").rename("hour")])["value"]
    expected = hours.agg(["size", "mean", "min", "max"]).reset_index()
    is_complete = expected["hour"] + pandas.Timedelta("1h") <= readings["timestamp"].max() - pandas.Timedelta("1h")
    expected = expected[is_complete].reset_index(drop=True)
    found = metrics.table("lake/metrics_by_hour").sort_values(["series", "hour"]).reset_index(drop=True)
    pandas.testing.assert_frame_equal(
        found, expected.set_axis(found.columns, axis=1), check_dtype=False, check_exact=False, rtol=1e-12
    )
    stated = metrics.stated()
    assert stated["readings"] == len(readings)
    assert stated["hours"] == len(found)
    assert stated["hours with more than 12 readings"] == (found["readings"] > 12).sum()
    assert len(metrics.batch_ends("metrics", "by_hour", "metrics-series")) >= 3


def expected_anomalies() -> list[tuple[str, pandas.Timestamp, float]]:
    """Exponentially weighted averages, written down again from the description in the README."""
    alerts = []
    for series, group in raw_readings().groupby("series"):
        group = group.sort_values("timestamp", kind="stable")
        average = group["value"].iloc[0]
        variance = 0.0
        quiet_until = pandas.Timestamp.min
        for number, (time, value) in enumerate(zip(group["timestamp"], group["value"], strict=True)):
            usual = 5 * max(math.sqrt(variance), abs(average) / 1000)
            error = value - average
            if number >= 288 and abs(error) > usual:
                if time >= quiet_until:
                    alerts.append((series, time, value))
                    quiet_until = time + pandas.Timedelta("4h")
                error = math.copysign(usual, error)
            average += error / 200
            variance = 0.995 * (variance + error * error / 200)
    return sorted(alerts)


def test_anomalies_with_precision_and_recall(metrics: Example) -> None:
    messages = read_topic(metrics.bootstrap, "anomalies")
    values = read_json(metrics.bootstrap, "anomalies")
    found = sorted(
        (message.key().decode(), pandas.Timestamp(value["time"]).tz_localize(None), value["value"])
        for message, value in zip(messages, values, strict=True)
    )
    assert found == expected_anomalies()
    labels = {
        series: [(pandas.Timestamp(begin), pandas.Timestamp(end)) for begin, end in windows]
        for series, windows in json.loads((DATA / "nab_labels.json").read_text()).items()
    }
    hits = [any(begin <= time <= end for begin, end in labels[series]) for series, time, _ in found]
    detected = [
        any(name == series and begin <= time <= end for name, time, _ in found)
        for series, windows in labels.items()
        for begin, end in windows
    ]
    stated = metrics.stated()
    assert stated["alerts"] == len(found)
    assert stated["alerts within a labelled window (true)"] == sum(hits)
    assert stated["labelled windows"] == len(detected)
    assert stated["labelled windows with an alert (detected)"] == sum(detected)
    assert stated["precision of the alerts"] == pytest.approx(numpy.mean(hits), abs=0.005)
    assert stated["recall of the labelled windows"] == pytest.approx(numpy.mean(detected), abs=0.005)


def test_occupancy_of_the_room(metrics: Example) -> None:
    # pandas takes the first of the eight columns, which has no title, as the index.
    readings = pandas.read_csv(DATA / "occupancy.txt.gz", parse_dates=["date"])
    windows = readings.groupby(readings["date"].dt.floor("5min")).agg(
        readings=("Light", "size"), light=("Light", "mean"), co2=("CO2", "mean"), was_occupied=("Occupancy", "max")
    )
    watermark = readings["date"].max() - pandas.Timedelta("10min")
    windows = windows[windows.index + pandas.Timedelta("5min") <= watermark]
    found = metrics.table("lake/room_by_5_minutes").sort_values("began").set_index("began")
    assert list(found.index) == list(windows.index)
    assert list(found["readings"]) == list(windows["readings"])
    assert list(found["was_occupied"]) == list(windows["was_occupied"] == 1)
    numpy.testing.assert_allclose(found[["light", "co2"]], windows[["light", "co2"]], rtol=1e-12)
    predicted, actual = windows["light"] > 365, windows["was_occupied"] == 1
    assert list(found["is_occupied"]) == list(predicted)
    stated = metrics.stated()
    assert stated["windows of the room"] == len(windows)
    assert stated["precision of the occupancy"] == pytest.approx(
        (predicted & actual).sum() / predicted.sum(), abs=0.005
    )
    assert stated["recall of the occupancy"] == pytest.approx((predicted & actual).sum() / actual.sum(), abs=0.005)


def test_the_title_of_the_room_file_is_the_only_dead_letter(metrics: Example) -> None:
    [message] = read_topic(metrics.bootstrap, "metrics-rejected")
    assert message.value() == gzip.decompress((DATA / "occupancy.txt.gz").read_bytes()).splitlines()[0]
    assert dict(message.headers())["topic"] == b"metrics-room"
