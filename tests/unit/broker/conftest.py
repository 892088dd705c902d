"""A connection whose handlers belong to the test."""

import pytest

from connection_harness import Bench, make_bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(monkeypatch)
