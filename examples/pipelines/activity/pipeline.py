"""User activity: edits of Wikipedia and requests to a web site become counts, sessions and profiles.

Topics in: activity-edits, activity-requests, as JSON.
Tables out: lake/edits_by_minute, lake/edit_sessions, lake/requests_by_minute, lake/visits. Topic out: user-profiles.

Every event has two times: when it happened (`time`) and when it reached the topic (the record's timestamp). Events may
be late, and clocks may be wrong.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tidelog.pipelines import delta, json, pipeline, topic

LATENESS = "10 minutes"
"""A window or session is complete when an event comes that happened this much later. Its later events are dropped."""
PAUSE = "30 minutes"
"""A session ends after this time without an event."""

EDIT = json("time timestamp, channel string, page string, user string, isRobot boolean, added long, deleted long")
REQUEST = json("time timestamp, host string, path string, status int")


def at_arrival_if_early(events: DataFrame) -> DataFrame:
    """Replace a time in the future by the time of arrival, and set `is_early`.

    One clock that is ahead by a month would move the watermark by a month: every other event would be late.
    """
    arrival = f.col("kafka.timestamp")
    is_early = f.col("time") > arrival + f.expr("interval 5 minutes")
    return events.withColumns({"is_early": is_early, "time": f.when(is_early, arrival).otherwise(f.col("time"))})


def by_minute(events: DataFrame) -> DataFrame:
    """Count the events (page, time, is_early) of each page and minute."""
    counted = (
        events.withWatermark("time", LATENESS)
        .groupBy(f.window("time", "1 minute"), "page")
        .agg(f.count("*").alias("events"), f.count_if("is_early").alias("early"))
    )
    return counted.select(f.col("window.start").alias("minute"), "page", "events", "early")


def sessions(events: DataFrame) -> DataFrame:
    """Return the sessions of each user: events (user, page, time) without a pause of 30 minutes."""
    counted = (
        events.withWatermark("time", LATENESS)
        .groupBy(f.session_window("time", PAUSE), "user")
        .agg(f.count("*").alias("events"), f.min("time").alias("began"), f.max("time").alias("ended"))
    )
    return counted.select("user", "began", "ended", "events")


@pipeline(
    source=topic("activity-edits", value=EDIT, options={"maxOffsetsPerTrigger": 1250}),
    sink={"edits_by_minute": delta("lake/edits_by_minute"), "edit_sessions": delta("lake/edit_sessions")},
    dead_letters="activity-rejected",
)
def edits(edits: DataFrame) -> dict[str, DataFrame]:
    events = at_arrival_if_early(edits)
    return {"edits_by_minute": by_minute(events), "edit_sessions": sessions(events)}


@pipeline(
    source=topic("activity-requests", value=REQUEST),
    sink={"requests_by_minute": delta("lake/requests_by_minute"), "visits": delta("lake/visits")},
    dead_letters="activity-rejected",
)
def requests(requests: DataFrame) -> dict[str, DataFrame]:
    """A host is the best name of a user that an access log has."""
    events = at_arrival_if_early(requests.withColumnsRenamed({"host": "user", "path": "page"}))
    return {"requests_by_minute": by_minute(events), "visits": sessions(events)}


PROFILE = json("is_robot boolean, edits long, added long, deleted long, first_edit timestamp, last_edit timestamp")


@pipeline(
    source=topic("activity-edits", value=EDIT),
    sink=topic("user-profiles", key="user", value=PROFILE, partitions=1, settings={"cleanup.policy": "compact"}),
    output_mode="update",
    dead_letters="activity-rejected",
)
def profiles(edits: DataFrame) -> DataFrame:
    """Keep a profile of each user up to date. In the compacted topic the latest profile of a user remains.

    There is no watermark: Spark keeps the state of every user, and no edit is too late for a profile.
    """
    events = at_arrival_if_early(edits)
    return events.groupBy("user").agg(
        f.bool_or("isRobot").alias("is_robot"),
        f.count("*").alias("edits"),
        f.sum("added").alias("added"),
        f.sum("deleted").alias("deleted"),
        f.min("time").alias("first_edit"),
        f.max("time").alias("last_edit"),
    )
