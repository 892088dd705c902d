"""The broker under test (`--against`), topics for each test, and the skips that a run in CI may have."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from interop_harness.java_tools import JavaTools
from interop_harness.suite import NewTopicNamed, Unique, wait_until
from interop_harness.target import NoKafka, Target, missing_for_java, started

SKIPS_LISTED = Path(__file__).with_name("skips.txt")
SKIPPED: dict[str, str] = {}
"""Test id to reason."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        default="tidelog",
        metavar="tidelog|kafka|HOST:PORT",
        help="the broker that the interop tests run on (default: tidelog, in a process of its own)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exercises(*capabilities): what the test shows of its client")
    # Of the clients' own code, which is not ours to change.
    config.addinivalue_line("filterwarnings", r"ignore::DeprecationWarning:kafka\..*")
    config.addinivalue_line("filterwarnings", "ignore:open_text is deprecated:DeprecationWarning")
    # kafka-python leaves the socket of a connection that closes while it is being made to the garbage collector.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")
    config.addinivalue_line("markers", "tidelog_only: what Apache Kafka does otherwise, or needs a broker of ours")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("tidelog_only") and against(item.config) != "tidelog":
        pytest.skip("about Tidelog alone")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        SKIPPED[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if unlisted_skips() and os.environ.get("CI") == "true" and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("CI") == "true":
        for test, reason in unlisted_skips().items():
            terminalreporter.write_line(f"FAILED {test}: the skip {reason!r} is not listed in {SKIPS_LISTED.name}")


def unlisted_skips() -> dict[str, str]:
    lines = SKIPS_LISTED.read_text().splitlines()
    listed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return {test: reason for test, reason in SKIPPED.items() if reason not in listed}


def against(config: pytest.Config) -> str:
    return str(config.getoption("against", "tidelog"))


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The broker under test: one for the whole run."""
    try:
        with started(against(request.config)) as running:
            yield running
    except NoKafka as missing:
        pytest.skip(f"Apache Kafka cannot run here: {missing}")


@pytest.fixture(scope="session")
def bootstrap(target: Target) -> str:
    """HOST:PORT of the broker under test."""
    return target.bootstrap


@pytest.fixture(scope="session")
def is_tidelog(target: Target) -> bool:
    """Whether `--against` left the default: a broker of ours."""
    return target.is_tidelog


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    # It lives a little longer than the broker, and would complain.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


@pytest.fixture
def unique() -> Unique:
    """A name that nobody else has, beginning with the given word."""
    return lambda word: f"{word}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(admin: AdminClient, unique: Unique) -> NewTopicNamed:
    """`new_topic("orders", partitions=2, **{"retention.ms": "1000"})` makes a topic, led already; its name."""

    def make(word: str = "topic", partitions: int = 1, **config: str) -> str:
        name = unique(word)
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)

        everything = {TopicPartition(name, partition): OffsetSpec.latest() for partition in range(partitions)}

        def led() -> bool:
            # Kafka answers before the partitions have leaders, and Metadata names leaders that do not know of it yet:
            # an idempotent producer that comes then can take 40 s to sort out its sequences. So ask the leaders.
            found = admin.list_topics(name, timeout=10).topics[name]  # afresh: list_offsets goes by what was heard last
            if len(found.partitions) != partitions or any(p.leader < 0 for p in found.partitions.values()):
                return False
            try:
                return all(asked.result(10) for asked in admin.list_offsets(everything).values())
            except KafkaException:
                return False

        wait_until(led, f"leaders of {name}")
        return name

    return make


@pytest.fixture(scope="session")
def java() -> Iterator[JavaTools]:
    missing = missing_for_java()
    if missing:
        pytest.skip(f"Kafka's Java tools cannot run here: {missing}")
    with JavaTools() as tools:
        yield tools


@pytest.fixture(scope="session")
def kcat() -> str:
    """The program."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("no kcat (script/install-kcat)")
    return program
