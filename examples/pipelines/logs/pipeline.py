"""Log collection: access logs, logins and a broker's own log become typed tables; attacks on logins become alerts.

Topics in: logs-apache, logs-nasa, logs-ssh, logs-kafka: one line of text for each record.
Tables out: lake/requests, lake/logins, lake/broker_events. Topics out: login-alerts, logs-rejected.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from pyspark_tidelog.formats import Format
from tidelog.pipelines import delta, json, pipeline, topic


@dataclass(frozen=True)
class Lines(Format):
    """A format of a topic: lines of text that match a pattern, with a named group for each field.

    A group with nothing but `-` is null. A line that does not match, or whose field cannot be converted, has an error:
    its record goes to the topic of dead letters.
    """

    pattern: str
    fields: str
    """Names and types, as in `host string, status int`, in the order of the groups."""
    conversions: Mapping[str, Callable[[str], Any]]
    """From the text of a field to its value, for the fields that are not strings."""

    def describe(self) -> str:
        return "lines"

    @property
    def schema(self) -> StructType:
        return StructType.fromDDL(self.fields)

    def parse(self, line: bytes | None) -> tuple[tuple[Any, ...] | None, str | None]:
        """Return the fields of a line and null, or null and the reason why there are none."""
        match = re.fullmatch(self.pattern, (line or b"").decode(errors="replace"))
        if match is None:
            return None, "the line does not match the pattern"
        record = []
        for name, text in match.groupdict().items():
            convert = self.conversions.get(name, str)
            try:
                record.append(None if text in (None, "-") else convert(text))
            except ValueError as error:
                return None, f"{name}: {error}"
        return tuple(record), None

    def decode(self, value: Column) -> Column:
        result = StructType().add("record", self.schema).add("error", "string")
        return f.udf(self.parse, result, useArrow=True)(value)

    def encode(self, record: Column) -> Column:
        raise NotImplementedError("logs are only read")


# 1. Access logs of two servers, in two patterns, in one table


def apache_time(text: str) -> datetime:
    return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC)


def epoch_time(text: str) -> datetime:
    return datetime.fromtimestamp(int(text), UTC)


APACHE = Lines(
    r'(?P<host>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<method>[A-Z]+) (?P<path>\S+) [^"]*" (?P<status>\d{3})'
    r' (?P<bytes>\d+|-) "(?P<referer>[^"]*)" "(?P<agent>[^"]*)"',
    "host string, user string, time timestamp, method string, path string, status int, bytes long, referer string,"
    " agent string",
    {"time": apache_time, "status": int, "bytes": int},
)
NASA = Lines(
    r"(?P<host>[^\t]+)\t[^\t]*\t(?P<time>\d+)\t(?P<method>[A-Z]+)\t(?P<path>[^\t]+)\t(?P<status>\d{3})\t(?P<bytes>\d+|-)"
    r"\t[^\t]*\t[^\t]*",
    "host string, time timestamp, method string, path string, status int, bytes long",
    {"time": epoch_time, "status": int, "bytes": int},
)


@pipeline(
    source={"apache": topic("logs-apache", value=APACHE), "nasa": topic("logs-nasa", value=NASA)},
    sink=delta("lake/requests"),
    dead_letters="logs-rejected",
)
def requests(apache: DataFrame, nasa: DataFrame) -> DataFrame:
    both = apache.withColumn("site", f.lit("apache")).unionByName(
        nasa.withColumn("site", f.lit("nasa")), allowMissingColumns=True
    )
    return both.drop("kafka")


# 2. Logins by SSH, and alerts

SYSLOG = Lines(
    r"(?P<month_to_second>[A-Z][a-z]{2} +\d+ [\d:]{8}) (?P<host>\S+) (?P<program>[\w-]+)(?:\[(?P<pid>\d+)\])?:"
    r" (?P<message>.*)",
    "month_to_second string, host string, program string, pid int, message string",
    {"pid": int},
)
LOGIN = r"(Failed|Accepted) (\w+) for (invalid user )?(.*) from (\S+) port (\d+) ssh2"
REPEATED = r"^message repeated (\d+) times: "


def logins(ssh: DataFrame) -> DataFrame:
    """Return the attempts to log in. A line may stand for several of them: `message repeated 5 times: [ ... ]`."""
    # Syslog does not write the year. It is the year in which the line arrived, or the year before.
    arrival = f.col("kafka.timestamp")
    year = f.year(arrival)

    def in_year(number: Column) -> Column:
        text = f.concat_ws(" ", number, f.regexp_replace("month_to_second", " +", " "))
        return f.try_to_timestamp(text, f.lit("yyyy MMM d HH:mm:ss"))

    is_this_year = in_year(year) <= arrival + f.expr("interval 1 day")
    message = f.col("message")
    attempts = ssh.where((f.col("program") == "sshd") & message.rlike(LOGIN))
    return attempts.select(
        f.when(is_this_year, in_year(year)).otherwise(in_year(year - 1)).alias("time"),
        f.col("kafka.offset").alias("offset"),
        "host",
        f.lower(f.regexp_extract(message, LOGIN, 1)).alias("result"),
        f.regexp_extract(message, LOGIN, 2).alias("method"),
        f.regexp_extract(message, LOGIN, 4).alias("user"),
        (f.regexp_extract(message, LOGIN, 3) != "").alias("is_unknown_user"),
        f.regexp_extract(message, LOGIN, 5).alias("address"),
        f.coalesce(f.regexp_extract(message, REPEATED, 1).try_cast("int"), f.lit(1)).alias("times"),
    )


FAILURES = 5
"""This number of failed logins from one address ..."""
WITHIN_S = 600
"""... within this time is a brute-force attack."""
SILENCE_S = 3600
"""An address causes one alert of an attack within this time. A login that succeeds within it is a break-in."""

ALERTS = "address string, alert string, time timestamp, failures int"
ALERT_STATE = "failures string, attacked_at long"
"""The times of the failures are text with spaces: in Spark 4.3 the state of a pandas function cannot have arrays."""


def detect(
    attempts: Iterable[tuple[int, str, int]], failures: list[int], attacked_at: int
) -> tuple[list[tuple[str, int, int]], list[int], int]:
    """Return the alerts (name, time, failures) of one address, and its next state.

    An attempt is (time, result, times), in the order of the log; times are in seconds. The state is the times of recent
    failures, and the time of the last alert.
    """
    alerts = []
    for time, result, times in attempts:
        failures = [failure for failure in failures if failure > time - WITHIN_S]
        if result == "failed":
            failures += [time] * times
            if len(failures) >= FAILURES and time - attacked_at > SILENCE_S:
                alerts.append(("brute force", time, len(failures)))
                attacked_at = time
        elif time - attacked_at <= SILENCE_S:
            alerts.append(("break-in", time, len(failures)))
    return alerts, failures, attacked_at


def alerts_of_address(
    key: tuple[Any, ...], batches: Iterator[pandas.DataFrame], state: GroupState
) -> Iterator[pandas.DataFrame]:
    """Continue with the state of one address. Spark calls this once in a micro-batch for each address."""
    if state.hasTimedOut:
        state.remove()
        return
    new = pandas.concat(list(batches)).sort_values("offset")
    seconds = new["time"].astype("datetime64[s, UTC]" if new["time"].dt.tz else "datetime64[s]").astype("int64")
    failures_text, attacked_at = state.get if state.exists else ("", -SILENCE_S - 1)
    failures = [int(failure) for failure in failures_text.split()]
    attempts = zip(seconds, new["result"], new["times"], strict=True)
    alerts, failures, attacked_at = detect(attempts, failures, attacked_at)
    state.update((" ".join(map(str, failures)), attacked_at))
    state.setTimeoutTimestamp((int(seconds.max()) + SILENCE_S) * 1000)
    rows = [(key[0], name, pandas.Timestamp(time, unit="s"), number) for name, time, number in alerts]
    yield pandas.DataFrame(rows, columns=["address", "alert", "time", "failures"])


def alerts(attempts: DataFrame) -> DataFrame:
    return (
        attempts.withWatermark("time", "10 minutes")
        .groupBy("address")
        .applyInPandasWithState(alerts_of_address, ALERTS, ALERT_STATE, "append", "EventTimeTimeout")
    )


@pipeline(
    source=topic("logs-ssh", value=SYSLOG),
    sink={
        "logins": delta("lake/logins"),
        "alerts": topic("login-alerts", key="address", value=json(ALERTS), partitions=1),
    },
    dead_letters="logs-rejected",
)
def ssh(lines: DataFrame) -> dict[str, DataFrame]:
    attempts = logins(lines)
    return {"logins": attempts, "alerts": alerts(attempts)}


# 3. The log of a Kafka broker: an event may have several lines

FIRST_LINE = r"^\[\d{4}-\d\d-\d\d [\d:,]+\] "
BROKER = Lines(
    r"(?s)\[(?P<time>[^\]]+)\] (?P<level>[A-Z]+) (?P<message>.*?) \((?P<logger>[\w.$]+)\)(?:\n(?P<details>.*))?",
    "time timestamp, level string, message string, logger string, details string",
    {"time": lambda text: datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC)},
)
EVENT_COLUMNS = ["file", "offset", "text", "reason", "time", "level", "message", "logger", "details"]
EVENT = f"file string, offset long, text string, reason string, {BROKER.fields}"


def join_lines(
    key: tuple[Any, ...], batches: Iterator[pandas.DataFrame], state: GroupState
) -> Iterator[pandas.DataFrame]:
    """Join the lines of each event of one file, and parse it. An event is complete when the next one begins, or a
    minute later.

    The state is the offset and the text of the event that is not complete yet.
    """
    events: list[tuple[int, str]] = []
    offset, text = state.get if state.exists else (-1, "")
    if state.hasTimedOut:
        events.append((offset, text))
        state.remove()
    else:
        new = pandas.concat(list(batches)).sort_values("offset")
        for line_offset, line in zip(new["offset"], new["line"], strict=True):
            if offset >= 0 and not re.match(FIRST_LINE, line):
                text += "\n" + line
                continue
            if offset >= 0:
                events.append((offset, text))
            offset, text = line_offset, line
        state.update((int(offset), text))
        state.setTimeoutTimestamp(int(new["timestamp"].max().timestamp() * 1000) + 60_000)
    rows = []
    for event_offset, event_text in events:
        record, reason = BROKER.parse(event_text.encode())
        time, *others = record or (None,) * 5
        # pandas functions return times of the session's zone, which is UTC, without a zone.
        rows.append((key[0], event_offset, event_text, reason, time and time.replace(tzinfo=None), *others))
    yield pandas.DataFrame(rows, columns=EVENT_COLUMNS)


def joined(lines: DataFrame) -> DataFrame:
    text = lines.select(
        f.col("key").cast("string").alias("file"), "offset", "timestamp", f.col("value").cast("string").alias("line")
    )
    return (
        text.withWatermark("timestamp", "1 minute")
        .groupBy("file")
        .applyInPandasWithState(join_lines, EVENT, "offset long, text string", "append", "EventTimeTimeout")
    )


@pipeline(
    source=topic("logs-kafka", options={"maxOffsetsPerTrigger": 1000}),
    sink={"events": delta("lake/broker_events"), "rejected": topic("logs-rejected", partitions=1)},
)
def broker(lines: DataFrame) -> dict[str, DataFrame]:
    """An event without a first line is rejected: a file may begin in the middle of a stack trace."""
    events = joined(lines)
    reason = f.col("reason")
    return {
        "events": events.where(reason.isNull()).drop("text", "reason"),
        "rejected": events.where(reason.isNotNull()).select(
            f.col("file").alias("key"),
            f.to_json(f.struct("file", "offset", "reason", "text")).alias("value"),
        ),
    }
