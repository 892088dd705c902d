"""The fixture `tidelog_broker`: an empty broker with its own port and data directory, deleted after the test.

Every pytest run on a machine that has Tidelog loads this module, so it imports the broker only when a test uses it.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Broker


class StartedBroker:
    """A broker that the fixture has started."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings = settings
        self.test_file = ""
        """The file of the first test that used the broker."""


SCOPES = ("function", "class", "module", "package", "session")
RUNNING = pytest.StashKey[dict[int, StartedBroker]]()
"""The running brokers, by the `id()` of the `Broker`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "tidelog_broker_scope", f"Scope of the fixture tidelog_broker: {', '.join(SCOPES)}", default="function"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the ini option. Raises UsageError, which pytest prints as one line. Without this check, pytest would report
    the invalid scope in many lines.
    """
    scope = config.getini("tidelog_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(
            f"tidelog_broker_scope is {scope!r}; it must be {', '.join(SCOPES[:-1])} or {SCOPES[-1]}"
        )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("tidelog_broker_scope")


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, object]:
    """Broker settings with Kafka's names. Override it in a conftest.py or a test module to change them."""
    return {}


@pytest.fixture(scope=_scope)
def tidelog_broker(tidelog_settings: Mapping[str, object], request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A running broker. `tidelog_broker.bootstrap` is its HOST:PORT; topics are created when they are first used.

    Each test gets its own broker, unless the ini option `tidelog_broker_scope` is class, module, package or session.
    A test whose `tidelog_settings` differ from those of the running broker ends in an error.
    """
    from tidelog.testing import Broker

    running = request.config.stash.setdefault(RUNNING, {})
    with Broker(settings=tidelog_settings) as broker:
        running[id(broker)] = StartedBroker(dict(tidelog_settings))
        yield broker
        del running[id(broker)]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check, after the fixtures were created, that the broker was started with this test's own `tidelog_settings`.

    They may differ, because pytest creates a fixture only once for its scope: for the first test that uses it.
    Settings of later tests would silently have no effect.
    """
    arguments: Mapping[str, Any] = getattr(item, "funcargs", {})
    started = item.config.stash.get(RUNNING, {}).get(id(arguments.get("tidelog_broker")))
    if started is None or "tidelog_settings" not in arguments:
        return
    test_file = item.nodeid.partition("::")[0]
    started.test_file = started.test_file or test_file
    if dict(arguments["tidelog_settings"]) != started.settings:
        scope = item.config.getini("tidelog_broker_scope")
        pytest.fail(
            f"the tidelog_settings of {test_file} have no effect: tidelog_broker_scope is {scope}, and its broker was"
            f" started with those of {started.test_file}. Set tidelog_broker_scope = module (or function), or give all"
            " tests the same settings, in conftest.py",
            pytrace=False,
        )
