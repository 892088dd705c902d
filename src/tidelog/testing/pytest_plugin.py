"""The fixture `tidelog_broker`: an empty broker with a port and a data directory of its own, gone after the test.

Every pytest run on a machine that has Tidelog loads this module, so it imports nothing before a test asks.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Broker


class Started:
    """A broker that the fixture has started."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings = settings
        self.place = ""
        """The file of the first test that had it."""


SCOPES = ("function", "class", "module", "package", "session")
RUNNING = pytest.StashKey[dict[int, Started]]()
"""By the broker's id."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "tidelog_broker_scope", f"Scope of the fixture tidelog_broker: {', '.join(SCOPES)}", default="function"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Raises UsageError, of which pytest makes one line: it does not do that for the scope of a fixture."""
    scope = config.getini("tidelog_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"tidelog_broker_scope is {scope!r}; it takes {', '.join(SCOPES[:-1])} or {SCOPES[-1]}")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("tidelog_broker_scope")


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, object]:
    """Broker settings by Kafka's names. Override it in a conftest.py or a test module to change them."""
    return {}


@pytest.fixture(scope=_scope)
def tidelog_broker(tidelog_settings: Mapping[str, object], request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A running broker. `tidelog_broker.bootstrap` is its HOST:PORT; topics are made when they are first used.

    One for each test, unless the ini option `tidelog_broker_scope` says class, module, package or session. A test whose
    `tidelog_settings` are others than those of the broker that runs by then ends in an error.
    """
    from tidelog.testing import Broker

    running = request.config.stash.setdefault(RUNNING, {})
    with Broker(settings=tidelog_settings) as broker:
        running[id(broker)] = Started(dict(tidelog_settings))
        yield broker
        del running[id(broker)]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once the fixtures are made: the broker has the settings that the test's own module or conftest.py asks for.

    pytest makes a fixture once for its scope, whichever test comes first, and overrides further on do nothing.
    """
    arguments: Mapping[str, Any] = getattr(item, "funcargs", {})
    started = item.config.stash.get(RUNNING, {}).get(id(arguments.get("tidelog_broker")))
    if started is None or "tidelog_settings" not in arguments:
        return
    place = item.nodeid.partition("::")[0]
    started.place = started.place or place
    if dict(arguments["tidelog_settings"]) != started.settings:
        scope = item.config.getini("tidelog_broker_scope")
        pytest.fail(
            f"the tidelog_settings of {place} have no effect: tidelog_broker_scope is {scope}, and its broker was"
            f" started with those of {started.place}. Set tidelog_broker_scope = module (or function), or give all"
            " tests the same settings, in conftest.py",
            pytrace=False,
        )
