"""The default metadata store: one SQLite file in WAL mode, shared by the brokers of one host.

All calls run in order on one thread. A commit is durable when it returns (synchronous=FULL). SQLite does not notify
a process of another process's commit, so `wait` watches the write-ahead log (`runtime/file_watch.py`), and polls.

The end of a lease is stored as a time of `Clock.monotonic`. All processes on the machine share this clock until the
machine is restarted. A restart ends all leases that can expire, so the id of the machine's boot is stored with the
time. The writers of entries and the ends of leases are in separate tables, so that older versions of Tidelog, which do
not know these tables, can still use the file.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from tidelog.metadata.store import (
    AppendUnknown,
    Lease,
    PositionTaken,
    Snapshot,
    StoredEntry,
    StoredJournal,
    StoreFailed,
    StoreUnavailable,
    lease_lost,
)
from tidelog.runtime.boot import read_boot_id
from tidelog.runtime.interfaces import Clock, Disk, Tasks

if TYPE_CHECKING:
    import sqlite3

    from tidelog.runtime.file_watch import FileWatch

T = TypeVar("T")

LANE: Final = "metadata"
APPLICATION_ID: Final = 0x7464_6C67
"""The letters "tdlg". They identify the file as a metadata store of Tidelog, for file(1) and for this module."""
SCHEMA_VERSION: Final = 1
BUSY_MS: Final = 5000
"""Longest time that a call waits for another process's commit, in milliseconds."""
WAL_ATTEMPTS: Final = 20
"""Upper bound on the attempts to switch a file to WAL mode while other processes do the same."""
COMMIT_S: Final = 0.01
"""Usual time, in seconds, from the first write to the write-ahead log until the commit can be read."""
POLL_MIN_S: Final = 0.01
POLL_MAX_S: Final = 0.25
"""Shortest and longest pause between two polls of the file, in seconds."""
WATCHED_POLL_MAX_S: Final = 1.0
"""Replaces POLL_MAX_S while this process watches the write-ahead log."""
NO_LIMIT: Final = -1
"""Means "no limit" in SQLite's LIMIT clause."""

SCHEMA: Final = """
CREATE TABLE journal (position INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), position INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL, expires_ms INTEGER);
"""
LATER_TABLES: Final = """
CREATE TABLE IF NOT EXISTS writers (position INTEGER PRIMARY KEY, writer TEXT NOT NULL, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lease_terms (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, boot_id TEXT NOT NULL,
  ttl_ms INTEGER NOT NULL, ends_ms INTEGER NOT NULL);
"""
"""Tables that do not exist in a file of an older Tidelog. `leases.expires_ms` only says whether the lease can expire;
`lease_terms` contains its end, in milliseconds of the monotonic clock."""


class SqliteStore:
    """A `Store` in the file at `path`. The file is created at the first use."""

    entry_bytes_max: int | None = None

    def __init__(self, path: str, clock: Clock, tasks: Tasks, disk: Disk) -> None:
        self.path = path
        self._clock = clock
        self._tasks = tasks
        self._disk = disk
        self._connection: sqlite3.Connection | None = None
        self._boot_id: str | None = None
        self._watch: FileWatch | None = None
        self._can_watch = True
        """False after the system has refused to watch the file, or after `close`."""

    async def inspect(self) -> StoredJournal | None:
        return await self._tasks.run_blocking(self._inspect, lane=LANE)

    async def append(self, position: int, data: bytes, lease: Lease, writer: str = "", number: int = 0) -> None:
        await self._run(self._append, position, data, lease, writer, number)

    async def read(self, start: int, limit: int = 1000) -> list[StoredEntry]:
        return await self._run(self._read, start, limit)

    async def wait(self, position: int) -> None:
        delay_s = POLL_MIN_S
        while True:
            watch = self._watch_log()
            seen = 0 if watch is None else watch.writes
            if await self._run(self._next_position) > position:
                return
            # After a write to the write-ahead log, read again soon, since the commit may not be readable yet.
            is_written = await self._wait_for_write(watch, seen, delay_s)
            delay_max_s = POLL_MAX_S if watch is None else WATCHED_POLL_MAX_S
            delay_s = POLL_MIN_S if is_written else min(2 * delay_s, delay_max_s)

    async def discard_history(self) -> None:
        """Do nothing: the store retains no old values."""

    async def wait_for_write(self, limit_s: float) -> None:
        watch = self._watch_log()
        await self._wait_for_write(watch, 0 if watch is None else watch.writes, limit_s)

    async def _wait_for_write(self, watch: "FileWatch | None", seen: int, limit_s: float) -> bool:
        """Wait until `watch.writes` differs from `seen`, but at most for `limit_s`. After a write to the write-ahead
        log, also wait for the usual time until the commit can be read. Returns whether `watch` has noticed a write.
        """
        if watch is None:
            await self._tasks.sleep(limit_s)
            return False
        if not await watch.wait(seen, limit_s):
            return False
        await self._tasks.sleep(COMMIT_S)
        return True

    def _watch_log(self) -> "FileWatch | None":
        """Return the watch of the write-ahead log. None if the log does not exist yet or cannot be watched."""
        if self._watch is None and self._can_watch:
            from tidelog.runtime.file_watch import open_watch  # imported late: a broker that is alone needs no watch

            log_path = f"{self.path}-wal"
            if self._disk.exists(log_path):
                self._watch = open_watch(log_path)
                self._can_watch = self._watch is not None
        return self._watch

    async def snapshot(self) -> Snapshot | None:
        return await self._run(self._snapshot)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        await self._run(self._save_snapshot, snapshot)

    async def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        return await self._run(self._acquire, name, holder, ttl_ms)

    async def renew(self, lease: Lease, ttl_ms: int) -> None:
        await self._run(self._renew, lease, ttl_ms)

    async def release(self, lease: Lease) -> None:
        await self._run(self._release, lease)

    async def held_leases(self, prefix: str) -> list[Lease]:
        return await self._run(self._held_leases, prefix)

    async def close(self) -> None:
        self._can_watch = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        await self._tasks.run_blocking(self._close, lane=LANE)

    # Except `_run`, the methods below run on the store's thread

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        return await self._tasks.run_blocking(self._call, function, *args, lane=LANE)

    def _call(self, function: Callable[..., T], *args: object) -> T:
        with self._translated_errors():
            return function(self._open(), *args)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            # After SQLITE_FULL and SQLITE_BUSY, the transaction was rolled back, so the store is unchanged.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                raise StoreUnavailable(f"{self.path}: {error}") from error
            remedy = ""
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                remedy = ": put the file back from a copy, together with its -wal and -shm files"
            raise StoreFailed(f"{self.path}: {error}{remedy}") from error
        except _CommitFailed as failure:
            raise AppendUnknown(
                f"{self.path}: {failure.__cause__}: it is unknown whether the change was stored"
            ) from failure

    def _inspect(self) -> StoredJournal | None:
        # A -wal file exists after a crash, and while another process uses the file. In both cases the file is complete
        # only together with its -wal file, and SQLite would have to write in order to merge them.
        if not self._disk.exists(self.path) or self._disk.exists(f"{self.path}-wal"):
            return None
        try:
            with self._translated_errors():
                stored = self._read_unlocked()
        except StoreFailed:
            if self._disk.exists(f"{self.path}-wal"):  # another process has changed the file during the read
                return None
            raise
        return None if self._disk.exists(f"{self.path}-wal") else stored

    def _read_unlocked(self) -> StoredJournal | None:
        """Read the file without a lock. The result is valid only if no process changes the file during the read."""
        import sqlite3

        # With "immutable", SQLite acquires no lock and creates no other files.
        connection = sqlite3.connect(f"file:{quote(self.path)}?immutable=1", uri=True, isolation_level=None)
        try:
            if not self._has_tables(connection):
                return None
            snapshot = self._snapshot(connection)
            return StoredJournal(snapshot, self._read(connection, snapshot.position if snapshot else 0, NO_LIMIT))
        finally:
            connection.close()

    def _open(self) -> "sqlite3.Connection":
        if self._connection is None:
            import sqlite3

            connection = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1000)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: "sqlite3.Connection") -> None:
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        with _transaction(connection):
            if not self._has_tables(connection):
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in LATER_TABLES.split(";"):
                connection.execute(statement)

    def _has_tables(self, connection: "sqlite3.Connection") -> bool:
        """Return whether the file has the tables. Raises StoreFailed if another program or a newer Tidelog has created
        the file.
        """
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0 and application == 0:  # a new file
            return False
        if application != APPLICATION_ID:
            raise StoreFailed(f"{self.path} is not a metadata store of Tidelog")
        if version > SCHEMA_VERSION:
            raise StoreFailed(f"{self.path} was written by a newer version of Tidelog: upgrade this broker")
        return True

    def _append(
        self, connection: "sqlite3.Connection", position: int, data: bytes, lease: Lease, writer: str, number: int
    ) -> None:
        with _transaction(connection, unknown_if_commit_fails=True):
            self._check(connection, lease)
            next_position = self._next_position(connection)
            if position < next_position:
                raise PositionTaken(f"position {position} is taken; the next free position is {next_position}")
            assert position == next_position, "an append must not leave a gap"
            connection.execute("INSERT INTO journal VALUES (?, ?)", (position, data))
            if writer:
                connection.execute("INSERT OR REPLACE INTO writers VALUES (?, ?, ?)", (position, writer, number))

    def _read(self, connection: "sqlite3.Connection", start: int, limit: int) -> list[StoredEntry]:
        (has_writers,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'writers'").fetchone()
        query = "SELECT position, data FROM journal"
        # A file of an older Tidelog has no table of writers until `_prepare` creates it. `inspect` does not create it.
        if has_writers:
            query = (
                "SELECT position, data, coalesce(writer, ''), coalesce(number, 0) "
                "FROM journal LEFT JOIN writers USING (position)"
            )
        rows = connection.execute(f"{query} WHERE position >= ? ORDER BY position LIMIT ?", (start, limit))
        return [StoredEntry(*row) for row in rows]

    def _next_position(self, connection: "sqlite3.Connection") -> int:
        (last,) = connection.execute("SELECT max(position) FROM journal").fetchone()
        (covered_end,) = connection.execute("SELECT max(position) FROM snapshot").fetchone()
        return max(-1 if last is None else last, -1 if covered_end is None else covered_end - 1) + 1

    def _snapshot(self, connection: "sqlite3.Connection") -> Snapshot | None:
        row = connection.execute("SELECT position, data FROM snapshot").fetchone()
        return None if row is None else Snapshot(*row)

    def _save_snapshot(self, connection: "sqlite3.Connection", snapshot: Snapshot) -> None:
        with _transaction(connection):
            (stored,) = connection.execute("SELECT max(position) FROM snapshot").fetchone()
            if stored is not None and stored > snapshot.position:
                return
            connection.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?)", snapshot)
            for table in ("journal", "writers"):
                connection.execute(f"DELETE FROM {table} WHERE position < ?", (snapshot.position,))  # noqa: S608 - constants

    def _acquire(self, connection: "sqlite3.Connection", name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        with _transaction(connection):
            row = connection.execute("SELECT holder, epoch FROM leases WHERE name = ?", (name,)).fetchone()
            current = Lease(name, *(row or ("", 0)))
            if current.holder != holder and self._is_held(connection, current):
                return None
            lease = Lease(name, holder, current.epoch + 1)
            expires_ms = None if ttl_ms is None else self._clock.now_ms() + ttl_ms
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", (*lease, expires_ms))
            if ttl_ms is not None:
                self._set_end(connection, lease, ttl_ms)
            return lease

    def _renew(self, connection: "sqlite3.Connection", lease: Lease, ttl_ms: int) -> None:
        with _transaction(connection):
            self._check(connection, lease)
            self._set_end(connection, lease, ttl_ms)

    def _set_end(self, connection: "sqlite3.Connection", lease: Lease, ttl_ms: int) -> None:
        row = (lease.name, lease.epoch, self._boot(), ttl_ms, self._monotonic_ms() + ttl_ms)
        connection.execute("INSERT OR REPLACE INTO lease_terms VALUES (?, ?, ?, ?, ?)", row)

    def _release(self, connection: "sqlite3.Connection", lease: Lease) -> None:
        # The row is not deleted, so that the next holder's epoch is higher.
        connection.execute(
            "UPDATE leases SET holder = '', expires_ms = NULL WHERE name = ? AND holder = ? AND epoch = ?", lease
        )

    def _held_leases(self, connection: "sqlite3.Connection", prefix: str) -> list[Lease]:
        rows = connection.execute(
            "SELECT name, holder, epoch FROM leases WHERE substr(name, 1, ?) = ? ORDER BY name", (len(prefix), prefix)
        )
        return [lease for lease in map(Lease._make, rows.fetchall()) if self._is_held(connection, lease)]

    def _check(self, connection: "sqlite3.Connection", lease: Lease) -> None:
        if not self._is_held(connection, lease):
            raise lease_lost(lease)

    def _is_held(self, connection: "sqlite3.Connection", lease: Lease) -> bool:
        """Return whether `lease` is the current lease of its name and has not ended."""
        row = connection.execute("SELECT holder, epoch, expires_ms FROM leases WHERE name = ?", lease[:1]).fetchone()
        if not lease.holder or row is None or row[:2] != lease[1:]:
            return False
        if row[2] is None:
            return True
        end = connection.execute(
            "SELECT boot_id, ttl_ms, ends_ms FROM lease_terms WHERE name = ? AND epoch = ?", (lease.name, lease.epoch)
        ).fetchone()
        if end is None or end[0] != self._boot():
            return False
        remaining_ms = int(end[2]) - self._monotonic_ms()
        # If more than the whole term remains, the clock was reset by a restart on a system without boot ids.
        return 0 < remaining_ms <= int(end[1])

    def _monotonic_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def _boot(self) -> str:
        """Return the id of the machine's current boot, or "" if the system has no boot ids."""
        if self._boot_id is None:
            self._boot_id = read_boot_id(self._disk)
        return self._boot_id

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _use_wal(connection: "sqlite3.Connection") -> None:
    """Switch the file to WAL mode, if it is not in this mode yet.

    During this switch, SQLite does not wait (BUSY_MS) for other processes that use the file. Therefore each failed
    attempt is followed by an exclusive transaction, which does wait for them.
    """
    import sqlite3

    for attempts_left in reversed(range(WAL_ATTEMPTS)):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not attempts_left:
                raise
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("ROLLBACK")


class _CommitFailed(Exception):
    """A COMMIT has failed, but its changes may be on the disk."""


@contextmanager
def _transaction(connection: "sqlite3.Connection", *, unknown_if_commit_fails: bool = False) -> Iterator[None]:
    """Run the block as one transaction: atomic, and isolated from other connections.

    With `unknown_if_commit_fails`, a COMMIT that has failed but whose changes may be on the disk raises _CommitFailed.
    """
    import sqlite3

    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            is_undone = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
            if unknown_if_commit_fails and not is_undone:
                raise _CommitFailed from error
            raise
    except BaseException:
        if connection.in_transaction:  # after some errors, SQLite has already rolled back
            connection.execute("ROLLBACK")
        raise
