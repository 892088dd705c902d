"""Parse times as people write them: "10 minutes ago", "1h30m", "yesterday", "2026-03-01T12:00", "1767225600000"."""

import re
from datetime import UTC, datetime, timedelta

UNITS_S = {
    "ms": 0.001,
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hr": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
}
PART = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*([a-z]+)\s*(?:,|and\b)?\s*")


class NotATimeError(ValueError):
    """The text cannot be parsed as a time or a duration. The message contains examples that can be parsed."""


def parse_duration_s(text: str) -> float:
    """Return the length of a duration in seconds, for example of "1h30m", "2 days" or "1 hour and 5 minutes".

    Raises NotATimeError.
    """
    rest = text.strip().lower()
    total, position = 0.0, 0
    while position < len(rest):
        part = PART.match(rest, position)
        unit = part and (UNITS_S.get(part[2]) or UNITS_S.get(part[2].removesuffix("s")))
        if part is None or not unit:
            raise NotATimeError(f"{text!r} is not a duration; examples: 90s, 1h30m, 2 days")
        total += float(part[1]) * unit
        position = part.end()
    if position == 0:
        raise NotATimeError("a duration is missing; examples: 90s, 1h30m, 2 days")
    return total


def parse_time_ms(text: str, now: datetime) -> int:
    """Return `text` as milliseconds since the Unix epoch.

    `now` is the current local time, without a zone. A time in `text` that has no zone is local time.

    Accepts the words "now", "today" and "yesterday", a duration with or without "ago", an ISO 8601 date or time, and
    milliseconds since the epoch (11 to 18 digits). A time before the epoch becomes 0: no record is older than the
    epoch, and in ListOffsets a negative timestamp has a special meaning. Raises NotATimeError.
    """
    return max(_since_epoch_ms(text, now), 0)


def _since_epoch_ms(text: str, now: datetime) -> int:
    """Do the work of `parse_time_ms`, but return a negative number for times before the epoch. Raises NotATimeError."""
    words = text.strip()
    lowered = words.lower()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    day_time = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}.get(lowered)
    if day_time is not None:
        return epoch_ms(day_time)
    if words.isascii() and words.isdigit() and 11 <= len(words) <= 18:
        return int(words)
    if lowered.endswith("ago"):
        return epoch_ms(now) - round(parse_duration_s(lowered.removesuffix("ago")) * 1000)
    try:
        return epoch_ms(datetime.fromisoformat(words))
    except (ValueError, OverflowError):  # OverflowError: the date in UTC is outside the calendar
        pass
    try:
        return epoch_ms(now) - round(parse_duration_s(lowered) * 1000)
    except NotATimeError:
        raise NotATimeError(
            f'{text!r} is not a time; examples: "10 minutes ago", 1h30m, yesterday, 2026-03-01T12:00, 1767225600000'
        ) from None


def epoch_ms(moment: datetime) -> int:
    """Return milliseconds since the epoch, rounded down. A time without a zone is local time, and its date decides
    whether summer time applies.
    """
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def iso_time(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC with milliseconds. If the timestamp is outside Python's calendar,
    return the number of milliseconds as text.
    """
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """Return a duration for people, in its two largest units: 0.2 s, 45 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    whole = round(seconds)
    # The rounded numbers are compared, so that 59.7 s is 1 min, not 60 s, and 9.97 s is 10 s, not 10.0 s.
    if whole < 60:
        return f"{whole} s" if seconds == whole or round(seconds, 1) >= 10 else f"{seconds:.1f} s"
    for large, large_s, small, small_s in (("min", 60, "s", 1), ("h", 3600, "min", 60)):
        if whole < large_s * (60 if large == "min" else 24):
            rest = whole % large_s // small_s
            return f"{whole // large_s} {large}" + (f" {rest} {small}" if rest else "")
    rest = whole % 86400 // 3600
    return f"{whole // 86400} d" + (f" {rest} h" if rest else "")
