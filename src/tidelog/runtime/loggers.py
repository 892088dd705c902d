"""The broker's loggers and their levels, with Kafka's level names. A changed level remains until the process ends.

The name `root` means the logger `tidelog`, the parent of all of Tidelog's loggers. Loggers of an application that
embeds a broker are neither listed nor changed.
"""

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
_TOP: Final = logging.getLogger("tidelog")


def levels() -> dict[str, str]:
    """Return the effective level of every logger by name. `root` is first; the other names are sorted."""
    prefix = f"{_TOP.name}."
    names = sorted(
        name
        for name, logger in list(_TOP.manager.loggerDict.items())
        if name.startswith(prefix) and isinstance(logger, logging.Logger)
    )
    return {name: _level(_logger(name)) for name in (ROOT, *names)}


def set_level(name: str, level: str) -> None:
    """Set the level of a logger. `name` is a key of `levels()`, `level` a key of LEVELS."""
    _logger(name).setLevel(LEVELS[level])


def follow_root(name: str) -> None:
    """Remove the logger's own level, so that it inherits the level of its parent. `name` must not be `root`."""
    _logger(name).setLevel(logging.NOTSET)


def _logger(name: str) -> logging.Logger:
    return _TOP if name == ROOT else _TOP.getChild(name.removeprefix(f"{_TOP.name}."))


def _level(logger: logging.Logger) -> str:
    """Return the lowest of LEVELS that is not below the logger's effective level; FATAL if all are below it."""
    number = logger.getEffectiveLevel()
    return next((level for level, value in LEVELS.items() if number <= value), "FATAL")
