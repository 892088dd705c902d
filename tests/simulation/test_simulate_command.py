"""`script/simulate` prints how to repeat a failure, prints the requested events, and continues an interrupted run."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation_harness import simulate
from tidelog.replication.partition import Partition


@pytest.fixture(autouse=True)
def logs_again() -> Iterator[None]:
    """Switch the log on again, which the simulation switches off."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def serves_above_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(partition: Partition, start: int, bytes_max: int, *_: object) -> object:
        return partition.log.read(start, bytes_max, partition.log_end_offset)

    monkeypatch.setattr(Partition, "read", planted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Provide the list of the seeds that are simulated."""
    seeds: list[int] = []
    run_seed = simulate.run_seed

    def counted(seed: int, *arguments: object, **rest: object) -> object:
        seeds.append(seed)
        return run_seed(seed, *arguments, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(simulate, "run_seed", counted)
    return iter([seeds])


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    arguments = ["simulate", "--jobs", "1", "--minutes", "0.1", *options]
    monkeypatch.setattr("sys.argv", arguments)
    return simulate.main()


@pytest.mark.usefixtures("serves_above_the_high_watermark")
def test_a_failure_prints_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seeds", "1", "--first-seed", "3", "--profile", "power") == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("seed 3 (power): Violation: NotAboveHighWatermark: topic0-") for line in lines)
    command = "script/simulate --seeds 1 --first-seed 3 --profile power --brokers 1 --minutes 0.1"
    assert f"repeat it: {command}" in lines
    assert lines[-1].startswith("1 seeds, 1 violations, ")
    assert any(" broker-1 replica topic0-" in line for line in lines), "the events of the partition are printed"


def test_a_trace_of_a_host_has_only_its_events(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seeds", "1", "--profile", "calm", "--trace", "broker-1") == 0
    events = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()][:-1]
    assert len(events) > 100
    assert {event[1] for event in events} == {"broker-1"}


def test_a_run_continues_with_the_results_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    calls: Iterator[list[int]],
    request: pytest.FixtureRequest,
) -> None:
    seeds = next(calls)
    options = ("--profile", "power", "--resume", str(tmp_path / "results.json"))
    assert run(monkeypatch, "--seeds", "2", *options) == 0
    request.getfixturevalue("serves_above_the_high_watermark")
    assert run(monkeypatch, "--seeds", "3", *options) == 1
    assert seeds == [1, 2, 3]
    assert run(monkeypatch, "--seeds", "3", *options) == 1, "a violation is not forgotten"
    assert seeds == [1, 2, 3]
    assert "3 seeds, 1 violations, 0 virtual minutes" in capsys.readouterr().out.splitlines()[-1]
    (stored,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert stored["passed"] == [1, 2]
    assert list(stored["failed"]) == ["3"]


def test_a_profile_that_needs_more_brokers_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--profile", "replicated") == 2
    assert "needs --brokers 3" in capsys.readouterr().err
