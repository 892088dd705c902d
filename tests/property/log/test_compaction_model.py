"""A compacted log compared with a list: random appends, transactions, passes, cuts, retention, crashes.

The list tells exactly which records are left; that the table of last values never changes follows, and is checked too.
"""

import random
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_harness import DIRECTORY, LogOnDisk
from log_harness.compaction import PLENTY, compact, stored
from tidelog.log.cleaner.offset_map import ENTRY_BYTES
from tidelog.log.config import LogConfig
from tidelog.log.verify import NOTE, verify
from tidelog.simulation.disk import SimDisk
from tidelog.wire.batches import ABORT, COMMIT, Codec
from tidelog.wire.records import Record, encode_batch

RETENTION_MS = 100
KEYS = [b"k%d" % number for number in range(5)] + [b"a key that is longer than a digest %d" % n for n in range(2)]


class Known(NamedTuple):
    """A record as it was appended; `aborted` once its transaction was."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    producer: int
    aborted: bool


class CompactionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Known] = []
        self.dates: dict[int, int] = {}
        """Offset -> when it may go, for tombstones that a pass has met."""
        self.open: dict[int, int] = {}
        """Producer -> first offset of its transaction."""
        self.ended: list[tuple[int, int]] = []
        """First offset and marker's offset of each transaction that has ended."""
        self.clean_offset: int | None = None
        self.was_cut_behind_clean_part = False
        """Whether the end of the log was cut off after a pass of compaction."""
        self.bases: list[int] = []
        """Where batches began."""
        self.count = 0

    @initialize(
        segment_bytes=st.sampled_from([700, 2000]),
        index_interval_bytes=st.sampled_from([0, 100, 4096]),
        policy=st.sampled_from(["compact", "compact,delete"]),
        seed=st.integers(0, 1 << 30),
    )
    def begin(self, segment_bytes: int, index_interval_bytes: int, policy: str, seed: int) -> None:
        config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            cleanup_policy=policy,
            delete_retention_ms=RETENTION_MS,
            retention_ms=-1,
            file_delete_delay_ms=0,
            max_message_bytes=700,
        )
        self.on = LogOnDisk(config, SimDisk(rng=random.Random(seed)))

    @property
    def log(self) -> Any:
        return self.on.log

    # What producers do

    @rule(
        picks=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans(), st.integers(-3, 3)), min_size=1, max_size=4),
        producer=st.integers(-2, 2),
        codec=st.sampled_from(list(Codec)),
        transactional=st.booleans(),
        step=st.integers(0, 30),
    )
    def append(
        self, picks: list[tuple[bytes, bool, int]], producer: int, codec: int, transactional: bool, step: int
    ) -> None:
        self.on.now_ms += step
        base = self.log.log_end_offset
        self.bases.append(base)
        fields: dict[str, Any] = {}
        if producer >= 0:
            entry = self.log.producers.entries.get(producer)
            self.open = {p: first for p, first in self.open.items() if p in self.log.producers.entries}
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": entry.next_sequence if entry else 0,
            }
            transactional = transactional or producer in self.open
            if transactional:
                fields["is_transactional"] = True
                self.open.setdefault(producer, base)
        batch = []
        for delta, (key, has_value, shift) in enumerate(picks):
            self.count += 1
            value = b"%d" % self.count if has_value else None
            batch.append(Record(key, value, self.on.now_ms + shift, [("h", None)] if shift else []))
            self.records.append(Known(base + delta, key, value, self.on.now_ms + shift, producer, False))
        self.on.append_batch(encode_batch(batch, codec=codec, **fields))

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 2), kind=st.sampled_from([ABORT, COMMIT]))
    def end_transaction(self, pick: int, kind: int) -> None:
        producer = list(self.open)[pick % len(self.open)]
        first = self.open.pop(producer)
        record = Record(b"\0\0" + kind.to_bytes(2), b"\0\0\0\0\0\1", self.on.now_ms)
        control = {"is_transactional": True, "is_control": True}
        self.on.append_batch(encode_batch([record], producer_id=producer, producer_epoch=0, **control))
        self.ended.append((first, self.log.log_end_offset - 1))
        if kind == ABORT:
            self.records = [
                r._replace(aborted=True) if r.producer == producer and r.offset >= first else r for r in self.records
            ]

    @rule(key=st.sampled_from(KEYS), has_value=st.booleans(), kind=st.sampled_from([ABORT, COMMIT]))
    def write_transaction(self, key: bytes, has_value: bool, kind: int) -> None:
        """Write a whole transaction of one producer: its parts seldom follow one another by themselves."""
        if 0 not in self.open:
            self.append([(key, has_value, 0)], 0, Codec.NONE, True, 0)
            self.end_transaction(list(self.open).index(0), kind)

    # What the broker does

    @rule()
    def flush(self) -> None:
        self.on.flush()

    @rule()
    def roll(self) -> None:
        self.log.roll(self.on.now_ms)

    @rule(keys_max=st.sampled_from([1, 2, 5, 1000]), step=st.sampled_from([0, 1, RETENTION_MS - 1, RETENTION_MS]))
    def clean(self, keys_max: int, step: int) -> None:
        self.on.now_ms += step
        limits = PLENTY._replace(map_bytes=keys_max * ENTRY_BYTES, load_factor=1.0)
        first = self.clean_offset
        if first is None or not self.log.log_start_offset <= first <= self.log.log_end_offset:
            first = self.log.log_start_offset
        bases = [segment.base_offset for segment in self.log.segments.items]
        end, groups = compact(self.on, clean_offset=self.clean_offset, limits=limits)
        assert end.keys <= keys_max
        self.clean_offset = end.end_offset
        if groups:
            last = groups[-1].base_offsets[-1]
            self.rewrite(first, end.end_offset, min(base for base in bases if base > last))

    @rule(step=st.sampled_from([0, RETENTION_MS]))
    def close_and_clean(self, step: int) -> None:
        """Clean all that can be cleaned: the three rules seldom follow one another by themselves."""
        self.roll()
        self.flush()
        self.clean(1000, step)

    def rewrite(self, first: int, end: int, rewritten_to: int) -> None:
        """What a pass does, on the list."""
        last = {r.key: r.offset for r in self.records if first <= r.offset < end and not r.aborted}
        kept = []
        for r in self.records:
            if r.offset < rewritten_to:
                if r.aborted or (r.offset < last.get(r.key, -1) and r.offset < end):
                    continue
                if r.value is None and r.offset < end and self.dates.get(r.offset, 1 << 62) <= self.on.now_ms:
                    continue
                if r.value is None:
                    self.dates.setdefault(r.offset, self.on.now_ms + RETENTION_MS)
            kept.append(r)
        self.records = kept

    @rule(where=st.integers(0, 1 << 20))
    def delete_records(self, where: int) -> None:
        start = self.log.log_start_offset
        self.log.delete_before(start + where % (self.log.log_end_offset - start + 1))

    @rule(keep=st.integers(0, 3000))
    def retain(self, keep: int) -> None:
        self.on.config.retention_bytes = keep
        self.log.apply_retention(self.on.now_ms, self.log.last_stable_offset)
        self.on.config.retention_bytes = -1
        self.remove_files()

    def remove_files(self) -> None:
        removal = self.log.removal(self.on.now_ms + 1)
        if removal:
            removal.run()
        assert not any(name.endswith((".deleted", ".cleaned", ".swap")) for name in self.on.files())

    @rule(where=st.integers(0, 1 << 20))
    def truncate(self, where: int) -> None:
        """Never below what was clean, which every replica has."""
        low = max(self.clean_offset or 0, self.log.log_start_offset)
        bases = [base for base in self.bases if low <= base < self.log.log_end_offset]
        if not bases:
            return
        offset = bases[where % len(bases)]
        if any(first < offset for first in self.open.values()) or self.ends_transaction_after(offset):
            return
        self.on.truncate_to(offset)
        self.was_cut_behind_clean_part = self.was_cut_behind_clean_part or self.clean_offset is not None
        self.cut()

    def ends_transaction_after(self, offset: int) -> bool:
        """Whether a cut there would open a transaction again."""
        return any(first < offset <= marker for first, marker in self.ended)

    def cut(self) -> None:
        self.records = [r for r in self.records if r.offset < self.log.log_end_offset]
        self.bases = [base for base in self.bases if base < self.log.log_end_offset]
        self.open = {producer: first for producer, first in self.open.items() if first < self.log.log_end_offset}
        self.ended = [each for each in self.ended if each[1] < self.log.log_end_offset]

    # What happens to it

    @rule()
    def restart(self) -> None:
        before = self.sequences(0)
        self.on.restart()
        assert self.sequences(0) == before

    @rule()
    def kill(self) -> None:
        self.kill_without(())

    @rule()
    def kill_and_lose_snapshots(self) -> None:
        """Producers follow from the batches alone: of each, the last one is still there. But a cut may have removed it
        after a pass had removed the earlier ones. Then the producer is forgotten, as in Kafka.
        """
        self.kill_without((".snapshot",), may_forget=self.was_cut_behind_clean_part)

    @rule()
    def kill_and_lose_indexes(self) -> None:
        self.kill_without((".index", ".timeindex"))

    def kill_without(self, suffixes: tuple[str, ...], *, may_forget: bool = False) -> None:
        start = self.log.log_start_offset
        before = self.sequences(start)
        self.on.disk = self.on.disk.kill()
        for name in self.on.files():
            if name.endswith(suffixes):
                self.on.disk.remove(f"{DIRECTORY}/{name}")
        self.on.open(clean=False, log_start_offset=start)
        after = self.sequences(start)
        assert after == before or (may_forget and after.items() <= before.items())

    def sequences(self, start: int) -> dict[int, tuple[int, int]]:
        """Epoch and next sequence of each producer whose last batch is in the log."""
        entries = self.log.producers.entries.items()
        return {i: (e.epoch, e.next_sequence) for i, e in entries if e.batches and e.batches[-1].last_offset >= start}

    # What always holds

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        if not hasattr(self, "on"):
            return
        start = self.log.log_start_offset
        found = [(r.offset, r.key, r.value, r.timestamp) for r in stored(self.log)]
        assert found == [r[:4] for r in self.records if r.offset >= start]

    @invariant()
    def aborted_records_are_known_as_such(self) -> None:
        if hasattr(self, "on"):
            start, end = self.log.log_start_offset, self.log.last_stable_offset
            aborted = self.log.aborted_transactions(start, end)
            assert aborted == sorted(aborted, key=lambda entry: entry.first_offset)
            for r in self.records:
                if start <= r.offset < end:
                    covered = any(
                        a.producer_id == r.producer and a.first_offset <= r.offset <= a.last_offset for a in aborted
                    )
                    assert covered == r.aborted

    def teardown(self) -> None:
        if hasattr(self, "on"):
            result = verify(self.on.disk, DIRECTORY)
            assert [finding for finding in result.findings if finding.severity != NOTE] == []


CompactionModel.TestCase.settings = settings(
    max_examples=settings().max_examples,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCompactionModel = CompactionModel.TestCase
