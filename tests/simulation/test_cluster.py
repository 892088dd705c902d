"""Lives of a simulated cluster: they keep every promise, they repeat, and faults that are planted are found."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from process_harness import amount
from simulation_harness.cluster_profiles import PROFILES, Profile
from simulation_harness.lives import check_is_found, check_lives, serve_reads_above_the_high_watermark
from tidelog.coordinator import loading
from tidelog.log import recovery
from tidelog.log.partition_log import PartitionLog
from tidelog.log.producer_state import ProducerState
from tidelog.metadata import controller, records
from tidelog.metadata.service import MetadataService
from tidelog.metadata.store import LeaseTerm
from tidelog.replication.partition import Partition
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.leases import Leases
from tidelog.wire.errors import StorageError

SEEDS = amount(20, 100)
"""Number of seeds of each profile; at least the number of kinds of faults in the largest one."""
MINUTES = amount(15, 60) / 60

TESTS = Path(__file__).parents[1]
REPEAT = """
from simulation_harness.cluster_profiles import PROFILES
from simulation_harness.cluster_life import run_seed
print(run_seed(7, PROFILES["store"], brokers=1, minutes=0.2, trace="all").trace)
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("profile", ["process", "store", "power"])
def test_every_promise_is_kept(profile: str) -> None:
    check_lives(profile, brokers=1, seeds=SEEDS, minutes=MINUTES, events=("retries", "commits", "commits read"))


def test_a_seed_repeats_in_another_process() -> None:
    def trace(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", REPEAT], env=environment, capture_output=True, text=True, check=True
        ).stdout

    first = trace("1")
    assert first.count("\n") > 5000
    assert first == trace("2")


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    configure = Partition.configure

    def planted(partition: Partition, config: object) -> None:
        configure(partition, config)  # type: ignore[arg-type]
        partition._requires_sync = False

    patch.setattr(Partition, "configure", planted)


def append_a_repeated_batch_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "check", lambda *_: None)


def commit_offsets_before_their_append(patch: pytest.MonkeyPatch) -> None:
    is_committed = Partition.is_committed
    patch.setattr(Partition, "is_committed", lambda partition, end: partition.internal or is_committed(partition, end))


def let_the_high_watermark_go_back(patch: pytest.MonkeyPatch) -> None:
    append = Partition.append

    def planted(partition: Partition, *arguments: Any) -> object:
        before = partition.high_watermark
        appended = append(partition, *arguments)
        if appended.next_offset % 20 == 0:
            partition.replica.high_watermark = max(before - 1, 0)
        return appended

    patch.setattr(Partition, "append", planted)


def forget_to_store_producer_ids(patch: pytest.MonkeyPatch) -> None:
    encode = records.encode_in_steps

    def planted(epoch: int, new_records: list[records.JournalRecord]) -> object:
        return encode(epoch, [one for one in new_records if not isinstance(one, records.ProducerIdsAllocated)])

    patch.setattr(records, "encode_in_steps", planted)


def keep_the_leader_epochs_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(controller, "renew_leadership", lambda *_: [])


def let_the_store_extend_lost_leases(patch: pytest.MonkeyPatch) -> None:
    """The pause of a process is longer than its lease. After it, the process renews the lease as if nothing had
    happened.
    """
    start = MetadataService.__init__

    def start_with_term(*arguments: Any, **options: Any) -> None:
        start(*arguments, **options | {"lease_ms": 2000})

    patch.setattr(MetadataService, "__init__", start_with_term)
    patch.setattr(LeaseTerm, "is_over", False)
    patch.setattr(LeaseTerm, "remaining_s", 60.0)
    patch.setattr(Leases, "check", lambda *_: None)


def let_the_store_accept_entries_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "check", lambda *_: None)


def lose_the_last_batch_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    open_log = PartitionLog.open

    def planted(disk: SimDisk, directory: str, *arguments: Any, **rest: Any) -> PartitionLog:
        segments = [name for name in disk.list(directory) if name.endswith(".log")] if disk.is_dir(directory) else []
        if segments:
            file = disk.open(f"{directory}/{segments[-1]}")
            file.truncate(max(file.size() - 1, 0))
            file.close()
        return open_log(disk, directory, *arguments, **rest)

    patch.setattr(PartitionLog, "open", planted)


def keep_torn_batches(patch: pytest.MonkeyPatch) -> None:
    def accept_checksum(data: memoryview) -> object:
        class Equal:
            def __ne__(self, _other: object) -> bool:
                return False

        return Equal()

    patch.setattr(recovery, "crc32c", accept_checksum)


def refuse_records_after_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append
    refused: dict[PartitionLog, None] = {}

    def planted(log: PartitionLog, *arguments: Any, **rest: Any) -> object:
        if log in refused:
            raise StorageError("planted")
        try:
            return append(log, *arguments, **rest)
        except StorageError:
            refused[log] = None
            raise

    patch.setattr(PartitionLog, "append", planted)


def replay_deleted_commits(patch: pytest.MonkeyPatch) -> None:
    set_latest = loading.Loader._set_latest

    def planted(load: Any, stored: Any) -> None:
        if stored.value is not None:
            set_latest(load, stored)

    patch.setattr(loading.Loader, "_set_latest", planted)


def repair_nothing(patch: pytest.MonkeyPatch) -> None:
    """Plant nothing: the fault itself destroys the only copy of a record."""


def only(profile: str, *faults: str) -> Profile:
    """Return the profile with only these faults, one after another."""
    return PROFILES[profile]._replace(faults=dict.fromkeys(faults, 60.0))


@pytest.mark.parametrize(
    ("plant", "profile", "invariants"),
    [
        (
            acknowledge_before_the_sync,
            only("power", "power cut behind records"),
            "NoAckedLoss|OneValueForAnOffset|NoFinalError|SameCommittedRecords",
        ),
        (serve_reads_above_the_high_watermark, PROFILES["power"], "NotAboveHighWatermark"),
        (append_a_repeated_batch_again, only("process", "one-way cut"), "InOrderOnce"),
        (commit_offsets_before_their_append, only("power", "power cut behind a commit"), "CommitsStay"),
        (let_the_high_watermark_go_back, PROFILES["calm"], "MonotonicHighWatermark"),
        (forget_to_store_producer_ids, PROFILES["calm"], "ReplayEqualsImage"),
        (keep_the_leader_epochs_at_a_restart, only("process", "kill"), "OneLeaderPerEpoch"),
        (let_the_store_extend_lost_leases, only("process", "pause"), "LostLeaseStaysLost"),
        (let_the_store_accept_entries_without_a_lease, only("store", "lost session"), "EntriesByTheController"),
        (
            lose_the_last_batch_at_a_restart,
            only("process", "kill"),
            "SameCommittedRecords|OneValueForAnOffset|InOrderOnce|NoAckedLoss|CommitsStay|NoFinalError",
        ),
        (
            keep_torn_batches,
            only("power", "power cut in a write"),
            "WholeBatches|SameCommittedRecords",
        ),
        (refuse_records_after_a_full_disk, only("process", "full disk"), "Liveness"),
        (replay_deleted_commits, only("process", "kill"), "CommitsStay"),
        (
            repair_nothing,
            only("process", "flipped bit"),
            "NoAckedLoss|OneValueForAnOffset|WholeBatches|SameCommittedRecords|Liveness|NoFinalError",
        ),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    profile: Profile,
    invariants: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_is_found(plant, profile, invariants, monkeypatch, brokers=1, minutes=0.25)
