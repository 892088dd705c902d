"""Power is cut after every operation of a pass and its swaps, and again during that recovery."""

import random
from collections.abc import Callable
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from log_harness import DIRECTORY, NOW_MS, LogOnDisk
from log_harness.compaction import append_expired_tombstone, job_of, reports_of, stored, swap_in
from tidelog.log.cleaner.job import GroupReport
from tidelog.log.cleaner.swap import Swap
from tidelog.log.partition_log import PartitionLog
from tidelog.log.verify import NOTE, verify
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import ABORT, COMMIT
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

Read = tuple[tuple[int, bytes | None, bytes | None], ...]


class State(NamedTuple):
    """What readers see: every record, those that read_committed gives, and which transactions are aborted."""

    records: Read
    committed: Read
    aborted: tuple[tuple[int, int, int], ...]

    def values(self) -> dict[bytes | None, bytes]:
        """The last value of each key, for a reader with read_committed."""
        last = {key: value for _, key, value in self.committed}
        return {key: value for key, value in last.items() if value is not None}

    def lies_between(self, new: "State", old: "State") -> bool:
        """A start that finishes a swap knows what the new segment replaces by its last offset, as Kafka does: an old
        segment beyond that stays until the next pass, with all that it had. But every key has the same last value as
        before and after the swap.
        """
        return (
            self.values() == old.values() == new.values()
            and set(new.records) <= set(self.records) <= set(old.records)
            and set(new.committed) <= set(self.committed) <= set(old.committed)
            and len(self.aborted) == len(set(self.aborted))
        )


def state_of(log: PartitionLog) -> State:
    aborted = log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    committed = []
    for segment in log.segments.items:
        data = segment.file.pread(segment.size, 0)
        for header in batches_in(data):
            gone = header.is_control or any(
                header.is_transactional
                and header.producer_id == entry.producer_id
                and entry.first_offset <= header.base_offset <= entry.last_offset
                for entry in aborted
            )
            committed += [] if gone else decode_records(data, header.position)
    return State(
        tuple((record.offset, record.key, record.value) for record in stored(log)),
        tuple((record.offset, record.key, record.value) for record in committed),
        tuple((entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted),
    )


def marker(kind: int) -> bytearray:
    record = Record(b"\0\0" + kind.to_bytes(2), b"\0\0\0\0\0\1", NOW_MS)
    return encode_batch([record], producer_id=9, producer_epoch=0, is_transactional=True, is_control=True)


def filled(seed: int, segment_bytes: int) -> LogOnDisk:
    """A log with updates, tombstones and transactions, all of it on the disk."""
    rng = random.Random(seed)
    on = LogOnDisk(
        disk=SimDisk(rng=random.Random(seed)),
        segment_bytes=segment_bytes,
        index_interval_bytes=rng.choice([0, 150, 4096]),
        cleanup_policy="compact",
        file_delete_delay_ms=0,
    )
    sequence = 0
    for number in range(rng.randrange(10, 25)):
        records = [
            Record(b"k%d" % rng.randrange(6), rng.choice([None, b"%d" % number]), NOW_MS)
            for _ in range(rng.randrange(1, 4))
        ]
        if number % 5 == 4 and sequence:
            on.append_batch(marker(rng.choice([ABORT, COMMIT])))
        elif number % 5 in (2, 3):
            on.append_batch(
                encode_batch(records, producer_id=9, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            )
            sequence += len(records)
        else:
            on.append_batch(encode_batch(records))
        if rng.random() < 0.3:
            on.log.roll(NOW_MS)  # groups of several segments
    on.append_batch(marker(ABORT))
    on.log.roll(NOW_MS)
    if rng.random() < 0.7:  # the pass leaves nothing of this key, in the last segments of a group
        on.append_batch(encode_batch([Record(b"deleted", b"old", NOW_MS)]))
        on.log.roll(NOW_MS)
        append_expired_tombstone(on, b"deleted")
        on.log.roll(NOW_MS)
    on.append_batch(encode_batch([Record(b"large", bytes(segment_bytes - 200), NOW_MS)]))
    on.log.roll(NOW_MS)
    on.append(b"the active segment")
    on.flush()
    return on


def found_after(on: LogOnDisk, disk: SimDisk, on_operation: Callable[[str, str], None] | None = None) -> LogOnDisk:
    after = LogOnDisk.__new__(LogOnDisk)
    after.config, after.now_ms = on.config, on.now_ms
    after.disk = disk
    disk.on_operation = on_operation
    after.open(clean=False, recovery_point=on.persisted_recovery_point, log_start_offset=0)
    return after


@given(seed=st.integers(0, 1 << 30), segment_bytes=st.sampled_from([300, 600, 1500]))
@settings(max_examples=settings().max_examples // 20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_swap_that_is_cut_off_loses_nothing_and_brings_nothing_back(seed: int, segment_bytes: int) -> None:
    on = filled(seed, segment_bytes)
    groups = [r for r in reports_of(on.disk, job_of(on.log, on.now_ms)) if isinstance(r, GroupReport)]
    assert groups
    rng = random.Random(seed)
    cuts = 0

    # What each number of swaps leaves, on a copy of the disk.
    copy = found_after(on, on.disk.power_cut(random.Random(1)))
    states = [state_of(copy.log)]
    assert states == [state_of(on.log)], "all was durable"
    for group in [r for r in reports_of(copy.disk, job_of(copy.log, on.now_ms)) if isinstance(r, GroupReport)]:
        swap_in(copy, group)
        states.append(state_of(copy.log))

    for done, group in enumerate(groups):
        allowed = states[done : done + 2]

        def check(disk: SimDisk, allowed: list[State]) -> None:
            nonlocal cuts
            cuts += 1
            after = found_after(on, disk)
            state = state_of(after.log)
            assert state in allowed or state.lies_between(new=allowed[1], old=allowed[0])
            assert not any(name.endswith((".swap", ".cleaned", ".deleted")) for name in after.files())
            findings = [f for f in verify(after.disk, DIRECTORY).findings if f.severity != NOTE]
            assert findings == []

        def cut(_operation: str, _path: str, allowed: list[State] = allowed) -> None:
            medium = on.disk.power_cut(rng)
            check(medium.power_cut(rng), allowed)
            if rng.random() < 0.1:  # and again, after each step of the recovery
                again = medium.power_cut(rng)
                found_after(on, again, lambda _o, _p: check(again.power_cut(rng), allowed))

        on.disk.on_operation = cut
        swap_in(on, group)
        on.disk.on_operation = None
        assert state_of(on.log) == states[done + 1]
    assert cuts > 10
    removal = on.log.removal(NOW_MS + 1)
    assert removal is not None
    removal.run()
    assert not any(name.endswith((".swap", ".cleaned", ".deleted")) for name in on.files())


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=settings().max_examples // 20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_pass_that_is_broken_off_leaves_nothing(seed: int) -> None:
    on = filled(seed, 600)
    before = state_of(on.log)
    rng = random.Random(seed)
    job = job_of(on.log, on.now_ms)

    def cut(_operation: str, _path: str) -> None:
        after = found_after(on, on.disk.power_cut(rng))
        assert state_of(after.log) == before
        assert not any(name.endswith(".cleaned") for name in after.files())

    on.disk.on_operation = cut
    first = reports_of(on.disk, job)
    on.disk.on_operation = None
    assert reports_of(on.disk, job) == first, "what a pass left that was broken off does not matter"


@given(seed=st.integers(0, 1 << 30), announced=st.booleans())
@settings(max_examples=settings().max_examples // 10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_swap_that_is_taken_back_leaves_the_log_as_it_was(seed: int, announced: bool) -> None:
    """A cut while it is announced and discarded may still find it done."""
    on = filled(seed, 1500)
    before = state_of(on.log)
    rng = random.Random(seed)
    group = next(r for r in reports_of(on.disk, job_of(on.log, on.now_ms)) if isinstance(r, GroupReport))
    done = found_after(on, on.disk.power_cut(rng))
    group_there = next(r for r in reports_of(done.disk, job_of(done.log, on.now_ms)) if isinstance(r, GroupReport))
    swap_in(done, group_there)
    allowed = [before, state_of(done.log)]

    def cut(_operation: str, _path: str) -> None:
        disk = on.disk.power_cut(rng)
        for found in (state_of(found_after(on, disk).log), state_of(found_after(on, disk.power_cut(rng)).log)):
            assert found in allowed or found.lies_between(new=allowed[1], old=allowed[0])

    swap = Swap(on.disk, on.log, group)
    assert swap.begin()
    on.disk.on_operation = cut
    if announced:
        swap.announce()
    swap.discard()
    swap.give_up()
    on.disk.on_operation = None
    assert state_of(on.log) == before
    assert state_of(found_after(on, on.disk.power_cut(rng)).log) == before


def test_what_a_pass_left_does_not_spoil_a_later_swap() -> None:
    """A `.cleaned` log below a `.swap` would have the next start take the swap for incomplete."""
    on = filled(3, 600)
    reports_of(on.disk, job_of(on.log, on.now_ms))
    assert any(name.endswith(".log.cleaned") for name in on.files())
    on.log.delete_before(on.log.segments.items[1].base_offset)
    on.log.apply_retention(on.now_ms)
    job = job_of(on.log, on.now_ms)
    assert job.segments[0].base_offset > 0
    reports_of(on.disk, job)
    assert f"{0:020d}.log.cleaned" not in on.files()
