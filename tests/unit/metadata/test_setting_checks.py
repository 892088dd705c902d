"""Settings that limit each other: the values that a running broker accepts. Single values are compared with Kafka's
answers.
"""

from collections.abc import Mapping

import pytest

from tidelog.config.broker_config import BrokerConfig, Setting
from tidelog.metadata.setting_checks import check_broker_settings, check_client_metrics, check_group_settings
from tidelog.wire.errors import ApiError, ErrorCode


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig({name.replace("_", "."): Setting(text, "a test") for name, text in settings.items()})


def check(broker: str, changed: Mapping[str, str | None], now: BrokerConfig) -> None:
    dynamic = {name: text for name, text in {**now.dynamic_own, **changed}.items() if text is not None}
    check_broker_settings(broker, changed, now, now.with_dynamic({}, dynamic))


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"log.retention.ms": "0"}, "-1 for no limit"),
        ({"log.local.retention.ms": "604800001"}, "604800000"),
        ({"log.local.retention.ms": "-1"}, "604800000"),
        ({"log.retention.ms": "10", "log.local.retention.ms": "11"}, "10 ms"),
        ({"log.retention.bytes": "100000", "log.local.retention.bytes": "200000"}, "100000 bytes"),
        ({"log.retention.bytes": "100000", "log.local.retention.bytes": "-1"}, "100000 bytes"),
        ({"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097151"}, "MiB"),
        ({"max.connections": "0"}, "no client could connect"),
        ({"max.connections.per.ip": "0"}, "no client could connect"),
        ({"num.io.threads": "3"}, "4 to 16"),
        ({"num.io.threads": "17"}, "4 to 16"),
        ({"group.consumer.assignment.interval.ms": "15001"}, "to 15000 "),
        ({"cordoned.log.dirs": "/nowhere"}, "data directories"),
        ({"num.partitions": "3"}, "while the broker runs: put it into the broker's configuration file"),
        ({"delegation.token.secret.key": "x"}, "while the broker runs: put it into the broker's configuration file"),
    ],
)
def test_refused(changed: dict[str, str], word: str) -> None:
    with pytest.raises(ApiError, match=word) as refused:
        check("1", changed, config())
    assert refused.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "changed",
    [
        {"log.retention.ms": "-1", "log.local.retention.ms": "999999999999"},
        {"log.local.retention.ms": "-2"},
        {"log.retention.bytes": "100000", "log.local.retention.bytes": "100000"},
        {"log.retention.bytes": "100000"},
        {"log.local.retention.bytes": "200000"},
        {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:1"},
        {"num.io.threads": "4", "background.threads": "20"},
        {"group.consumer.assignment.interval.ms": "15000"},
    ],
)
def test_taken(changed: dict[str, str]) -> None:
    check("1", changed, config())
    with pytest.raises(ApiError):
        check("1", changed | {"node.id": "2"}, config())


@pytest.mark.parametrize(
    ("before", "kept", "word"),
    [
        ({"log.retention.ms": "-1", "log.local.retention.ms": "604800001"}, "log.local.retention.ms", "604800000"),
        ({"log.cleaner.threads": "3", "log.cleaner.dedupe.buffer.size": "3145728"}, "log.cleaner.threads", ""),
        ({"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2097152"}, "", ""),
        ({"num.io.threads": "18"}, "", "9 to 36"),
        ({"num.io.threads": "16"}, "", ""),
    ],
)
def test_taken_back(before: dict[str, str], kept: str, word: str) -> None:
    now = config().with_dynamic({}, before)
    changed = {name: None for name in before if name != kept}
    if not word:
        check("1", changed, now)
        return
    with pytest.raises(ApiError, match=word) as refused:
        check("1", changed, now)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_what_counts_is_what_is_in_force() -> None:
    """A value for all brokers counts where this one has none of its own."""
    now = config().with_dynamic({}, {"log.retention.ms": "1000"})
    changed = {"log.local.retention.ms": "2000"}
    with pytest.raises(ApiError, match="1000"):
        check_broker_settings("", changed, now, now.with_dynamic(changed, now.dynamic_own))
    with pytest.raises(ApiError, match="1000"):
        check_broker_settings("", {"log.retention.ms": "3000"}, now, now.with_dynamic(changed, now.dynamic_own))


def test_a_file_may_say_that_there_are_no_cleaners() -> None:
    with pytest.raises(ApiError, match=r"log\.cleaner\.threads.*at least 1.*restart") as refused:
        check("", {"log.cleaner.dedupe.buffer.size": "2097152"}, config(log_cleaner_threads="0"))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    with pytest.raises(ApiError, match=r"it is 0 now and cannot change while the broker runs: put it into .*restart"):
        check("", {"log.cleaner.threads": "1"}, config(log_cleaner_threads="0"))


def test_directories_are_of_one_broker() -> None:
    with pytest.raises(ApiError, match=r"for one broker, .*--broker N"):
        check("", {"cordoned.log.dirs": "*"}, config())
    check("1", {"cordoned.log.dirs": "*"}, config())


@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_a_session_is_longer_than_the_time_between_heartbeats(kind: str) -> None:
    limits = config(
        **{f"group_{kind}_max_heartbeat_interval_ms": "50000", f"group_{kind}_min_session_timeout_ms": "100"}
    )
    with pytest.raises(ApiError, match=r"session\.timeout\.ms") as refused:
        check_group_settings({f"{kind}.heartbeat.interval.ms": "45000"}, limits)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    check_group_settings({f"{kind}.heartbeat.interval.ms": "45000", f"{kind}.session.timeout.ms": "45001"}, limits)


def test_a_pattern_is_bounded() -> None:
    check_client_metrics({"match": f"client_id={'a' * 1000}"})
    with pytest.raises(ApiError, match="characters") as refused:
        check_client_metrics({"match": f"client_id={'a' * 1001}"})
    assert refused.value.code == ErrorCode.INVALID_CONFIG
