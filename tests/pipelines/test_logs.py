"""The pipelines of logs: tables, alerts and dead letters, compared with computations on the raw files."""

import gzip
import re
from typing import TYPE_CHECKING, Any

import pandas
import pytest

from pipelines_harness import DATA, Example, read_json, read_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NASA_COLUMNS = ["host", "logname", "time", "method", "url", "response", "bytes", "referer", "agent"]
"""The title line of the file names only the first seven."""
KAFKA_FILES = ("server_16", "controller_18", "server_20")


@pytest.fixture(scope="module")
def logs(spark: "SparkSession", bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Example:
    return Example("logs", spark, bootstrap, tmp_path_factory.mktemp("logs"))


def lines(name: str) -> list[str]:
    return gzip.decompress((DATA / name).read_bytes()).decode().splitlines()


def raw_requests() -> pandas.DataFrame:
    """Both access logs, read with pandas. The only unfinished line of Apache's is left out."""
    apache = pandas.Series(lines("apache_access.log.gz"))
    whole = apache[apache.str.count('"') == 6]
    before, request, after = (whole.str.split('"').str[part] for part in (0, 1, 2))
    times = before.str.extract(r"\[(.*)\]", expand=False)
    frame = pandas.DataFrame(
        {
            "site": "apache",
            "host": before.str.split(" ").str[0],
            "time": pandas.to_datetime(times, format="%d/%b/%Y:%H:%M:%S %z", utc=True).dt.tz_localize(None),
            "path": request.str.split(" ").str[1],
            "status": after.str.split().str[0].astype(int),
            "bytes": pandas.to_numeric(after.str.split().str[1], errors="coerce"),
        }
    )
    nasa = pandas.read_csv(DATA / "nasa_access.tsv.gz", sep="\t", quoting=3, header=0, names=NASA_COLUMNS)
    second = pandas.DataFrame(
        {
            "site": "nasa",
            "host": nasa["host"],
            "time": pandas.to_datetime(nasa["time"], unit="s"),
            "path": nasa["url"],
            "status": nasa["response"],
            "bytes": pandas.to_numeric(nasa["bytes"], errors="coerce"),
        }
    )
    return pandas.concat([frame, second], ignore_index=True)


def sorted_rows(frame: pandas.DataFrame) -> list[tuple[Any, ...]]:
    values = frame.astype(object).where(frame.notna(), None)
    return sorted(values.itertuples(index=False, name=None), key=repr)


def test_requests_have_the_rows_of_both_access_logs(logs: Example) -> None:
    expected = raw_requests()
    expected["time"] = expected["time"].astype("datetime64[ns]")
    found = logs.table("lake/requests")[list(expected.columns)]
    assert sorted_rows(found.astype({"bytes": float})) == sorted_rows(expected.astype({"bytes": float}))
    by_status = {f"requests with status {status}": number for status, number in found["status"].value_counts().items()}
    stated = logs.stated()
    assert {name: stated[name] for name in by_status} == by_status
    assert stated["requests"] == len(found)
    assert stated["bytes of all answers"] == found["bytes"].sum()


def test_lines_that_are_no_requests_and_events_without_a_beginning_are_dead_letters(logs: Example) -> None:
    messages = read_topic(logs.bootstrap, "logs-rejected")
    by_format = [message for message in messages if message.headers()]
    [unfinished] = [line for line in lines("apache_access.log.gz") if line.count('"') != 6]
    title = lines("nasa_access.tsv.gz")[0]
    assert sorted(message.value().decode() for message in by_format) == sorted([unfinished, title])
    for message in by_format:
        headers = {name: value.decode() for name, value in message.headers()}
        assert headers["reason"] == "the line does not match the pattern"
        assert headers["topic"] in ("logs-apache", "logs-nasa")
        assert headers["offset"] == ("0" if headers["topic"] == "logs-nasa" else str(raw_offset(unfinished)))
    own = read_rejected_events(logs)
    first_lines = lines("kafka_server_20.log.gz")
    length = next(number for number, line in enumerate(first_lines) if line.startswith("[2016-"))
    assert [(event["file"], event["text"]) for event in own] == [("server_20.log", "\n".join(first_lines[:length]))]
    assert logs.stated()["dead letters"] == len(messages) == len(by_format) + len(own)


def raw_offset(line: str) -> int:
    return lines("apache_access.log.gz").index(line)


def read_rejected_events(logs: Example) -> list[Any]:
    import json

    messages = read_topic(logs.bootstrap, "logs-rejected")
    return [json.loads(message.value()) for message in messages if not message.headers()]


def raw_attempts() -> pandas.DataFrame:
    """The attempts to log in, by plain search in the lines."""
    rows = []
    for line in lines("ssh_auth.log.gz"):
        found = re.search(r"sshd\[\d+\]: (?:message repeated (\d+) times: \[ )?(Failed|Accepted) ", line)
        if found and line.rstrip("]").partition(" ssh2")[1]:
            time = pandas.to_datetime("2016 " + line[:15], format="%Y %b %d %H:%M:%S")
            address = line.rpartition(" from ")[2].split()[0]
            rows.append((time, found[2].lower(), address, int(found[1] or 1)))
    return pandas.DataFrame(rows, columns=["time", "result", "address", "times"])


def test_logins_have_every_attempt(logs: Example) -> None:
    expected = raw_attempts()
    found = logs.table("lake/logins").sort_values("offset")
    assert sorted_rows(found[list(expected.columns)]) == sorted_rows(expected)
    stated = logs.stated()
    for result in ("failed", "accepted"):
        assert stated[f"logins that {result}"] == expected.loc[expected["result"] == result, "times"].sum()


def raw_alerts() -> list[tuple[str, str, pandas.Timestamp, int]]:
    """For each attempt, count the failures of the ten minutes up to it among all attempts of the address."""
    alerts = []
    for address, attempts in raw_attempts().groupby("address", sort=False):
        last_attack = pandas.Timestamp.min
        for position, attempt in enumerate(attempts.itertuples()):
            until_now = attempts.iloc[: position + 1]
            recent = until_now["time"] > attempt.time - pandas.Timedelta("10min")
            failures = until_now.loc[recent & (until_now["result"] == "failed"), "times"].sum()
            is_soon = last_attack > pandas.Timestamp.min and attempt.time - last_attack <= pandas.Timedelta("1h")
            if attempt.result == "failed" and failures >= 5 and not is_soon:
                last_attack = attempt.time
                alerts.append((address, "brute force", attempt.time, int(failures)))
            elif attempt.result == "accepted" and is_soon:
                alerts.append((address, "break-in", attempt.time, int(failures)))
    return sorted(alerts, key=repr)


def test_alerts_are_those_of_a_search_through_the_whole_file(logs: Example) -> None:
    expected = raw_alerts()
    messages = read_topic(logs.bootstrap, "login-alerts")
    values = read_json(logs.bootstrap, "login-alerts")
    found = [
        (message.key().decode(), value["alert"], pandas.Timestamp(value["time"]).tz_localize(None), value["failures"])
        for message, value in zip(messages, values, strict=True)
    ]
    assert sorted(found, key=repr) == expected
    stated = logs.stated()
    for name in ("brute force", "break-in"):
        assert stated[f"alerts of {name}"] == sum(alert[1] == name for alert in expected)


def raw_events() -> pandas.DataFrame:
    """The events of the broker's files, joined by splitting the whole text before each time."""
    rows = []
    for name in KAFKA_FILES:
        text = "\n".join(lines(f"kafka_{name}.log.gz"))
        for event in re.split(r"\n(?=\[2016-)", text):
            first, _, _ = event.partition(" ")
            rows.append((f"{name}.log", event, first.startswith("[2016-")))
    return pandas.DataFrame(rows, columns=["file", "text", "has_time"])


def test_events_of_several_lines_are_joined(logs: Example) -> None:
    raw = raw_events()
    # The last event of the newest file is not complete: its next line may come still.
    complete = raw[raw["has_time"]].drop(raw.index[-1])
    found = logs.table("lake/broker_events")
    details = found["details"].map(lambda text: "" if text is None else "\n" + text)
    text = (
        "["
        + found["time"].dt.strftime("%Y-%m-%d %H:%M:%S,%f").str[:-3]
        + "] "
        + found["level"]
        + " "
        + found["message"]
        + " ("
        + found["logger"]
        + ")"
        + details
    )
    assert sorted(zip(found["file"], text, strict=True)) == sorted(zip(complete["file"], complete["text"], strict=True))
    stated = logs.stated()
    assert stated["events of the broker"] == len(found)
    assert stated["events of several lines"] == complete["text"].str.contains("\n").sum()
    assert len(logs.batch_ends("broker", "events", "logs-kafka")) >= 3
