"""A connection whose handlers are the test's."""

import pytest

from connection_harness import Bench, make_bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(monkeypatch)
