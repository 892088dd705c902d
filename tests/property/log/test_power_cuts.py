"""Power is cut after every write and sync of random histories: synced data survives, and so does what depends on it."""

import random
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from log_harness import DIRECTORY, NOW_MS, LogOnDisk, make_batch, read_records
from tidelog.log.batch_scan import LEADER_EPOCH, PRODUCER_ID, headers
from tidelog.log.config import LogConfig
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_state import ProducerState
from tidelog.log.replay import replay_batch
from tidelog.log.transaction_index import AbortedTransaction, TransactionIndex
from tidelog.log.verify import NOTE, verify
from tidelog.simulation.disk import SimDisk, SimFile
from tidelog.wire.batches import ABORT, COMMIT, BatchHeader
from tidelog.wire.records import Record, encode_batch

PRODUCERS = 3


def marker(producer_id: int, epoch: int, kind: int) -> bytearray:
    """A control batch that ends a transaction."""
    key, value = b"\0\0" + kind.to_bytes(2), b"\0\0\0\0\0\1"
    return encode_batch(
        [Record(key, value, NOW_MS)],
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        is_control=True,
    )


class History:
    """A broker that appends as producers ask, flushes now and then, and remembers what it promised."""

    def __init__(self, on: LogOnDisk) -> None:
        self.on = on
        self.sequences = [0] * PRODUCERS
        self.open = [False] * PRODUCERS
        self.values: list[tuple[int, bytes]] = []
        self.durable = 0
        """Everything below this offset was acknowledged as being on the disk."""
        self.persisted_recovery_point = 0
        self.epoch = 0

    def append(self, size: int, *, leader_epoch: int, **fields: Any) -> None:
        value = b"%d:" % len(self.values) + b"y" * size
        self.write(make_batch(value, **fields), value, leader_epoch)

    def write(self, batch: bytearray, value: bytes, leader_epoch: int) -> None:
        # The record is in flight from here on: a cut during the write may keep or lose it.
        self.values.append((self.on.log.log_end_offset, value))
        self.on.log.append(memoryview(batch), BatchHeader(batch), leader_epoch=leader_epoch, now_ms=NOW_MS)

    def step(self, action: tuple[str, int]) -> None:
        name, number = action
        producer = number % PRODUCERS
        if name == "append":
            self.append(number, leader_epoch=self.epoch)
        elif name == "idempotent":
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": self.sequences[producer]}
            self.append(number, leader_epoch=self.epoch, is_transactional=self.open[producer], **fields)
            self.sequences[producer] += 1
        elif name == "begin":
            self.open[producer] = True
        elif name in ("commit", "abort") and self.open[producer] and self.sequences[producer]:
            self.open[producer] = False
            value = b"\0\0\0\0\0\1"
            self.write(marker(producer, 0, COMMIT if name == "commit" else ABORT), value, self.epoch)
        elif name == "roll":
            self.on.log.roll(NOW_MS)
        elif name == "epoch":
            self.epoch += 1
        elif name == "flush":
            plan = self.on.log.flush_plan()
            plan.run()
            self.on.log.flushed(plan)
            self.durable = self.on.log.recovery_point
        elif name == "checkpoint":
            self.persisted_recovery_point = self.on.log.recovery_point
        elif name == "close":
            self.on.log.close(clean=True)
            self.durable = self.on.log.recovery_point
            self.on.open(clean=True, recovery_point=self.persisted_recovery_point)


def check(disk: SimDisk, log: PartitionLog, history: History, values: list[tuple[int, bytes]], durable: int) -> None:
    """After the cut: a prefix of what was appended, at least what was synced; state that follows from those batches."""
    end = log.log_end_offset
    assert durable <= end <= len(values)
    assert read_records(log) == values[:end]
    replayed = ProducerState()
    epochs: list[tuple[int, int]] = []
    aborted: list[AbortedTransaction] = []
    indexed: list[AbortedTransaction] = []
    for name in [name for name in disk.list(DIRECTORY) if name.endswith(".log")]:
        file = disk.open(f"{DIRECTORY}/{name}")
        transactions = file.path.removesuffix(".log") + ".txnindex"
        indexed += TransactionIndex(disk, transactions, exists=disk.exists(transactions)).read()
        for position, size, fields in headers(file, 0, file.size(), int(name[:20])):
            if fields[PRODUCER_ID] >= 0:
                replay_batch(replayed, _Collecting(file, aborted), position, size, fields)  # type: ignore[arg-type]
            if not epochs or fields[LEADER_EPOCH] > epochs[-1][0]:
                epochs.append((fields[LEADER_EPOCH], fields[0]))
    assert epochs == [entry for entry in log.epochs.entries() if entry in epochs]
    assert list(log.producers.open_transactions.items()) == list(replayed.open_transactions.items())
    assert {i: (e.epoch, e.next_sequence, e.batches[-1:]) for i, e in log.producers.entries.items()} == {
        i: (e.epoch, e.next_sequence, e.batches[-1:]) for i, e in replayed.entries.items()
    }
    assert indexed == aborted
    result = verify(disk, DIRECTORY)
    assert [finding for finding in result.findings if finding.severity != NOTE] == []


class _Collecting:
    """A segment whose aborted transactions are collected here, not in its index."""

    def __init__(self, file: SimFile, aborted: list[Any]) -> None:
        self.file, self.path, self.transactions = file, file.path, self
        self.append = aborted.append


ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.one_of(st.integers(0, 90), st.integers(0, 1500))),
    st.tuples(st.just("idempotent"), st.one_of(st.integers(0, 90), st.integers(0, 1500))),
    st.tuples(st.sampled_from(["begin", "commit", "abort"]), st.integers(0, PRODUCERS - 1)),
    st.tuples(st.sampled_from(["roll", "flush", "flush", "checkpoint", "close", "epoch"]), st.just(0)),
)  # fmt: skip


@given(
    actions=st.lists(ACTIONS, min_size=5, max_size=40),
    segment_bytes=st.sampled_from([400, 2000, 1 << 30]),
    index_interval_bytes=st.sampled_from([0, 200, 4096]),
    snapshot_interval_bytes=st.sampled_from([1, 500, 16 << 20]),
    seed=st.integers(0, 1 << 30),
)
@settings(
    max_examples=settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_what_was_synced_survives_every_power_cut(
    actions: list[tuple[str, int]],
    segment_bytes: int,
    index_interval_bytes: int,
    snapshot_interval_bytes: int,
    seed: int,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("tidelog.log.durability.SNAPSHOT_INTERVAL_BYTES", snapshot_interval_bytes)
    rng = random.Random(seed)
    config = LogConfig(
        segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, max_message_bytes=1 << 20
    )
    config.segment_bytes = max(segment_bytes, 1700)  # what a batch may have; the segment rolls below it
    on = LogOnDisk(config, SimDisk(rng=random.Random(seed)))
    history = History(on)

    def cut(_operation: str, _path: str) -> None:
        disk = on.disk.power_cut(rng)
        after = LogOnDisk.__new__(LogOnDisk)
        after.config, after.disk, after.now_ms, after.persisted_log_start_offset = config, disk, NOW_MS, 0
        after.open(clean=False, recovery_point=history.persisted_recovery_point)
        check(disk, after.log, history, history.values, history.durable)
        assert after.log.recovery_point == after.log.log_end_offset
        # What recovery kept is durable: a second cut, before anything else happened, takes nothing.
        end = after.log.log_end_offset
        after.disk = disk.power_cut(rng)
        after.open(clean=False, recovery_point=end)
        assert after.log.log_end_offset == end

    on.disk.on_operation = cut
    for action in actions:
        history.step(action)
