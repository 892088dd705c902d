"""Check which settings of a resource may be changed while the broker runs, and to which values. Pure functions.

Each public function raises ApiError with the error code of Kafka 4.3.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tidelog.config.addresses import counts_by_address
from tidelog.config.broker_config import BrokerConfig
from tidelog.config.client_metrics_keys import INTERVAL_MS_RANGE, check_match
from tidelog.config.group_keys import limits_of
from tidelog.config.key import InvalidValue, parse
from tidelog.config.keys import (
    BROKER_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    ChangeMode,
    broker_key,
    change_mode,
    check_topic_default,
    nearest,
)
from tidelog.wire.errors import ApiError, ErrorCode

LISTENER_SETTINGS_MAX = 1000
"""Upper bound on the number of altered settings with the prefix `listener.name.NAME.`. It applies to each broker's own
settings, and separately to the settings for all brokers. Clients choose NAME, so there must be a limit."""
NAME_LENGTH_MAX = 255
"""Longest name of a setting with the prefix `listener.name.NAME.`, in characters."""
RESTART_ADVICE = "put it into the broker's configuration file (or its environment, or --set) and restart"
CLEANER_THREAD_BUFFER_MIN = 1024 * 1024
"""Bytes of `log.cleaner.dedupe.buffer.size` that each cleaner thread needs."""
THREAD_COUNTS = (
    "background.threads",
    "log.cleaner.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
"""Settings that are numbers of threads. One change may at most halve or double such a number."""


def check_broker_settings(
    broker: str, changed: Mapping[str, str | None], config: BrokerConfig, after: BrokerConfig
) -> None:
    """First check each new value alone. Then check all changes, including removals (None), together with the other
    settings.

    `broker` is "" if the change is for all brokers. `config` contains the settings before the change, and `after`
    contains the settings after it.
    """
    if any(name.startswith("listener.name.") for name in changed):
        own_settings = after.dynamic_own if broker else after.dynamic_cluster
        if sum(name not in BROKER_KEYS for name in own_settings) > LISTENER_SETTINGS_MAX:
            message = (
                f"there can be at most {LISTENER_SETTINGS_MAX} altered settings with the prefix listener.name.: "
                "remove some of them first"
            )
            raise ApiError(message, ErrorCode.POLICY_VIOLATION)
    for setting, text in changed.items():
        if text is not None:
            _check_broker_setting(broker, setting, text, config)
    try:
        for setting in changed:
            if setting in THREAD_COUNTS:
                _check_threads(setting, config.get(setting), after.get(setting))
            combined_check = _COMBINED_CHECKS.get(setting)
            if combined_check is not None:
                combined_check(after.get, setting)
    except InvalidValue as error:
        raise ApiError(str(error), ErrorCode.INVALID_REQUEST) from None


def _check_broker_setting(broker: str, setting: str, value: str, config: BrokerConfig) -> None:
    """Check the name and the new value of one setting, without regard to other settings. Raises ApiError."""
    key = broker_key(setting)
    if key is None:
        raise ApiError(_unknown("broker", setting, BROKER_KEYS), ErrorCode.INVALID_CONFIG)
    if len(setting) > NAME_LENGTH_MAX:
        text = f"the name {setting[:50]}... has more than {NAME_LENGTH_MAX} characters"
        raise ApiError(text, ErrorCode.INVALID_CONFIG)
    mode = change_mode(setting)
    if mode is ChangeMode.AT_RESTART:
        raise ApiError(
            f"{setting} cannot be altered while the broker runs: {RESTART_ADVICE}", ErrorCode.INVALID_REQUEST
        )
    if mode is ChangeMode.LIVE_FOR_ONE_LISTENER:
        text = f"while the broker runs, {setting} can be altered only under the name listener.name.NAME.{setting}"
        raise ApiError(text, ErrorCode.INVALID_REQUEST)
    if not broker and mode is ChangeMode.LIVE_FOR_ONE_BROKER:
        text = f"{setting} can be set only for one broker, by its number (tidelog broker config set --broker N)"
        raise ApiError(text, ErrorCode.INVALID_REQUEST)
    try:
        parsed = parse(key, value)
        check_topic_default(setting, parsed)
        if setting == "cordoned.log.dirs":
            assert isinstance(parsed, list)
            config.check_cordoned(parsed)
    except InvalidValue as error:
        raise ApiError(str(error), ErrorCode.INVALID_REQUEST) from None


def _check_threads(setting: str, current: int, value: int) -> None:
    if current < 1:  # a configuration file may contain this, as in Kafka
        raise InvalidValue(
            setting, value, f"it is {current} now and cannot change while the broker runs: {RESTART_ADVICE}"
        )
    value_min = max(current // 2, 1)
    if not value_min <= value <= 2 * current:
        bounds = f"it is {current} now, so one change can set it to a value from {value_min} to {2 * current}"
        raise InvalidValue(setting, value, bounds)


ValueAfter = Callable[[str], Any]
"""A function that returns the value of a broker's setting after the change."""


def _check_connections(value_after: ValueAfter, setting: str) -> None:
    overrides = counts_by_address(value_after("max.connections.per.ip.overrides"))
    if not value_after("max.connections") or not (value_after("max.connections.per.ip") or overrides):
        raise InvalidValue(setting, value_after(setting), "no client could connect any more")


def _check_retention(value_after: ValueAfter, setting: str) -> None:
    if value_after("log.retention.ms") == 0:
        raise InvalidValue("log.retention.ms", 0, "must be -1 for no limit, or at least 1")
    # The retention time has one setting for milliseconds, one for minutes and one for hours. The first that is set
    # applies. Its value times the factor is the time in milliseconds.
    synonyms = TOPIC_KEYS["retention.ms"].synonyms
    retention_ms = next((value * factor for name, factor in synonyms if (value := value_after(name)) is not None), -1)
    local_ms = value_after("log.local.retention.ms")
    if retention_ms >= 0 and local_ms != FOLLOWS_RETENTION and not 0 <= local_ms <= retention_ms:
        raise InvalidValue(
            "log.local.retention.ms", local_ms, f"it must be -2, or from 0 to {retention_ms} ms (the retention time)"
        )


def _check_retention_bytes(value_after: ValueAfter, setting: str) -> None:
    retention_bytes, local_bytes = value_after("log.retention.bytes"), value_after("log.local.retention.bytes")
    if retention_bytes >= 0 and local_bytes != FOLLOWS_RETENTION and not 0 <= local_bytes <= retention_bytes:
        raise InvalidValue(
            "log.local.retention.bytes",
            local_bytes,
            f"it must be -2, or from 0 to {retention_bytes} bytes (log.retention.bytes)",
        )


def _check_cleaner(value_after: ValueAfter, setting: str) -> None:
    buffer, threads = value_after("log.cleaner.dedupe.buffer.size"), value_after("log.cleaner.threads")
    if threads < 1:  # a configuration file may contain this, as in Kafka
        raise InvalidValue("log.cleaner.threads", threads, f"it must be at least 1: {RESTART_ADVICE}")
    if buffer // threads < CLEANER_THREAD_BUFFER_MIN:
        raise InvalidValue(
            "log.cleaner.dedupe.buffer.size",
            buffer,
            f"it must be at least 1 MiB for each of the {threads} log.cleaner.threads",
        )


def _check_assignment_interval(value_after: ValueAfter, setting: str) -> None:
    # `limits_of` takes the name of a group's setting, which has no prefix "group.". Each setting that is checked here
    # has both limits.
    min_setting, max_setting = (name or "" for name in limits_of(setting.removeprefix("group.")))
    if not value_after(min_setting) <= value_after(setting) <= value_after(max_setting):
        raise InvalidValue(
            setting,
            value_after(setting),
            f"it must be from {value_after(min_setting)} ({min_setting}) to {value_after(max_setting)} ({max_setting})",
        )


FOLLOWS_RETENTION = -2
"""This value of `log.local.retention.*` means: use the value of `log.retention.*`."""
_COMBINED_CHECKS: Mapping[str, Callable[[ValueAfter, str], None]] = {
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
    """Check all of a group's own settings together."""
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
    min_setting, max_setting = limits_of(setting)
    if min_setting is not None and value < config.get(min_setting):
        raise InvalidValue(setting, value, f"it must be at least {config.get(min_setting)} ({min_setting})")
    if max_setting is not None and value > config.get(max_setting):
        raise InvalidValue(setting, value, f"it must be at most {config.get(max_setting)} ({max_setting})")


def _check_session(kind: str, settings: Mapping[str, str], config: BrokerConfig) -> None:
    session_setting, heartbeat_setting = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    if session_setting not in settings and heartbeat_setting not in settings:
        return
    timeout, interval = (
        parse(GROUP_KEYS[name], settings[name]) if name in settings else config.get(f"group.{name}")
        for name in (session_setting, heartbeat_setting)
    )
    assert isinstance(timeout, int)
    assert isinstance(interval, int)
    if timeout <= interval:
        raise InvalidValue(session_setting, timeout, f"it must be more than {heartbeat_setting}, which is {interval}")


def check_client_metrics(settings: Mapping[str, str]) -> None:
    """Check all settings of a client metrics subscription."""
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
            value_min, value_max = INTERVAL_MS_RANGE
            assert isinstance(value, int)
            if not value_min <= value <= value_max:
                text = f"interval.ms must be from {value_min} to {value_max}, not {value}"
                raise ApiError(text, ErrorCode.INVALID_REQUEST)


def _unknown(kind: str, setting: str, known: Mapping[str, object]) -> str:
    similar_name = nearest(setting, known)
    return f"there is no {kind} setting {setting}" + (f"; did you mean {similar_name}?" if similar_name else "")
