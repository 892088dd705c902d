"""A broker for the tests of names."""

from collections.abc import Iterator

import pytest

from cli_harness import tidelog
from tidelog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with the topic `t`."""
    with Broker() as broker:
        tidelog("topic", "create", "t", "-b", broker.bootstrap)
        yield broker
