"""A start that fails for a reason that can be checked beforehand changes nothing on the disk."""

import asyncio
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from process_harness.raw import RawConnection
from tidelog.broker.broker import BrokerServer
from tidelog.config.broker_config import BrokerConfig, ConfigError
from tidelog.log.directory import CLEAN_MARKER
from tidelog.metadata import sqlite
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.interfaces import Runtime
from tidelog.runtime.real import real_runtime

KAFKAS = Path(__file__).parents[2] / "golden/adoption/broker-A"
LOCK_BY_ANOTHER_PROCESS = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


class Case(NamedTuple):
    """`prepare` makes the directories below the one that it is given, and returns log.dirs."""

    name: str
    prepare: Callable[[Path], str]
    message: str
    settings: dict[str, str] = {}  # noqa: RUF012 - never changed
    port_taken: bool = False


def config(log_dirs: str, port: int = 0, **settings: str) -> BrokerConfig:
    flags = {"log.dirs": log_dirs, "listeners": f"PLAINTEXT://127.0.0.1:{port}", "durability": "os"}
    return BrokerConfig.load(None, {}, flags | {name.replace("_", "."): text for name, text in settings.items()})


@contextmanager
def running(log_dirs: str) -> Iterator[int]:
    """A broker in this process, and its port."""
    with asyncio.Runner() as runner:
        runtime = runner.run(_runtime())
        broker = BrokerServer(config(log_dirs), runtime)
        runner.run(broker.start())
        try:
            yield runner.run(_with_a_topic(broker))
        finally:
            runner.run(broker.stop())
            runner.run(runtime.close())


async def _runtime() -> Runtime:
    return real_runtime()


async def _with_a_topic(broker: BrokerServer) -> int:
    def make() -> None:
        with RawConnection(("127.0.0.1", broker.port)) as client:
            client.create_topic("orders", 3)
            client.produce("orders", 0, [b"kept"])

    await asyncio.to_thread(make)
    return broker.port


def kafkas(under: Path) -> str:
    return str(shutil.copytree(KAFKAS, under / "kafka"))


def kafkas_two(under: Path) -> str:
    first = Path(kafkas(under))
    second = under / "kafka-2"
    shutil.copytree(first, second)
    for name in ("__consumer_offsets-15", "belajarkafka-0"):
        shutil.rmtree(second / name)
    for path in first.iterdir():
        if path.name not in ("__consumer_offsets-15", "belajarkafka-0", "meta.properties"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"{first},{second}"


def used(under: Path) -> str:
    with running(str(under / "used")):
        pass
    return str(under / "used")


def used_two(under: Path) -> str:
    with running(f"{under}/used-1,{under}/used-2"):
        pass
    return f"{under}/used-1,{under}/used-2"


def crashed(under: Path) -> str:
    path = used(under)
    (Path(path) / CLEAN_MARKER).unlink()
    return path


def crashed_with_a_journal_in_two_files(under: Path) -> str:
    """As SQLite leaves the store when its process is killed: committed entries are in the -wal."""
    path = crashed(under)
    store = sqlite3.connect(f"{path}/metadata.sqlite", isolation_level=None)
    store.execute("PRAGMA journal_mode = WAL")
    store.execute("UPDATE leases SET epoch = epoch + 1")
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{path}/metadata.sqlite{suffix}", under)
    store.close()
    for suffix in ("", "-wal", "-shm"):
        shutil.move(under / f"metadata.sqlite{suffix}", f"{path}/metadata.sqlite{suffix}")
    return path


def nothing(under: Path) -> str:
    return str(under / "above" / "new")


def empty(under: Path) -> str:
    (under / "empty").mkdir()
    return str(under / "empty")


def used_and_new(under: Path) -> str:
    return f"{used(under)},{under}/new"


def a_file_as_second_without_a_store(under: Path) -> str:
    """What a disk that cannot be read looks like: the journal may be there."""
    (under / "file").write_bytes(b"no directory")
    return f"{kafkas(under)},{under}/file"


def garbage_as_store(under: Path) -> str:
    path = used(under)
    Path(f"{path}/metadata.sqlite").write_bytes(b"no database" * 1000)
    return path


def directory_as_store(under: Path) -> str:
    path = used(under)
    Path(f"{path}/metadata.sqlite").unlink()
    Path(f"{path}/metadata.sqlite").mkdir()
    return path


def _altered_store(under: Path, statement: str) -> str:
    path = used(under)
    store = sqlite3.connect(f"{path}/metadata.sqlite", isolation_level=None)
    store.execute(statement)
    store.close()
    assert not Path(f"{path}/metadata.sqlite-wal").exists()
    return path


def newer_store(under: Path) -> str:
    return _altered_store(under, f"PRAGMA user_version = {sqlite.SCHEMA_VERSION + 1}")


def store_of_another_program(under: Path) -> str:
    return _altered_store(under, "PRAGMA application_id = 7")


def store_with_a_gap(under: Path) -> str:
    return _altered_store(under, "DELETE FROM journal WHERE position = 1")


def store_with_a_damaged_entry(under: Path) -> str:
    return _altered_store(under, "UPDATE journal SET data = X'00' WHERE position = 1")


def truncated_store(under: Path) -> str:
    path = used(under)
    with Path(f"{path}/metadata.sqlite").open("r+b") as store:
        store.truncate(5000)
    return path


def store_of_another_cluster(under: Path) -> str:
    path = used(under)
    meta = Path(path) / "meta.properties"
    lines = [
        "cluster.id=AAAAAAAAAAAAAAAAAAAAAA" if line.startswith("cluster.id") else line
        for line in meta.read_text().splitlines()
    ]
    meta.write_text("\n".join(lines))
    return path


def two_stores(under: Path) -> str:
    first = used(under)
    with running(str(under / "other")):
        pass
    return f"{first},{under}/other"


def partition_in_both(under: Path) -> str:
    first, second = used_two(under).split(",")
    holder, other = (first, second) if Path(f"{first}/orders-0").exists() else (second, first)
    shutil.copytree(f"{holder}/orders-0", f"{other}/orders-0")
    return f"{first},{second}"


def contradicting_partitions(under: Path) -> str:
    path = Path(kafkas(under))
    text = (path / "belajarkafka-0/partition.metadata").read_text()
    (path / "__consumer_offsets-15/partition.metadata").write_text(text)
    return str(path)


def damaged_checkpoint(under: Path) -> str:
    path = Path(kafkas(under))
    (path / "recovery-point-offset-checkpoint").write_bytes(b"no checkpoint")
    return str(path)


def two_clusters(under: Path) -> str:
    (under / "other").mkdir()
    shutil.copy(KAFKAS.parent / "broker-B/meta.properties", under / "other")
    return f"{kafkas(under)},{under}/other"


def somebody_elses(under: Path) -> str:
    (under / "home").mkdir()
    (under / "home/letter.txt").write_text("dear")
    return f"{kafkas(under)},{under}/home"


CASES = [
    *(
        Case(f"busy port: {prepare.__name__}", prepare, "in use", port_taken=True)
        for prepare in (
            kafkas,
            kafkas_two,
            used,
            used_two,
            crashed,
            crashed_with_a_journal_in_two_files,
            nothing,
            empty,
            used_and_new,
        )
    ),
    Case("unknown host", kafkas, "[Nn]ame", {"listeners": "PLAINTEXT://no-such-host.invalid:0"}),
    Case("address of another machine", kafkas, "assign", {"listeners": "PLAINTEXT://192.0.2.1:0"}),
    Case("node id of Kafka's directory", kafkas, "node.id is 7", {"node.id": "7"}),
    Case("node id of our directory", used, "node.id is 7", {"node.id": "7"}),
    Case("two clusters", two_clusters, "belongs to cluster"),
    Case("bad setting", kafkas, "log.retention.ms", {"log.retention.ms": "soon"}),
    Case("cordoned directory that there is not", kafkas, "cordoned.log.dirs", {"cordoned.log.dirs": "/nowhere"}),
    Case("a file in a directory's place", a_file_as_second_without_a_store, "metadata.sqlite is in no data directory"),
    Case("garbage as the store", garbage_as_store, "metadata.sqlite"),
    Case("directory as the store", directory_as_store, "metadata.sqlite"),
    Case("newer store", newer_store, "newer version of Tidelog"),
    Case("store of another program", store_of_another_program, "not a metadata store"),
    Case("store with a gap", store_with_a_gap, "is missing"),
    Case("store with a damaged entry", store_with_a_damaged_entry, "metadata"),
    Case("truncated store", truncated_store, "metadata.sqlite"),
    Case("store of another cluster", store_of_another_cluster, "cluster"),
    Case("two stores", two_stores, "metadata.sqlite lies in"),
    Case("a partition in both directories", partition_in_both, "orders-0 lies in"),
    Case("partitions with two ids", contradicting_partitions, "different ids"),
    Case("damaged checkpoint of Kafka", damaged_checkpoint, "recovery-point-offset-checkpoint"),
    Case("somebody else's directory", somebody_elses, "has no data of Tidelog or Kafka"),
]


def snapshot(under: Path) -> dict[str, tuple[int, int, bytes]]:
    """Of everything below, by its path: when it changed, its size and its content."""
    found = {}
    for path in [under, *sorted(under.rglob("*"))]:
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(under))] = (state.st_mtime_ns, state.st_size, content)
    return found


async def start(made: BrokerConfig) -> None:
    runtime = real_runtime()
    try:
        await BrokerServer(made, runtime).start()
    finally:
        await runtime.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_has_changed(tmp_path: Path, case: Case) -> None:
    log_dirs = case.prepare(tmp_path)
    before = snapshot(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if case.port_taken else 0
        with pytest.raises(Exception, match=case.message) as failure:
            asyncio.run(start(config(log_dirs, port, **case.settings)))
    assert isinstance(failure.value, OSError | ConfigError) or type(failure.value).__module__.startswith("tidelog.")
    assert snapshot(tmp_path) == before


def test_a_second_listener_whose_port_is_taken(tmp_path: Path) -> None:
    log_dirs = kafkas(tmp_path)
    before = snapshot(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listeners = f"PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:{taken.getsockname()[1]}"
        protocols = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
        made = config(log_dirs, listeners=listeners, listener_security_protocol_map=protocols)
        with pytest.raises(OSError, match="in use"):
            asyncio.run(start(made))
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("prepare", [kafkas, used, kafkas_two, used_two, used_and_new])
def test_the_lock_of_a_running_broker(tmp_path: Path, prepare: Callable[[Path], str]) -> None:
    """Kafka's and ours are the same. The last directory is in use; nothing happens to those before it."""
    log_dirs = prepare(tmp_path)
    lock = Path(log_dirs.split(",")[-1]) / ".lock"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    before = snapshot(tmp_path)
    command = [sys.executable, "-c", LOCK_BY_ANOTHER_PROCESS, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(Exception, match="another broker runs in"):
            asyncio.run(start(config(log_dirs)))
        assert snapshot(tmp_path) == before
        other.communicate()


@pytest.mark.parametrize("denied", ["list", "lock", "read"])
def test_a_second_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: str) -> None:
    """The first is Kafka's and has no journal, so the second may be the one that has it."""
    first = kafkas(tmp_path)
    second = used(tmp_path)
    before = snapshot(tmp_path)
    permitted = getattr(LocalDisk, denied)

    def refuse(disk: LocalDisk, path: str) -> object:
        if path.startswith(second):
            raise PermissionError(13, "Permission denied", path)
        return permitted(disk, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, denied, refuse)
        with pytest.raises(Exception, match="Permission denied"):
            asyncio.run(start(config(f"{first},{second}")))
    assert snapshot(tmp_path) == before


def test_a_directory_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could be made before it is removed again."""
    log_dirs = f"{kafkas(tmp_path)},{tmp_path}/above/new,{tmp_path}/other/denied"
    inside = snapshot(tmp_path / "kafka")
    make_dirs = LocalDisk.make_dirs

    def refuse(disk: LocalDisk, path: str) -> None:
        if path.endswith("denied"):
            raise PermissionError(13, "Permission denied", path)
        make_dirs(disk, path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "make_dirs", refuse)
        with pytest.raises(Exception, match="Permission denied"):
            asyncio.run(start(config(log_dirs)))
    assert snapshot(tmp_path / "kafka") == inside
    assert [path.name for path in tmp_path.iterdir()] == ["kafka"]


def test_clients_are_refused_until_the_broker_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is taken early, but nobody is let in, nor held, before the start is over."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused: list[bool] = []
    opened = BrokerServer._acquire_directories

    async def take(broker: BrokerServer) -> object:
        with pytest.raises(OSError, match="in use"):
            await real_runtime().network.bind("127.0.0.1", port)
        with socket.socket() as client:
            refused.append(client.connect_ex(("127.0.0.1", port)) != 0)
        return await opened(broker)

    async def scenario() -> None:
        runtime = real_runtime()
        broker = BrokerServer(config(str(tmp_path / "data"), port), runtime)
        await broker.start()
        assert broker.port == port
        await broker.stop()
        await runtime.close()

    monkeypatch.setattr(BrokerServer, "_acquire_directories", take)
    asyncio.run(scenario())
    assert refused == [True]
