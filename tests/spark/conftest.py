"""`--against`, as in the interop tests, also when these run alone."""

from contextlib import suppress

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    with suppress(ValueError):  # registered already: the interop tests run too
        parser.addoption("--against", default="tidelog", metavar="tidelog|kafka|HOST:PORT")
