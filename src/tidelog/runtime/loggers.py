"""The broker's loggers and their levels, under the names of Kafka's: changed while it runs, forgotten with the process.

`root` stands for all that Tidelog logs. Loggers of a program that embeds a broker are its own business.
"""

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
_TOP: Final = logging.getLogger("tidelog")


def levels() -> dict[str, str]:
    """The level in force of every logger, by name, sorted; `root` first."""
    prefix = f"{_TOP.name}."
    names = sorted(
        name
        for name, logger in list(_TOP.manager.loggerDict.items())
        if name.startswith(prefix) and isinstance(logger, logging.Logger)
    )
    return {name: _level(_logger(name)) for name in (ROOT, *names)}


def set_level(name: str, level: str) -> None:
    """`name` is one of `levels()`, `level` one of LEVELS."""
    _logger(name).setLevel(LEVELS[level])


def follow_root(name: str) -> None:
    """Take back the level of a logger's own; `name` is not the root."""
    _logger(name).setLevel(logging.NOTSET)


def _logger(name: str) -> logging.Logger:
    return _TOP if name == ROOT else _TOP.getChild(name.removeprefix(f"{_TOP.name}."))


def _level(logger: logging.Logger) -> str:
    number = logger.getEffectiveLevel()
    return next((level for level, least in LEVELS.items() if number <= least), "FATAL")
