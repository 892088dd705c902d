"""Which settings a resource may be given while the broker runs, and which values. Pure.

Each raises ApiError with the code that Kafka 4.3 answers with.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.config.addresses import counts_by_address
from tidelog.config.broker_config import BrokerConfig
from tidelog.config.client_metrics_keys import INTERVAL_MS, check_match
from tidelog.config.group_keys import limits_of
from tidelog.config.key import InvalidValue, parse
from tidelog.config.keys import (
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    ChangedWhen,
    broker_key,
    changed_when,
    check_for_topics,
    nearest,
)
from tidelog.wire.errors import ApiError, ErrorCode

LISTENER_SETTINGS_MAX = 1000
"""Of one broker, or of all together: their names are the client's choice."""
NAME_LENGTH_MAX = 255
"""Of a setting of one listener."""
AT_A_RESTART = "put it into the broker's configuration file (or its environment, or --set) and restart"
CLEANER_BUFFER_MIN = 1024 * 1024
"""Bytes of `log.cleaner.dedupe.buffer.size` for each of `log.cleaner.threads`."""
THREADS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
"""Numbers of threads, which change by at most half or double at a time."""


def check_broker_settings(
    broker: str, changed: Mapping[str, str | None], config: BrokerConfig, after: BrokerConfig
) -> None:
    """What is set anew, each by itself, and then with what is taken back (None) together with all else.

    `broker` is "" for all of them; `config` as it is now and `after` the change.
    """
    if any(name.startswith("listener.name.") for name in changed):
        own = after.dynamic_own if broker else after.dynamic_cluster
        if sum(name not in BROKER_KEYS for name in own) > LISTENER_SETTINGS_MAX:
            message = f"a broker has at most {LISTENER_SETTINGS_MAX} settings of single listeners"
            raise ApiError(message, ErrorCode.POLICY_VIOLATION)
    for setting, text in changed.items():
        if text is not None:
            _check_broker_setting(broker, setting, text, config)
    try:
        for setting in changed:
            if setting in THREADS:
                _check_threads(setting, config.get(setting), after.get(setting))
            check = _TOGETHER.get(setting)
            if check is not None:
                check(after.get, setting)
    except InvalidValue as error:
        raise ApiError(str(error), ErrorCode.INVALID_REQUEST) from None


def _check_broker_setting(broker: str, setting: str, value: str, config: BrokerConfig) -> None:
    key = broker_key(setting)
    if key is None:
        raise ApiError(_unknown("broker", setting, BROKER_KEYS), ErrorCode.INVALID_CONFIG)
    if len(setting) > NAME_LENGTH_MAX:
        text = f"the name {setting[:50]}... has more than {NAME_LENGTH_MAX} characters"
        raise ApiError(text, ErrorCode.INVALID_CONFIG)
    when = changed_when(setting)
    if when is ChangedWhen.AT_RESTART:
        raise ApiError(f"{setting} cannot be altered while the broker runs: {AT_A_RESTART}", ErrorCode.INVALID_REQUEST)
    if when is ChangedWhen.OF_ONE_LISTENER:
        text = f"{setting} is altered of one listener while the broker runs: listener.name.NAME.{setting}"
        raise ApiError(text, ErrorCode.INVALID_REQUEST)
    if not broker and when is ChangedWhen.OF_ONE_BROKER:
        text = f"{setting} is set of one broker, named by its number (tidelog broker config set --broker N)"
        raise ApiError(text, ErrorCode.INVALID_REQUEST)
    try:
        parsed = parse(key, value)
        check_for_topics(setting, parsed)
        if setting == "cordoned.log.dirs":
            assert isinstance(parsed, list)
            config.check_cordoned(parsed)
    except InvalidValue as error:
        raise ApiError(str(error), ErrorCode.INVALID_REQUEST) from None


def _check_threads(setting: str, now: int, value: int) -> None:
    least = max(now // 2, 1)
    if not least <= value <= 2 * now:
        raise InvalidValue(setting, value, f"it is {now} now and changes to {least} to {2 * now} at a time")


InForce = Callable[[str], Any]
"""A broker's setting to its value after the change."""


def _check_connections(in_force: InForce, setting: str) -> None:
    overrides = counts_by_address(in_force("max.connections.per.ip.overrides"))
    if not in_force("max.connections") or not (in_force("max.connections.per.ip") or overrides):
        raise InvalidValue(setting, in_force(setting), "it would shut out everybody, for good")


def _check_retention(in_force: InForce, setting: str) -> None:
    if in_force("log.retention.ms") == 0:
        raise InvalidValue("log.retention.ms", 0, "takes -1 for no limit, or 1 and more")
    units = TOPIC_KEYS["retention.ms"].synonyms
    most = next((value * factor for name, factor in units if (value := in_force(name)) is not None), -1)
    local = in_force("log.local.retention.ms")
    if most >= 0 and local != FOLLOWS_RETENTION and not 0 <= local <= most:
        raise InvalidValue("log.local.retention.ms", local, f"records are kept for {most} ms at most")


def _check_retention_bytes(in_force: InForce, setting: str) -> None:
    most, local = in_force("log.retention.bytes"), in_force("log.local.retention.bytes")
    if most >= 0 and local != FOLLOWS_RETENTION and not 0 <= local <= most:
        raise InvalidValue("log.local.retention.bytes", local, f"{most} bytes are kept at most")


def _check_cleaner(in_force: InForce, setting: str) -> None:
    buffer, threads = in_force("log.cleaner.dedupe.buffer.size"), in_force("log.cleaner.threads")
    if threads < 1:  # which a file may say, as Kafka's may
        raise InvalidValue("log.cleaner.threads", threads, "is less than 1; set it first")
    if buffer // threads < CLEANER_BUFFER_MIN:
        raise InvalidValue(
            "log.cleaner.dedupe.buffer.size", buffer, f"each of log.cleaner.threads, {threads}, needs a MiB of it"
        )


def _check_assignment_interval(in_force: InForce, setting: str) -> None:
    least, most = (name or "" for name in limits_of(setting.removeprefix("group.")))
    if not in_force(least) <= in_force(setting) <= in_force(most):
        raise InvalidValue(
            setting, in_force(setting), f"{least} and {most} allow {in_force(least)} to {in_force(most)}"
        )


FOLLOWS_RETENTION = -2
_TOGETHER: Mapping[str, Callable[[InForce, str], None]] = {
    "max.connections": _check_connections,
    "max.connections.per.ip": _check_connections,
    "max.connections.per.ip.overrides": _check_connections,
    "log.retention.ms": _check_retention,
    "log.local.retention.ms": _check_retention,
    "log.retention.bytes": _check_retention_bytes,
    "log.local.retention.bytes": _check_retention_bytes,
    "log.cleaner.dedupe.buffer.size": _check_cleaner,
    "log.cleaner.threads": _check_cleaner,
    "group.consumer.assignment.interval.ms": _check_assignment_interval,
    "group.share.assignment.interval.ms": _check_assignment_interval,
    "group.streams.assignment.interval.ms": _check_assignment_interval,
}


def check_group_settings(settings: Mapping[str, str], config: BrokerConfig) -> None:
    """All that a group has of its own, together."""
    try:
        for setting, text in settings.items():
            _check_group_setting(setting, text, config)
        for kind in ("consumer", "share", "streams"):
            _check_session(kind, settings, config)
    except InvalidValue as error:
        raise ApiError(str(error), ErrorCode.INVALID_CONFIG) from None


def _check_group_setting(setting: str, text: str, config: BrokerConfig) -> None:
    key = GROUP_KEYS.get(setting)
    if key is None:
        raise ApiError(_unknown("group", setting, GROUP_KEYS), ErrorCode.INVALID_CONFIG)
    value = parse(key, text)
    if not isinstance(value, int):
        return
    least, most = limits_of(setting)
    if least is not None and value < config.get(least):
        raise InvalidValue(setting, value, f"{least} is {config.get(least)}")
    if most is not None and value > config.get(most):
        raise InvalidValue(setting, value, f"{most} is {config.get(most)}")


def _check_session(kind: str, settings: Mapping[str, str], config: BrokerConfig) -> None:
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    if session not in settings and heartbeat not in settings:
        return
    timeout, interval = (
        parse(GROUP_KEYS[name], settings[name]) if name in settings else config.get(f"group.{name}")
        for name in (session, heartbeat)
    )
    assert isinstance(timeout, int)
    assert isinstance(interval, int)
    if timeout <= interval:
        raise InvalidValue(session, timeout, f"it has to be more than {heartbeat}, which is {interval}")


def check_client_metrics(settings: Mapping[str, str]) -> None:
    """All that a subscription has."""
    for setting, text in settings.items():
        key = CLIENT_METRICS_KEYS.get(setting)
        if key is None:
            raise ApiError(_unknown("client metrics", setting, CLIENT_METRICS_KEYS), ErrorCode.INVALID_REQUEST)
        try:
            value = parse(key, text)
            if setting == "match":
                assert isinstance(value, list)
                check_match(value)
        except InvalidValue as error:
            raise ApiError(str(error), ErrorCode.INVALID_CONFIG) from None
        if setting == "interval.ms":
            least, most = INTERVAL_MS
            assert isinstance(value, int)
            if not least <= value <= most:
                raise ApiError(f"interval.ms is {least} to {most}, not {value}", ErrorCode.INVALID_REQUEST)


def _unknown(kind: str, setting: str, known: Mapping[str, object]) -> str:
    near = nearest(setting, known)
    return f"there is no {kind} setting {setting}" + (f"; did you mean {near}?" if near else "")
