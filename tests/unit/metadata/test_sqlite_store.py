"""The SQLite store: the guarantees of the interface, two processes on one file, kills between append and answer."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidelog.metadata import sqlite
from tidelog.metadata.sqlite import APPLICATION_ID, SqliteStore
from tidelog.metadata.store import Lease, LeaseLost, PositionTaken, Snapshot, StoredEntry, StoreFailed, StoreUnavailable
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.tasks import LoopTasks


class Clock:
    """Wall-clock time that stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


@asynccontextmanager
async def opened(path: Path, clock: Clock | None = None) -> AsyncIterator[SqliteStore]:
    tasks = LoopTasks(asyncio.get_running_loop())
    store = SqliteStore(str(path), clock or Clock(), tasks, LocalDisk())
    try:
        yield store
    finally:
        await store.close()
        await tasks.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


async def taken(store: SqliteStore, holder: str = "one", ttl_ms: int | None = None) -> Lease:
    lease = await store.acquire("controller", holder, ttl_ms)
    assert lease is not None
    return lease


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_entries_follow_each_other_and_are_kept(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            assert await store.read(0) == []
            for position in range(5):
                await store.append(position, b"entry %d" % position, lease)
            assert await store.read(3) == [StoredEntry(3, b"entry 3"), StoredEntry(4, b"entry 4")]
            assert await store.read(0, limit=2) == [StoredEntry(0, b"entry 0"), StoredEntry(1, b"entry 1")]
        async with opened(path) as store:
            assert [e.data for e in await store.read(0)] == [b"entry %d" % i for i in range(5)]

    run(scenario)


def test_a_taken_position_is_refused(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            await store.append(0, b"first", lease)
            with pytest.raises(PositionTaken):
                await store.append(0, b"second", lease)
            with pytest.raises(AssertionError):
                await store.append(2, b"leaves a gap", lease)
            assert await store.read(0) == [StoredEntry(0, b"first")]

    run(scenario)


def test_two_stores_at_one_file_see_each_other(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as one, opened(path) as two:
            lease = await taken(one)
            await one.append(0, b"one", lease)
            assert await two.read(0) == [StoredEntry(0, b"one")]
            with pytest.raises(PositionTaken):
                await two.append(0, b"two", lease)
            waiting = asyncio.ensure_future(two.wait(1))
            await two.wait(0)
            assert not waiting.done()
            await one.append(1, b"next", lease)
            await asyncio.wait_for(waiting, 10)

    run(scenario)


def test_a_write_of_another_process_is_noticed_without_reading_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower of the journal and the controller learn of a dead broker at once, and an idle store is hardly read."""
    monkeypatch.setattr(sqlite, "POLL_MIN_S", 1000.0)
    monkeypatch.setattr(sqlite, "WATCHED_POLL_MAX_S", 1000.0)

    async def scenario() -> None:
        async with opened(path) as one, opened(path) as two:
            lease = await taken(one)
            await two.read(0)  # the first call of a process may write
            reads = 0
            next_position = two._next_position

            def counted(connection: sqlite3.Connection) -> int:
                nonlocal reads
                reads += 1
                return next_position(connection)

            two._next_position = counted  # type: ignore[method-assign]
            waiting = asyncio.ensure_future(two.wait(0))
            for_a_write = asyncio.ensure_future(two.wait_for_write(1000.0))
            await asyncio.sleep(0.3)
            seen = waiting.done(), for_a_write.done(), reads
            monkeypatch.setattr(sqlite, "POLL_MIN_S", 0.01)  # the commit may become readable a little later
            await one.append(0, b"one", lease)
            await asyncio.wait((waiting, for_a_write), timeout=30)
            noticed = waiting.done(), for_a_write.done()
            waiting.cancel()
            for_a_write.cancel()
            assert (seen, noticed) == ((False, False, 1), (True, True))
            assert reads <= 20

    run(scenario)


def test_a_write_is_noticed_later_where_files_cannot_be_watched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(path) as one, opened(path) as two:
            lease = await taken(one)
            monkeypatch.setattr(two, "_can_watch", False)
            waiting = asyncio.ensure_future(two.wait(0))
            await asyncio.sleep(0.1)
            await one.append(0, b"one", lease)
            await asyncio.wait_for(waiting, 30)

    run(scenario)


def test_a_lease_has_one_holder_and_every_holding_a_new_epoch(path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with opened(path, clock) as store:
            first = await taken(store, "one", 1000)
            assert first == Lease("controller", "one", 1)
            assert await store.acquire("controller", "two", 1000) is None
            assert await store.acquire("another", "two", 1000) == Lease("another", "two", 1)
            again = await taken(store, "one", 1000)
            assert again.epoch == 2
            with pytest.raises(LeaseLost):
                await store.append(0, b"under the first", first)
            clock.ms += 999
            await store.append(0, b"in time", again)
            await store.renew(again, 1000)
            clock.ms += 999
            assert await store.acquire("controller", "two", 1000) is None
            clock.ms += 1
            with pytest.raises(LeaseLost):
                await store.append(1, b"too late", again)
            with pytest.raises(LeaseLost):
                await store.renew(again, 1000)
            other = await taken(store, "two", 1000)
            assert other.epoch == 3
            await store.append(1, b"by the other", other)
            await store.release(again)  # lost long ago: nothing happens
            await store.append(2, b"by the other", other)
            await store.release(other)
            with pytest.raises(LeaseLost):
                await store.append(3, b"released", other)
            assert (await taken(store, "one")).epoch == 4

    run(scenario)


def test_a_lease_without_an_end_survives_its_process(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            await taken(store, "one")
        clock = Clock()
        clock.ms += 10**12
        async with opened(path, clock) as store:
            assert await store.acquire("controller", "two", None) is None
            assert (await taken(store, "one")).epoch == 2

    run(scenario)


def test_a_snapshot_takes_the_place_of_the_entries_that_it_covers(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            assert await store.snapshot() is None
            for position in range(10):
                await store.append(position, b"x" * 10_000, lease)
            await store.save_snapshot(Snapshot(7, b"state"))
            assert await store.snapshot() == Snapshot(7, b"state")
            assert [e.position for e in await store.read(0)] == [7, 8, 9]
            await store.save_snapshot(Snapshot(10, b"later state"))
            assert await store.read(0) == []
            with pytest.raises(PositionTaken):
                await store.append(9, b"covered", lease)
            await store.append(10, b"goes on", lease)
        async with opened(path) as store:
            assert await store.snapshot() == Snapshot(10, b"later state")
            assert await store.read(10) == [StoredEntry(10, b"goes on")]

    run(scenario)


def test_a_look_finds_everything_and_changes_nothing(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            assert await store.inspect() is None
            assert not path.exists()
            lease = await taken(store)
            for position in range(3):
                await store.append(position, b"%d" % position, lease)
            await store.save_snapshot(Snapshot(2, b"two"))
            assert await store.inspect() is None  # what is in the -wal cannot be read without a change
        before = path.stat()
        async with opened(path) as store:
            stored = await store.inspect()
            assert stored == (Snapshot(2, b"two"), [StoredEntry(2, b"2")])
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    run(scenario)


def test_a_look_at_what_is_no_store_says_so(path: Path) -> None:
    content = b"no database at all, but long enough for a header" * 20
    path.write_bytes(content)

    async def scenario() -> None:
        async with opened(path) as store:
            with pytest.raises(StoreFailed, match=r"metadata\.sqlite"):
                await store.inspect()

    run(scenario)
    assert path.read_bytes() == content


def test_the_file_stays_small_when_it_is_trimmed(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            for position in range(200):
                await store.append(position, b"x" * 10_000, lease)
                if position % 20 == 19:
                    await store.save_snapshot(Snapshot(position + 1, b"state"))

    run(scenario)
    assert path.stat().st_size < 1_000_000


@pytest.mark.parametrize("content", [b"SQLite format 3\0 but no more", b"something else " * 1000])
def test_a_file_that_is_no_store_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    async def scenario() -> None:
        async with opened(path) as store:
            with pytest.raises(StoreFailed, match=r"metadata\.sqlite"):
                await store.read(0)

    run(scenario)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("pragmas", "reason"),
    [
        ("PRAGMA application_id = 5; PRAGMA user_version = 1", "is not a metadata store of Tidelog"),
        ("PRAGMA user_version = 1", "is not a metadata store of Tidelog"),
        (
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 2",
            "was written by a newer version of Tidelog",
        ),
    ],
)
def test_another_programs_database_is_left_alone(path: Path, pragmas: str, reason: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE theirs (a); " + pragmas)
    connection.close()

    async def scenario() -> None:
        async with opened(path) as store:
            with pytest.raises(StoreFailed, match=reason):
                await store.read(0)

    run(scenario)


def test_commits_are_synced_and_the_log_is_ahead(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            await taken(store)
            connection = store._connection
            assert connection is not None
            modes = await store._tasks.run_blocking(
                lambda: [connection.execute(f"PRAGMA {p}").fetchone()[0] for p in ("journal_mode", "synchronous")],
                lane="metadata",
            )
            assert modes == ["wal", 2]  # 2: FULL

    run(scenario)


def test_a_full_store_is_as_it_was(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            await store.append(0, b"first", lease)
            connection = store._connection
            assert connection is not None

            def limit(pages: int) -> None:
                connection.execute(f"PRAGMA max_page_count = {pages}")

            await store._tasks.run_blocking(limit, 1, lane="metadata")
            with pytest.raises(StoreUnavailable, match="full"):
                await store.append(1, b"x" * 1_000_000, lease)
            assert await store.read(0) == [StoredEntry(0, b"first")]
            await store._tasks.run_blocking(limit, 100_000, lane="metadata")
            await store.append(1, b"x" * 1_000_000, lease)

    run(scenario)


def test_a_busy_store_is_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.metadata.sqlite.BUSY_MS", 50)

    async def scenario() -> None:
        async with opened(path) as store:
            lease = await taken(store)
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.append(0, b"first", lease)
            other.execute("ROLLBACK")
            other.close()
            await store.append(0, b"first", lease)

    run(scenario)


# Two processes: what is acknowledged is kept, and each position has one winner

WRITER = """
import asyncio, sys
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import Lease, PositionTaken
from tidelog.runtime.clock import SystemClock
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.tasks import LoopTasks

async def main(path, name, count):
    tasks = LoopTasks(asyncio.get_running_loop())
    store = SqliteStore(path, SystemClock(), tasks, LocalDisk())
    lease = Lease("controller", "shared", 1)
    position = won = 0
    while won < count:
        try:
            await store.append(position, f"{name} {won}".encode(), lease)
        except PositionTaken:
            position = (await store.read(position))[-1].position + 1
            continue
        print(position, flush=True)
        won += 1
        position += 1
    await store.close()
    await tasks.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


OPENER = """
import asyncio, sys
from tidelog.metadata.sqlite import SqliteStore
from tidelog.runtime.clock import SystemClock
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.tasks import LoopTasks

async def main(path, name):
    tasks = LoopTasks(asyncio.get_running_loop())
    store = SqliteStore(path, SystemClock(), tasks, LocalDisk())
    lease = await store.acquire("controller", name, 9000)
    if lease is not None:
        print(lease.epoch)
    await store.close()
    await tasks.close()

asyncio.run(main(*sys.argv[1:]))
"""


def writer(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def prepare(path: Path) -> None:
    async def scenario() -> None:
        async with opened(path) as store:
            assert await taken(store, "shared") == Lease("controller", "shared", 1)

    run(scenario)


def entries(path: Path) -> dict[int, str]:
    found: dict[int, str] = {}

    async def scenario() -> None:
        async with opened(path) as store:
            while page := await store.read(len(found)):
                found.update({entry.position: entry.data.decode() for entry in page})

    run(scenario)
    return found


def test_two_processes_contend_for_positions(path: Path) -> None:
    prepare(path)
    processes = {name: writer(path, name, 60) for name in ("a", "b")}
    won = {
        name: [int(line) for line in process.communicate(timeout=60)[0].split()] for name, process in processes.items()
    }
    assert all(process.returncode == 0 for process in processes.values())
    assert sorted(won["a"] + won["b"]) == list(range(120))
    kept = entries(path)
    for name, positions in won.items():
        assert [kept[position] for position in positions] == [f"{name} {i}" for i in range(60)]


def test_new_processes_may_open_a_new_file_at_once(path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", OPENER, str(path), str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    holders = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert sorted(holders) == ["", "", "", "1"], "one of them has the lease, in its first epoch"


def test_a_look_at_a_file_that_another_process_changes_finds_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(path)
    read_unlocked = SqliteStore._read_unlocked
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def read_while_another_writes(store: SqliteStore) -> object:
        stored = read_unlocked(store)
        other.execute("BEGIN IMMEDIATE")
        other.execute("COMMIT")
        return stored

    monkeypatch.setattr(SqliteStore, "_read_unlocked", read_while_another_writes)

    async def scenario() -> None:
        async with opened(path) as store:
            assert await store.inspect() is None

    run(scenario)
    other.close()


def test_what_a_killed_process_was_told_is_kept(path: Path) -> None:
    """It dies at any point between append and answer: the journal has all that was answered, and at most one more."""
    prepare(path)
    for kill_after in (0, 1, 7, 20):
        process = writer(path, "w", 10_000)
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(kill_after)]
        os.kill(process.pid, signal.SIGKILL)
        told += [int(line) for line in process.stdout]
        process.wait(60)
        process.stdout.close()
        copy = path.with_name("copy.sqlite")
        for suffix in ("", "-wal", "-shm"):
            if Path(f"{path}{suffix}").exists():
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        kept = entries(copy)
        assert list(kept) == list(range(len(kept)))
        if told:
            assert told[-1] in (len(kept) - 1, len(kept) - 2)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{copy}{suffix}").unlink(missing_ok=True)


# Leases by the monotonic clock of one boot, and files of older versions


class Boot:
    """A disk whose file with the boot's id can change, as after a restart of the machine."""

    def __init__(self, boot_id: str | None) -> None:
        self.boot_id = boot_id
        self._disk = LocalDisk()

    def read(self, path: str) -> bytes:
        if self.boot_id is None:
            raise FileNotFoundError(path)
        return self.boot_id.encode()

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)


@asynccontextmanager
async def booted(path: Path, clock: Clock, boot_id: str | None) -> AsyncIterator[SqliteStore]:
    tasks = LoopTasks(asyncio.get_running_loop())
    store = SqliteStore(str(path), clock, tasks, Boot(boot_id))  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()
        await tasks.close()


class StepClock(Clock):
    """A monotonic clock and a wall clock that are set separately."""

    def __init__(self) -> None:
        super().__init__()
        self.monotonic_s = 1000.0

    def monotonic(self) -> float:
        return self.monotonic_s


def test_a_step_of_the_wall_clock_neither_ends_nor_extends_a_lease(path: Path) -> None:
    async def scenario() -> None:
        clock = StepClock()
        async with booted(path, clock, "b1") as store:
            lease = await taken(store, "one", 1000)
            clock.ms += 10**9
            assert await store.acquire("controller", "two", 1000) is None
            await store.append(0, b"still held", lease)
            clock.ms -= 10**10
            clock.monotonic_s += 1.0
            with pytest.raises(LeaseLost):
                await store.append(1, b"over", lease)
            assert (await taken(store, "two", 1000)).epoch == 2

    run(scenario)


@pytest.mark.parametrize("passed_s", [-900.0, 0.1, 900.0])
def test_a_lease_of_another_boot_has_ended(path: Path, passed_s: float) -> None:
    """After a restart the monotonic clock begins anew: it may show less than before, or more."""

    async def scenario() -> None:
        clock = StepClock()
        async with booted(path, clock, "b1") as store:
            lease = await taken(store, "one", 60_000)
            assert await store.acquire("controller", "two", 60_000) is None
        clock.monotonic_s += passed_s
        async with booted(path, clock, "b2") as store:
            assert await store.held_leases("") == []
            with pytest.raises(LeaseLost):
                await store.renew(lease, 60_000)
            assert (await taken(store, "two", 60_000)).epoch == 2

    run(scenario)


def test_without_ids_of_boots_a_clock_that_began_anew_ends_a_lease(path: Path) -> None:
    async def scenario() -> None:
        clock = StepClock()
        async with booted(path, clock, None) as store:
            await taken(store, "one", 60_000)
            assert await store.acquire("controller", "two", 60_000) is None
        clock.monotonic_s = 1.0
        async with booted(path, clock, None) as store:
            assert (await taken(store, "two", 60_000)).epoch == 2

    run(scenario)


OLDER_SCHEMA = """
CREATE TABLE journal (position INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL, expires_ms INTEGER);
INSERT INTO snapshot VALUES (1, 2, x'32');
INSERT INTO journal VALUES (2, x'6f6c64');
INSERT INTO leases VALUES ('controller', 'broker-1', 7, NULL);
"""


def older_file(path: Path) -> None:
    """Write a file as the first version of this store did."""
    connection = sqlite3.connect(path)
    connection.executescript(
        f"PRAGMA journal_mode = WAL;{OLDER_SCHEMA}PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = 1;"
    )
    connection.close()


def test_a_file_of_an_older_version_opens_and_the_older_version_still_uses_it(path: Path) -> None:
    older_file(path)
    before = path.read_bytes()

    async def scenario() -> None:
        async with opened(path) as store:
            assert await store.inspect() == (Snapshot(2, b"2"), [StoredEntry(2, b"old")])
            assert path.read_bytes() == before
            assert await store.acquire("controller", "broker-2", None) is None
            lease = await taken(store, "broker-1")
            assert lease.epoch == 8
            await store.append(3, b"new", lease, "w", 5)
            await store.append(4, b"no writer", lease)
            assert await store.read(0) == [
                StoredEntry(2, b"old"),
                StoredEntry(3, b"new", "w", 5),
                StoredEntry(4, b"no writer"),
            ]

    run(scenario)
    connection = sqlite3.connect(path)  # the statements of the older version
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT position, data FROM journal WHERE position >= 3").fetchall() == [
        (3, b"new"),
        (4, b"no writer"),
    ]
    with connection:
        connection.execute("INSERT INTO journal VALUES (?, ?)", (5, b"of the older"))
        connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", ("controller", "broker-1", 9, None))
    connection.close()

    async def scenario_after() -> None:
        async with opened(path) as store:
            assert (await store.read(5)) == [StoredEntry(5, b"of the older")]
            assert (await taken(store, "broker-1")).epoch == 10

    run(scenario_after)
