"""Random batches whose headers have false timestamps, compared with a small model of retention and look-ups by time.

What a header may say without being looked into is the one thing that the model has to know: see `docs/conformance.md`.
Kafka's own answers to such headers are in `tests/conformance/conversations/times.txt`.
"""

import random
from itertools import pairwise
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_harness import NOW_MS, LogOnDisk, false_batch
from tidelog.log.config import DAY_MS, LogConfig
from tidelog.log.reader import TimestampOffset
from tidelog.log.times import find_max_timestamp, find_timestamp
from tidelog.model.steps import run_all
from tidelog.simulation.disk import SimDisk

HOUR_MS = 3_600_000
RETENTION_MS = 7 * DAY_MS
LATE_MS = RETENTION_MS // 64 + HOUR_MS
"""A segment may stay so much longer: the last change counts where it is close to the header's time, and a header may be
an hour ahead."""
AGES_MS = st.sampled_from([0, 1, 1000, HOUR_MS, DAY_MS, 6 * DAY_MS, 8 * DAY_MS, 30 * DAY_MS])
NO_TIME = st.just(-1)
FALSE_TIME = st.sampled_from([-(1 << 63), -5, -1, 0, 1, NOW_MS - 30 * DAY_MS, NOW_MS + 400 * DAY_MS, (1 << 63) - 1])


class Kept(NamedTuple):
    offset: int
    timestamp: int
    written_ms: int


class FalseHeaders(RuleBasedStateMachine):
    """Nothing acknowledged goes before its time, nothing stays for ever, and look-ups by time name the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Kept] = []
        self.batch_of: dict[int, int] = {}
        self.unchecked = False
        """Whether an earlier version, which took headers as they were, wrote some: look-ups go by those."""

    @initialize(segment_bytes=st.sampled_from([250, 700, 4000]), seed=st.integers(0, 1 << 30))
    def begin(self, segment_bytes: int, seed: int) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes,
            retention_ms=RETENTION_MS,
            file_delete_delay_ms=0,
            index_interval_bytes=100,
            message_timestamp_after_max_ms=1 << 62,
        )
        self.on = LogOnDisk(config, SimDisk(rng=random.Random(seed)))

    @rule(
        ages=st.lists(AGES_MS | NO_TIME, min_size=1, max_size=4),
        base=st.none() | FALSE_TIME,
        largest=st.none() | FALSE_TIME,
        codec=st.integers(0, 4),
        trusted=st.booleans(),
    )
    def append(self, ages: list[int], base: int | None, largest: int | None, codec: int, trusted: bool) -> None:
        now_ms = self.on.now_ms
        times = [-1 if age < 0 else now_ms - age for age in ages]
        if trusted:  # times that may be: only retention has to see through them
            base = base and max(times[0], 1) - 3 * DAY_MS
            largest = largest and max(base or times[0], 1) + DAY_MS if max(base or 0, times[0]) < now_ms else None
            self.unchecked = self.unchecked or base is not None or largest is not None
        elif base is not None and abs(times[0] - base) > 1 << 60:
            base = -5
        batch = false_batch(*times, base=base, largest=largest, codec=codec)
        self._note(self.on.append_batch(batch).base_offset, times)

    @rule(ages=st.lists(AGES_MS | NO_TIME, min_size=1, max_size=4), largest=FALSE_TIME)
    def append_as_an_earlier_version_did(self, ages: list[int], largest: int) -> None:
        times = [-1 if age < 0 else self.on.now_ms - age for age in ages]
        self.unchecked = True
        self._note(self.on.append_unchecked(false_batch(*times, largest=largest)).base_offset, times)

    def _note(self, base_offset: int, times: list[int]) -> None:
        for offset, timestamp in enumerate(times, base_offset):
            self.records.append(Kept(offset, timestamp, self.on.now_ms))
            self.batch_of[offset] = base_offset

    @rule(step_ms=st.sampled_from([0, 1, 1000, HOUR_MS, DAY_MS, 3 * DAY_MS, 8 * DAY_MS]))
    def wait(self, step_ms: int) -> None:
        self.on.now_ms += step_ms

    @rule(how=st.sampled_from(["clean", "killed", "cut"]))
    def start_again(self, how: str) -> None:
        self.on.flush()
        if how == "clean":
            self.on.restart()
        elif how == "killed":
            self.on.kill()
        else:
            self.on.power_cut(1)

    @rule()
    def retain(self) -> None:
        self.on.flush()
        now_ms = self.on.now_ms
        bases = [*self.on.bases(), self.on.log.log_end_offset]
        self.on.retain(now_ms)
        start = self.on.log.log_start_offset
        segments = [
            [record for record in self.records if begin <= record.offset < end] for begin, end in pairwise(bases)
        ]
        for segment in segments:
            if not segment:
                continue
            changed_ms = segment[-1].written_ms
            latest = max(record.timestamp for record in segment)
            if segment[0].offset < start:
                age_ms = now_ms - (latest if latest >= 0 else changed_ms)
                assert age_ms > RETENTION_MS, f"records of {latest} are gone at {now_ms}"
            else:
                # It may be no more than what was written to it at last allows, whatever its headers say.
                assert now_ms - max(latest, changed_ms) <= RETENTION_MS + LATE_MS, f"{latest} is here at {now_ms}"
                break
        self.records = [record for record in self.records if record.offset >= start]

    @precondition(lambda self: not self.unchecked)
    @rule(age_ms=AGES_MS)
    def look_up(self, age_ms: int) -> None:
        wanted = self.on.now_ms - age_ms
        later = [record for record in self.records if record.timestamp >= wanted]
        found = run_all(find_timestamp(self.on.log, wanted))
        assert found == (TimestampOffset(*later[0][:2], 0) if later else None)

    @precondition(lambda self: not self.unchecked)
    @invariant()
    def the_largest_timestamp_is_told(self) -> None:
        largest = max((record.timestamp for record in self.records), default=None)
        found = run_all(find_max_timestamp(self.on.log))
        if largest is None:
            assert found is None
        else:
            first = next(record for record in self.records if record.timestamp == largest)
            assert found == TimestampOffset(first.offset, largest, 0)

    @invariant()
    def nothing_else_is_gone(self) -> None:
        assert self.on.log.failure is None
        assert [offset for offset, _ in self.on.records()] == [record.offset for record in self.records]


TestFalseHeaders = FalseHeaders.TestCase
TestFalseHeaders.settings = settings(max_examples=settings().max_examples, stateful_step_count=25, deadline=None)
