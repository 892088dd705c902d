"""The broker's log on stderr. Each event is one line, `TIME LEVEL LOGGER message`, even if the message contains line
breaks.
"""

import logging
import sys
import time
import traceback

from tidelog.cli.escapes import escape_unprintable

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str, node_id: int | None = None) -> None:
    """Send the events of every logger in the process to stderr. `level` is one of LEVELS.

    With `node_id`, each line has a field `node=` after the level, because several brokers write to the same stderr.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(node_id))
    logging.root.handlers = [handler]
    logging.root.setLevel(level.upper())


class OneLineFormatter(logging.Formatter):
    """Formats an event as one line: time in UTC with milliseconds, line breaks and control characters escaped, and a
    traceback as one field.
    """

    def __init__(self, node_id: int | None = None) -> None:
        super().__init__()
        self._node = "" if node_id is None else f"node={node_id} "

    def format(self, record: logging.LogRecord) -> str:
        time_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{time_text}.{int(record.msecs):03d}Z {record.levelname:<7} {self._node}{record.name} "
        line += record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            line += f" {error_text(record.exc_info[1])}"
        # Text from clients must not forge log lines or colours. The stream itself escapes characters that its encoding
        # does not have.
        return escape_unprintable(line, "utf-8")


def error_text(error: BaseException) -> str:
    """Return the error and its call stack. The innermost call is the last one: `error="ValueError: x" trace="a.py:3
    f > b.py:9 g"`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    calls = " > ".join(f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames)
    return f'error="{type(error).__name__}: {error}" trace="{calls}"'
