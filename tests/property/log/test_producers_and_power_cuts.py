"""Power is cut, or the process is killed, after every operation of the disk in random histories with deletions of
records: the producers of the log stay known, whatever left the log.
"""

import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings

from log_harness import LogOnDisk, make_batch
from process_harness import amount
from tidelog.log.partition_log import PartitionLog
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.tasks import ProcessGone

PRODUCERS = 3
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PRODUCERS - 1)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("retain"), st.sampled_from([0, 0, 200, 500])),
        st.tuples(st.just("cut"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["roll", "flush", "checkpoint", "restart"]), st.just(0)),
    ),
    min_size=4,
    max_size=25,
)


class History:
    """A log of several producers, and the offsets of their batches, in order."""

    def __init__(self, segment_bytes: int, crash_after: int) -> None:
        self.on = LogOnDisk(None, SimDisk(rng=random.Random(1)), segment_bytes=segment_bytes)
        self.offsets: list[list[int]] = [[] for _ in range(PRODUCERS)]
        self.remaining = crash_after

    def count(self, _operation: str, _path: str) -> None:
        self.remaining -= 1
        if self.remaining < 0:
            raise ProcessGone

    def run(self, actions: list[tuple[str, int]]) -> bool:
        """Return whether the crash came before the end of the history."""
        try:
            for name, number in actions:
                self.on.disk.on_operation = self.count
                self.step(name, number)
        except ProcessGone:
            return True
        return False

    def step(self, name: str, number: int) -> None:
        on = self.on
        if name == "append":
            sequence = len(self.offsets[number])
            self.offsets[number].append(on.log.log_end_offset)
            on.append_batch(make_batch(b"x" * 20, producer_id=number, producer_epoch=0, base_sequence=sequence))
        elif name == "delete":  # DeleteRecords makes everything below the new start durable first
            on.flush()
            start = on.log.log_start_offset
            on.log.delete_before(start + number * (on.log.log_end_offset - start) // 100)
            on.persisted_log_start_offset = on.log.log_start_offset
        elif name == "retain":
            on.config.retention_bytes = number
            on.retain(on.now_ms)
        elif name == "cut":
            end = max(on.log.log_end_offset - number, on.log.log_start_offset)
            on.truncate_to(end)
            self.offsets = [[offset for offset in offsets if offset < end] for offsets in self.offsets]
        elif name == "roll":
            on.log.roll(on.now_ms)
        elif name == "flush":
            on.flush(checkpoint=False)
        elif name == "checkpoint":
            on.persisted_recovery_point = on.log.recovery_point
        elif name == "restart":
            on.restart()

    def check(self, log: PartitionLog) -> None:
        sequences = [sum(offset < log.log_end_offset for offset in offsets) for offsets in self.offsets]
        assert {i: entry.next_sequence for i, entry in log.producers.entries.items()} == {
            i: sequence for i, sequence in enumerate(sequences) if sequence
        }


@given(
    actions=ACTIONS,
    segment_bytes=st.sampled_from([100, 300, 1 << 20]),
    snapshot_interval_bytes=st.sampled_from([1, 16 << 20]),
    crashes=st.lists(st.tuples(st.integers(0, 80), st.booleans()), min_size=1, max_size=3),
    seed=st.integers(0, 1 << 30),
)
@example(  # a torn batch directly at the log start offset
    actions=[*[("append", 0)] * 12, ("delete", 59), ("delete", 60), ("cut", 2), ("append", 0), ("append", 0)],
    segment_bytes=1 << 20,
    snapshot_interval_bytes=16 << 20,
    crashes=[(37, True)],
    seed=0,
)
@settings(
    max_examples=amount(300, 3000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_whatever_leaves_the_log_its_producers_survive_every_crash(
    actions: list[tuple[str, int]],
    segment_bytes: int,
    snapshot_interval_bytes: int,
    crashes: list[tuple[int, bool]],
    seed: int,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("tidelog.log.durability.SNAPSHOT_INTERVAL_BYTES", snapshot_interval_bytes)
    history = History(segment_bytes, 0)
    for number, (crash_after, by_power_cut) in enumerate(crashes):
        history.remaining = crash_after
        history.run(actions)
        if by_power_cut:
            history.on.power_cut(seed + number)
        else:
            history.on.kill()
        history.check(history.on.log)
        end = history.on.log.log_end_offset
        history.offsets = [[offset for offset in offsets if offset < end] for offsets in history.offsets]
