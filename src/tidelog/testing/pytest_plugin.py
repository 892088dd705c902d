"""The fixture `tidelog_broker`: an empty broker with a port and a data directory of its own, gone after the test.

Every pytest run on a machine that has Tidelog loads this module, so it imports nothing before a test asks.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "tidelog_broker_scope", "Scope of the fixture tidelog_broker: function, module, session ...", default="function"
    )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("tidelog_broker_scope")


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, object]:
    """Broker settings by Kafka's names. Override it in a conftest.py or a test module to change them."""
    return {}


@pytest.fixture(scope=_scope)
def tidelog_broker(tidelog_settings: Mapping[str, object]) -> "Iterator[Broker]":
    """A running broker. `tidelog_broker.bootstrap` is its HOST:PORT; topics are made when they are first used.

    One for each test, unless the ini option `tidelog_broker_scope` says session, module or class.
    """
    from tidelog.testing import Broker

    with Broker(settings=tidelog_settings) as broker:
        yield broker
