"""Two fixtures: `tidelog_broker` is an empty broker with its own port and data directory, and `tidelog_cluster` is a
cluster of several brokers that replicate. Their data is deleted at the end of the fixture's scope, usually the test.

If Tidelog is installed, every pytest run loads this module. Therefore `tidelog.testing.broker` is imported only when a
test uses a fixture.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Broker, Cluster


class StartedBroker:
    """A broker or cluster that a fixture has started."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings = settings
        self.test = ""
        """The id of the first test that used this broker or cluster."""


SCOPES = ("function", "class", "module", "package", "session")
RUNNING = pytest.StashKey[dict[int, StartedBroker]]()
"""The running brokers and clusters, by the `id()` of the `Broker` or `Cluster`."""
FIXTURES = ("tidelog_broker", "tidelog_cluster")


def pytest_addoption(parser: pytest.Parser) -> None:
    for fixture in FIXTURES:
        parser.addini(f"{fixture}_scope", f"Scope of the fixture {fixture}: {', '.join(SCOPES)}", default="function")


def pytest_configure(config: pytest.Config) -> None:
    """Check the ini options. Raises UsageError, which pytest prints as one line. Without this check, pytest would
    report the invalid scope in many lines.
    """
    for fixture in FIXTURES:
        scope = config.getini(f"{fixture}_scope")
        if scope not in SCOPES:
            raise pytest.UsageError(
                f"{fixture}_scope is {scope!r}; it must be {', '.join(SCOPES[:-1])} or {SCOPES[-1]}"
            )


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini(f"{fixture_name}_scope")


@pytest.fixture(scope="session")
def tidelog_cluster_size() -> int:
    """The number of brokers of `tidelog_cluster`. Override this fixture in a conftest.py or a test module to change
    it.
    """
    return 3


@pytest.fixture(scope="session")
def tidelog_settings() -> Mapping[str, object]:
    """Broker settings with Kafka's names. Override this fixture in a conftest.py or a test module to change them."""
    return {}


@pytest.fixture(scope=_scope)
def tidelog_broker(tidelog_settings: Mapping[str, object], request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A running broker. `tidelog_broker.bootstrap` is its HOST:PORT; topics are created when they are first used.

    Each test gets its own broker, unless the ini option `tidelog_broker_scope` is class, module, package or session.
    A test whose `tidelog_settings` differ from the settings of the running broker ends in an error.
    """
    from tidelog.testing import Broker

    running = request.config.stash.setdefault(RUNNING, {})
    with Broker(settings=tidelog_settings) as broker:
        running[id(broker)] = StartedBroker(dict(tidelog_settings))
        yield broker
        del running[id(broker)]


@pytest.fixture(scope=_scope)
def tidelog_cluster(
    tidelog_settings: Mapping[str, object], tidelog_cluster_size: int, request: pytest.FixtureRequest
) -> "Iterator[Cluster]":
    """A running cluster of `tidelog_cluster_size` brokers (three by default). `tidelog_cluster.bootstrap` has their
    addresses. Topics are created when they are first used, with three replicas (fewer if there are fewer brokers).

    `tidelog_cluster.kill(2)` kills broker 2, and `tidelog_cluster.start(2)` starts it again. Each test gets its own
    cluster, unless the ini option `tidelog_cluster_scope` is class, module, package or session.
    """
    from tidelog.testing import Cluster

    running = request.config.stash.setdefault(RUNNING, {})
    with Cluster(tidelog_cluster_size, settings=tidelog_settings) as cluster:
        cluster.wait_until_in_sync()
        running[id(cluster)] = StartedBroker(dict(tidelog_settings))
        yield cluster
        del running[id(cluster)]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check, after the fixtures were created, that the broker was started with this test's own `tidelog_settings`.

    The broker may have other settings, because pytest creates a fixture only once for its scope, for the first test
    that uses it. Then the settings of later tests have no effect, and without this check no message would say so.
    """
    arguments: Mapping[str, Any] = getattr(item, "funcargs", {})
    for fixture in FIXTURES:
        started = item.config.stash.get(RUNNING, {}).get(id(arguments.get(fixture)))
        if started is None or "tidelog_settings" not in arguments:
            continue
        started.test = started.test or item.nodeid
        if dict(arguments["tidelog_settings"]) != started.settings:
            scope = item.config.getini(f"{fixture}_scope")
            subject = "broker" if fixture == "tidelog_broker" else "cluster"
            names = [test.partition("::")[0] for test in (item.nodeid, started.test)]
            smaller = "module"
            if len(set(names)) == 1:  # both tests are in one module, so the scope `module` would not help
                names, smaller = [item.nodeid, started.test], "class"
            pytest.fail(
                f"the tidelog_settings of {names[0]} have no effect: {fixture}_scope is {scope}, and the {subject} was"
                f" started with the tidelog_settings of {names[1]}. Set {fixture}_scope = {smaller} or function,"
                " or use only one tidelog_settings for all tests, in conftest.py",
                pytrace=False,
            )
