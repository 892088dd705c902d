"""The broker's loggers under the names that clients use."""

import logging
from collections.abc import Iterator

import pytest

from tidelog.runtime import loggers

NAME = "tidelog.loggers-of-a-test"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    top = logging.getLogger("tidelog")
    level = top.level
    logging.getLogger("tidelog.loggers-of-a-test")
    yield
    top.setLevel(level)
    loggers.follow_root(NAME)


def test_root_stands_for_all_of_tidelog_and_leaves_others_alone() -> None:
    before = logging.getLogger("somebody-else").getEffectiveLevel()
    loggers.set_level(loggers.ROOT, "ERROR")
    found = loggers.levels()
    assert next(iter(found)) == "root"
    assert (found["root"], found[NAME]) == ("ERROR", "ERROR")
    assert not any(name == "tidelog" or name.startswith("somebody") for name in found)
    assert logging.getLogger("somebody-else").getEffectiveLevel() == before


@pytest.mark.parametrize("level", loggers.LEVELS)
def test_every_level_is_told_as_it_was_set(level: str) -> None:
    loggers.set_level(NAME, level)
    assert loggers.levels()[NAME] == level


def test_a_logger_follows_the_root_again() -> None:
    loggers.set_level(loggers.ROOT, "WARN")
    loggers.set_level(NAME, "DEBUG")
    assert logging.getLogger(NAME).isEnabledFor(logging.DEBUG)
    loggers.follow_root(NAME)
    assert loggers.levels()[NAME] == "WARN"
    assert not logging.getLogger(NAME).isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(("number", "level"), [(1, "TRACE"), (7, "DEBUG"), (25, "WARN"), (60, "FATAL")])
def test_levels_of_pythons_own_have_the_next_name(number: int, level: str) -> None:
    logging.getLogger(NAME).setLevel(number)
    assert loggers.levels()[NAME] == level
