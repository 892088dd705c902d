"""A log compared with a list of records: random appends, rolls, reads, cuts, retention, kills, power cuts."""

import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_harness import NOW_MS, LogOnDisk, read_once
from tidelog.log.config import LogConfig
from tidelog.log.leader_epochs import EpochEnd
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import run_all
from tidelog.simulation.disk import SimDisk


class LogModel(RuleBasedStateMachine):
    """The model is `batches`: (base offset, [(timestamp, value)...], leader epoch), those from `start` on."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, list[tuple[int, bytes]], int]] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.time = NOW_MS
        self.count = 0

    @initialize(
        segment_bytes=st.sampled_from([400, 1000, 5000]),
        index_interval_bytes=st.sampled_from([0, 100, 300, 4096]),
        segment_index_bytes=st.sampled_from([48, 96, 10 << 20]),
        seed=st.integers(0, 1 << 30),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, segment_index_bytes: int, seed: int) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            segment_index_bytes=segment_index_bytes,
            file_delete_delay_ms=0,
        )
        self.on = LogOnDisk(config, SimDisk(rng=random.Random(seed)))

    @rule(
        sizes=st.lists(st.one_of(st.integers(0, 60), st.integers(0, 1200)), min_size=1, max_size=4),
        step=st.integers(-5, 50),
        new_epoch=st.booleans(),
    )
    def append(self, sizes: list[int], step: int, new_epoch: bool) -> None:
        self.time += step
        self.epoch += new_epoch and bool(self.batches)
        room = (self.on.config.segment_bytes - 61) // len(sizes) - 30
        records = []
        for size in sizes:
            self.count += 1
            records.append((self.time, b"%d:" % self.count + b"x" * min(size, room)))
        appended = self.on.append(
            *[value for _, value in records], timestamps=[t for t, _ in records], leader_epoch=self.epoch
        )
        assert (appended.base_offset, appended.next_offset) == (self.end, self.end + len(records))
        self.batches.append((self.end, records, self.epoch))
        self.end += len(records)

    @rule(start=st.integers(0, 1 << 20), length=st.integers(0, 1 << 20), bytes_max=st.integers(1, 2000))
    def read(self, start: int, length: int, bytes_max: int) -> None:
        start = self.start + start % (self.end - self.start + 1)
        end = start + length % (self.end - start + 2)
        records, next_offset = read_once(self.on.log, start, bytes_max, end)
        assert [(r.offset, r.value) for r in records if r.offset >= start] == self.expected(start, next_offset)
        holder = next(((base, len(rs)) for base, rs, _ in self.batches if base + len(rs) > start), None)
        assert bool(records) == (holder is not None and sum(holder) <= end)

    @rule(bytes_max=st.integers(1, 3000))
    def read_through(self, bytes_max: int) -> None:
        assert self.on.records(bytes_max=bytes_max) == self.expected(self.start, self.end)

    @rule(when=st.integers(-20, 400))
    def look_up_time(self, when: int) -> None:
        wanted = NOW_MS + when
        found = run_all(find_timestamp(self.on.log, wanted))
        expected = next(
            ((base + i, t, epoch) for base, rs, epoch in self.batches for i, (t, _) in enumerate(rs)
             if t >= wanted and base + i >= self.start), None
        )  # fmt: skip
        assert (found and tuple(found)) == expected

    @rule()
    def look_up_latest(self) -> None:
        found = run_all(find_max_timestamp(self.on.log))
        times = [(t, base + i) for base, rs, _ in self.batches for i, (t, _) in enumerate(rs) if base + i >= self.start]
        assert bool(times) == (found is not None)
        if found:
            latest = max(t for t, _ in times)
            assert (found.timestamp, found.offset) == (latest, min(o for t, o in times if t == latest))

    @rule(where=st.integers(0, 1 << 20))
    def look_up_epoch_end(self, where: int) -> None:
        if not self.batches:
            return
        epoch = self.batches[where % len(self.batches)][2]
        later = [base for base, _, e in self.batches if e > epoch]
        assert self.on.log.epochs.end_offset_for(epoch, self.on.log.log_end_offset) == EpochEnd(
            epoch, later[0] if later else self.end
        )

    @rule()
    def flush(self) -> None:
        self.on.flush()
        assert self.on.log.recovery_point == self.end

    @rule()
    def roll(self) -> None:
        self.on.log.roll(self.time)

    @rule()
    def restart(self) -> None:
        self.on.restart()

    @rule()
    def kill(self) -> None:
        self.on.disk = self.on.disk.kill()
        self.on.open(clean=False, log_start_offset=self.start)
        assert not self.on.log.recovery.truncated_bytes

    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        if self.on.log.durable_offset < self.start:
            self.on.flush()  # as the broker does before it writes down where the log begins
        durable = max(self.on.log.recovery_point, self.start)
        self.on.disk = self.on.disk.power_cut(random.Random(seed))
        log = self.on.open(clean=False, log_start_offset=self.start)
        assert durable <= log.log_end_offset <= self.end
        self.cut(log.log_end_offset)

    @precondition(lambda self: self.end > self.start)
    @rule(where=st.integers(0, 1 << 20))
    def truncate(self, where: int) -> None:
        offset = self.start + where % (self.end - self.start + 1)
        end = next((base for base, records, _ in self.batches if base + len(records) > offset), self.end)
        self.on.truncate_to(offset)
        self.cut(end)

    @precondition(lambda self: self.end > self.start)
    @rule(where=st.integers(0, 1 << 20))
    def delete_before(self, where: int) -> None:
        self.start += where % (self.end - self.start + 1)
        assert self.on.log.delete_before(self.start) == self.start
        self.drop_old()

    @rule(keep=st.integers(0, 3000))
    def retain_by_size(self, keep: int) -> None:
        config = self.on.config
        config.retention_bytes = keep
        self.on.retain(self.time)
        config.retention_bytes = -1
        if self.on.log.log_start_offset > self.start:
            assert self.on.log.size_bytes >= keep
        self.after_retention()

    @rule(age=st.integers(0, 100))
    def retain_by_time(self, age: int) -> None:
        self.on.config.retention_ms = age
        self.on.retain(self.time)
        self.on.config.retention_ms = -1
        kept_from = self.on.log.log_start_offset
        for base, records, _ in self.batches:
            if base + len(records) <= kept_from and base >= self.start:
                assert self.time - max(t for t, _ in records) > age
        self.after_retention()

    def after_retention(self) -> None:
        self.start = self.on.log.log_start_offset
        assert not any(name.endswith(".deleted") for name in self.on.files())
        self.drop_old()

    def drop_old(self) -> None:
        self.batches = [b for b in self.batches if b[0] + len(b[1]) > self.start]

    def cut(self, end: int) -> None:
        self.batches = [b for b in self.batches if b[0] + len(b[1]) <= end]
        self.end = end
        self.start = min(self.start, end)
        assert not self.batches or self.batches[-1][0] + len(self.batches[-1][1]) == end

    def expected(self, start: int, end: int) -> list[tuple[int, bytes]]:
        return [(base + i, v) for base, rs, _ in self.batches for i, (_, v) in enumerate(rs) if start <= base + i < end]

    @invariant()
    def ends_agree(self) -> None:
        log: Any = self.on.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.log_end_offset


LogModel.TestCase.settings = settings(
    max_examples=settings().max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLogModel = LogModel.TestCase
