"""The broker's log on stderr: one line an event, `TIME LEVEL LOGGER message`, whatever the message holds."""

import logging
import sys
import time
import traceback

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str) -> None:
    """Send every logger of the process to stderr. `level` is one of LEVELS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.root.handlers = [handler]
    logging.root.setLevel(level.upper())


class OneLine(logging.Formatter):
    """UTC time with milliseconds; line breaks and control characters escaped, a traceback folded into one field."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{moment}.{int(record.msecs):03d}Z {record.levelname:<7} {record.name} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" {folded(record.exc_info[1])}"
        return line if line.isprintable() else "".join(c if c.isprintable() else escaped(c) for c in line)


def escaped(character: str) -> str:
    """A control character as the escape that Python writes for it: what peers send must not forge lines or colours."""
    return character.encode("unicode_escape").decode()


def folded(error: BaseException) -> str:
    """The error and where it came from, innermost call last: `error="ValueError: x" trace="a.py:3 f < b.py:9 g"`."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
    return f'error="{type(error).__name__}: {error}" trace="{places}"'
