"""The pipelines of user activity: counts, sessions and profiles, compared with computations on the raw files.

Which late events Spark drops depends on where its micro-batches end. `batches` repeats its rules on the real ends.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas
import pytest

from pipelines_harness import DATA, Example, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATENESS = pandas.Timedelta("10min")
PAUSE = pandas.Timedelta("30min")
NEVER = pandas.Timestamp.min


@pytest.fixture(scope="module")
def activity(spark: "SparkSession", bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example("activity", spark, bootstrap, tmp_path_factory.mktemp("activity"))


def raw_edits() -> pandas.DataFrame:
    """The edits in the order of their arrival, with the delays that the loader adds. Early times are replaced."""
    lines = gzip.decompress((DATA / "wikipedia_edits.jsonl.gz").read_bytes()).splitlines()
    edits = pandas.DataFrame([json.loads(line) for line in lines])
    happened = pandas.to_datetime(edits["time"]).dt.tz_localize(None)
    checksums = pandas.Series([zlib.crc32(line) for line in lines])
    delay = pandas.to_timedelta((checksums % 40 == 0) * 5, unit="min").where(
        checksums % 100 != 0, pandas.Timedelta("3h")
    )
    arrival = pandas.Timestamp("2015-09-12") + (happened - happened.dt.normalize()) + delay
    edits["is_early"] = happened > arrival + pandas.Timedelta("5min")
    edits["time"] = happened.where(~edits["is_early"], arrival)
    return edits.loc[arrival.sort_values(kind="stable").index].reset_index(drop=True)


def raw_requests() -> pandas.DataFrame:
    lines = gzip.decompress((DATA / "nasa_access.tsv.gz").read_bytes()).decode().splitlines()[1:]
    table = pandas.DataFrame([line.split("\t") for line in lines])
    times = pandas.to_datetime(table[2].astype(int), unit="s")
    return pandas.DataFrame({"time": times, "user": table[0], "page": table[4], "is_early": False})


class Batch:
    """The events of one micro-batch, the watermark below which they are late, and the one that completes windows."""

    def __init__(self, events: pandas.DataFrame, late: pandas.Timestamp, complete: pandas.Timestamp) -> None:
        self.events, self.late, self.complete = events, late, complete


def batches(events: pandas.DataFrame, ends: list[int]) -> Iterator[Batch]:
    """A micro-batch completes windows by the highest time before it, and drops by the watermark of the one before."""
    begin, late, highest = 0, NEVER, NEVER
    for end in ends:
        complete = highest - LATENESS if highest > NEVER else NEVER
        yield Batch(events.iloc[begin:end], late, complete)
        highest = max([highest, *events["time"].iloc[begin:end]])
        begin, late = end, complete


def expected_counts(events: pandas.DataFrame, ends: list[int]) -> tuple[pandas.DataFrame, int]:
    """Return the complete windows, and the number of events that were dropped."""
    minute = events["time"].dt.floor("min")
    kept = []
    for batch in batches(events, ends):
        kept.append(batch.events[minute[batch.events.index] + pandas.Timedelta("1min") > batch.late])
        complete = batch.complete
    counted = pandas.concat(kept)
    windows = counted.groupby([minute[counted.index].rename("minute"), "page"])["is_early"].agg(["size", "sum"])
    windows = windows.reset_index().rename(columns={"size": "events", "sum": "early"})
    return windows[windows["minute"] + pandas.Timedelta("1min") <= complete], len(events) - len(counted)


def expected_sessions(
    events: pandas.DataFrame, ends: list[int]
) -> list[tuple[str, pandas.Timestamp, pandas.Timestamp, int]]:
    """Merge the events of each user, micro-batch by micro-batch: a session that has ended is not continued."""
    finished = []
    open_sessions: dict[str, list[list[pandas.Timestamp]]] = {}
    for batch in batches(events, ends):
        in_time = batch.events[batch.events["time"] + PAUSE > batch.late]
        for event in in_time.itertuples():
            sessions = open_sessions.setdefault(event.user, [])
            near = [s for s in sessions if s[0] - PAUSE < event.time < s[-1] + PAUSE]
            merged = sorted([event.time, *(time for session in near for time in session)])
            open_sessions[event.user] = [s for s in sessions if s not in near] + [merged]
        for user, sessions in open_sessions.items():
            ended = [s for s in sessions if s[-1] + PAUSE <= batch.complete]
            finished += [(user, s[0], s[-1], len(s)) for s in ended]
            open_sessions[user] = [s for s in sessions if s not in ended]
    return sorted(finished)


def table_of_counts(activity: Example, path: str) -> list[tuple[object, ...]]:
    found = activity.table(path)[["minute", "page", "events", "early"]]
    return sorted(found.itertuples(index=False, name=None))


@pytest.mark.parametrize("data", ["edits", "requests"])
def test_counts_by_page_and_minute(activity: Example, data: str) -> None:
    events = raw_edits() if data == "edits" else raw_requests()
    ends = activity.batch_ends(data, f"{data}_by_minute", f"activity-{data}")
    assert ends[-1] == len(events)
    windows, dropped = expected_counts(events, ends)
    expected = sorted(windows[["minute", "page", "events", "early"]].itertuples(index=False, name=None))
    assert table_of_counts(activity, f"lake/{data}_by_minute") == expected
    stated = activity.stated()
    assert stated[f"{data}"] == len(events)
    assert stated[f"{data} counted in complete minutes"] == windows["events"].sum()
    assert stated[f"{data} dropped because they were late"] == dropped
    if data == "edits":
        assert stated["edits with a time in the future"] == events["is_early"].sum()
        assert len(ends) >= 4
        assert dropped > 0


@pytest.mark.parametrize(("data", "table"), [("edits", "edit_sessions"), ("requests", "visits")])
def test_sessions(activity: Example, data: str, table: str) -> None:
    events = raw_edits() if data == "edits" else raw_requests()
    expected = expected_sessions(events, activity.batch_ends(data, table, f"activity-{data}"))
    found = activity.table(f"lake/{table}")[["user", "began", "ended", "events"]]
    assert sorted(found.itertuples(index=False, name=None)) == expected
    assert activity.stated()[f"sessions of {data}"] == len(expected)


def test_the_latest_profile_of_each_user_counts_all_edits(activity: Example) -> None:
    edits = raw_edits()
    expected = edits.groupby("user").agg(
        is_robot=("isRobot", "any"), edits=("user", "size"), added=("added", "sum"), deleted=("deleted", "sum"),
        first_edit=("time", "min"), last_edit=("time", "max"),
    )  # fmt: skip
    profiles = {
        message.key().decode(): json.loads(message.value())
        for message in read_topic(activity.bootstrap, "user-profiles")
    }
    found = pandas.DataFrame.from_dict(profiles, orient="index")
    for column in ("first_edit", "last_edit"):
        found[column] = pandas.to_datetime(found[column], format="ISO8601").dt.tz_localize(None)
    found = found[list(expected.columns)].sort_index()
    pandas.testing.assert_frame_equal(found, expected.sort_index(), check_names=False, check_dtype=False)
    assert activity.stated()["users with a profile"] == len(expected)


def test_the_topic_of_profiles_is_compacted(activity: Example) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, "user-profiles")
    admin = AdminClient({"bootstrap.servers": activity.bootstrap})  # without a name it is closed before the answer
    [answer] = admin.describe_configs([resource]).values()
    assert answer.result(30)["cleanup.policy"].value == "compact"
