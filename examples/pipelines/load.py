"""Loads the excerpts of data/ into the topics that the pipelines read. Each topic is created, and filled once.

    python examples/pipelines/load.py logs|activity|retail|metrics [HOST:PORT]

The timestamp of a record is the time at which the event was reported, as a shipper of logs or a till would set it.
Topics keep their records for ever, because the events are years old: with the default retention of a week, the
broker would delete them.
"""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

DATA = Path(__file__).resolve().parent / "data"


class Outgoing(NamedTuple):
    topic: str
    key: str
    value: bytes
    time: datetime


def content(name: str) -> bytes:
    return gzip.decompress((DATA / name).read_bytes())


def utc(text: str, pattern: str) -> datetime:
    return datetime.strptime(text, pattern).replace(tzinfo=UTC)


def logs() -> Iterator[Outgoing]:
    for name, source, key, time_of in (
        ("apache_access.log.gz", "apache", "semicomplete.com", apache_time),
        ("nasa_access.tsv.gz", "nasa", "ksc.nasa.gov", nasa_time),
        ("ssh_auth.log.gz", "ssh", "ip-10-77-20-248", ssh_time),
    ):
        time = None
        for line in content(name).splitlines():
            time = time_of(line.decode()) or time
            yield Outgoing(f"logs-{source}", key, line, time or datetime(1995, 7, 1, tzinfo=UTC))
    # One shipper follows all files of a broker, so their lines arrive in the order of time.
    lines = [line for name in ("server_16", "controller_18", "server_20") for line in kafka_lines(name)]
    yield from sorted(lines, key=lambda line: line.time)


def apache_time(line: str) -> datetime:
    return datetime.strptime(line.split("[")[1].split("]")[0], "%d/%b/%Y:%H:%M:%S %z")


def nasa_time(line: str) -> datetime | None:
    seconds = line.split("\t")[2]
    return datetime.fromtimestamp(int(seconds), UTC) if seconds.isdigit() else None


def ssh_time(line: str) -> datetime:
    return utc("2016 " + line[:15], "%Y %b %d %H:%M:%S")


def kafka_lines(name: str) -> Iterator[Outgoing]:
    """Yield the lines of a file. A line without a time has the time of the line before."""
    lines = content(f"kafka_{name}.log.gz").decode().splitlines()
    times = [re.match(r"\[(\d{4}-\d\d-\d\d [\d:]{8},\d{3})\]", line) for line in lines]
    time = next(utc(found[1], "%Y-%m-%d %H:%M:%S,%f") for found in times if found)
    for line, found in zip(lines, times, strict=True):
        time = utc(found[1], "%Y-%m-%d %H:%M:%S,%f") if found else time
        yield Outgoing("logs-kafka", f"{name}.log", line.encode(), time)


FILE_DAY = datetime(2015, 9, 12, tzinfo=UTC)


def activity() -> Iterator[Outgoing]:
    """Yield edits and requests. Some edits wait before they are sent, as those of a phone without a network do.

    All edits happened on one day, but the file has 45 wrong dates. Every fortieth edit arrives 5 minutes late, and
    every hundredth 3 hours. Which edits these are depends only on their bytes.
    """
    edits = []
    for line in content("wikipedia_edits.jsonl.gz").splitlines():
        edit = json.loads(line)
        happened = datetime.fromisoformat(edit["time"])
        checksum = zlib.crc32(line)
        delay = timedelta(hours=3) if checksum % 100 == 0 else timedelta(minutes=5 * (checksum % 40 == 0))
        arrival = datetime.combine(FILE_DAY, happened.timetz()) + delay
        edits.append(Outgoing("activity-edits", edit["channel"], line, arrival))
    yield from sorted(edits, key=lambda edit: edit.time)
    for row in csv.DictReader(io.StringIO(content("nasa_access.tsv.gz").decode()), delimiter="\t"):
        time = datetime.fromtimestamp(int(row["time"]), UTC)
        request = {"time": time.isoformat(), "host": row["host"], "path": row["url"], "status": int(row["response"])}
        yield Outgoing("activity-requests", row["host"], json.dumps(request).encode(), time)


def retail() -> Iterator[Outgoing]:
    """Yield the lines of sales with the title line, which is no sale, and shipments in the order of their delivery."""
    title, *lines = content("online_retail.csv.gz").splitlines()
    yield Outgoing("retail-sales", "", title, datetime(2010, 12, 1, tzinfo=UTC))
    for line in lines:
        [row] = csv.reader([line.decode()])
        yield Outgoing("retail-sales", row[1], line, utc(row[4], "%Y-%m-%d %H:%M:%S"))
    file = io.StringIO(content("scms_shipments.csv.gz").decode("utf-8-sig"), newline="")
    shipments = [
        Outgoing(
            "retail-shipments", row["ID"], json.dumps(row).encode(), utc(row["Delivered to Client Date"], "%d-%b-%y")
        )
        for row in csv.DictReader(file)
    ]
    yield from sorted(shipments, key=lambda shipment: shipment.time)


def metrics() -> Iterator[Outgoing]:
    """Yield the readings of all series in the order of time, and the lines of the room with their title line."""
    readings = []
    for line in content("nab_series.csv.gz").splitlines()[1:]:
        series, time, _ = line.decode().split(",")
        readings.append(Outgoing("metrics-series", series, line, utc(time, "%Y-%m-%d %H:%M:%S")))
    yield from sorted(readings, key=lambda reading: reading.time)
    title, *lines = content("occupancy.txt.gz").splitlines()
    times = [utc(line.decode().split(",")[1].strip('"'), "%Y-%m-%d %H:%M:%S") for line in lines]
    yield Outgoing("metrics-room", "room", title, times[0])
    yield from (Outgoing("metrics-room", "room", line, time) for line, time in zip(lines, times, strict=True))


SETS = {"logs": logs, "activity": activity, "retail": retail, "metrics": metrics}
WRITTEN_TOPICS = {"retail": ["reorders", "price-adjustments"]}
"""Topics that a pipeline chooses row by row must exist before it runs."""


def load(name: str, bootstrap: str) -> dict[str, int]:
    """Create and fill the topics of one data set. Return their numbers of records."""
    records = list(SETS[name]())
    counts = {
        topic: sum(record.topic == topic for record in records) for topic in dict.fromkeys(r.topic for r in records)
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [*counts, *WRITTEN_TOPICS.get(name, [])]
    topics = [NewTopic(topic, 1, config={"retention.ms": "-1"}) for topic in names]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number, record in enumerate(records):
        time_ms = (record.time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        producer.produce(record.topic, key=record.key, value=record.value, timestamp=time_ms)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(60) != 0:
        raise SystemExit(f"{bootstrap}: records were not acknowledged within 60 s; is the broker running?")
    return counts


if __name__ == "__main__":
    for topic, count in load(sys.argv[1], (sys.argv[2:] or ["127.0.0.1:9092"])[0]).items():
        print(f"{topic}: {count} records")
