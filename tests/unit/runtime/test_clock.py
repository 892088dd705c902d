"""The clock that measures leases: it must not stop while the machine sleeps."""

import sys
import time
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from tidelog.metadata.store import LeaseTerm
from tidelog.runtime import clock
from tidelog.runtime.clock import SystemClock, monotonic_clock

HOUR_S = 3600.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has CLOCK_BOOTTIME")
def test_a_lease_is_over_after_the_machine_has_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    read, slept_s = time.clock_gettime, 0.0

    def with_sleep(clock_id: int) -> float:
        return read(clock_id) + (slept_s if clock_id == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", with_sleep)
    spec = spec_from_file_location("loaded_again", clock.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    system_clock: SystemClock = module.SystemClock()
    term = LeaseTerm(system_clock, 60_000)
    term.extend(system_clock.monotonic())
    assert not term.is_over
    slept_s = HOUR_S
    assert term.is_over


def test_a_system_without_such_a_clock_has_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert monotonic_clock() is time.monotonic


def test_monotonic_time_never_decreases() -> None:
    times = [SystemClock().monotonic() for _ in range(1000)]
    assert times == sorted(times)
