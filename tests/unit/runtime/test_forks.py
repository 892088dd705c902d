"""A forked child keeps no part of the runtime that the parent would miss or wait for."""

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import child_harness
from tidelog.runtime.child_process import ChildProcess
from tidelog.runtime.disk import LocalDisk
from tidelog.runtime.network import SocketNetwork
from tidelog.runtime.resets import Resets
from tidelog.runtime.tasks import LoopTasks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX only"),
    # From 3.12 on, Python warns of every fork of a process that has threads.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def in_child(holds: Callable[[], bool]) -> bool:
    """What `holds` says in a forked child."""
    child = os.fork()
    if not child:
        code = 2
        try:
            code = int(holds())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1), "an exception in the child"
    return bool(code)


def held() -> list[str]:
    return [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")


@needs_proc
def test_the_pipes_of_the_child_process() -> None:
    process = ChildProcess()
    process.call(object(), child_harness.say, b"", lambda _: None)
    try:
        running = process._process
        assert running is not None
        assert running.stdin is not None
        pipe = str(Path(f"/proc/self/fd/{running.stdin.fileno()}").readlink())
        assert pipe in held()
        assert not in_child(lambda: pipe in held())
        results: list[bytes] = []
        process.call(object(), child_harness.say, b"ab", results.append)
        assert results[1:] == [b"a", b"b"]
    finally:
        process.end()


@needs_proc
def test_files_locks_and_what_is_held_back(tmp_path: Path) -> None:
    disk = LocalDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    lock = disk.lock(str(tmp_path / "lock"))
    file.pwrite(b"x", 0)
    held_back = len(disk.pool._reserved)

    def counts() -> tuple[int, int]:
        names = held()
        return sum(str(tmp_path) in name for name in names), names.count(os.devnull)

    files, null_devices = counts()
    assert files == 2
    assert held_back
    assert in_child(lambda: counts() == (0, null_devices - held_back))
    file.pwrite(b"y", 1)
    assert file.pread(2, 0) == b"xy"
    lock.release()
    file.close()
    disk.pool.close()


def test_a_lock_of_the_parent_is_its_own(tmp_path: Path) -> None:
    """The child is refused by the kernel while the parent has the lock, and by nobody afterwards."""
    disk = LocalDisk()
    path = str(tmp_path / "lock")
    lock = disk.lock(path)

    def taken_by_another() -> bool:
        try:
            disk.lock(path)
        except BlockingIOError as error:
            return "another process" in str(error)
        return False

    def can_be_taken() -> bool:
        os.write(ready, b".")
        os.read(released, 1)
        disk.lock(path).release()
        return True

    assert in_child(taken_by_another)
    was_ready, ready = os.pipe()
    released, release = os.pipe()
    child = os.fork()
    if not child:
        os._exit(0 if can_be_taken() else 1)
    os.read(was_ready, 1)
    lock.release()
    os.write(release, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for descriptor in (was_ready, ready, released, release):
        os.close(descriptor)


@needs_proc
def test_sockets() -> None:
    async def use() -> None:
        loop = asyncio.get_running_loop()
        network = SocketNetwork(loop, LoopTasks(loop))
        before = sockets()
        listener = (await network.bind("127.0.0.1", 0)).listen(lambda: pytest.fail("nobody connects"))
        assert len(sockets()) == len(before) + 1
        assert in_child(lambda: sockets() == before)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=5):
            network.close()

    def sockets() -> list[str]:
        return sorted(name for name in held() if name.startswith("socket:"))

    asyncio.run(use())


@needs_proc
@pytest.mark.skipif(sys.platform != "linux", reason="resets are watched by epoll")
def test_the_epoll_that_watches_for_resets() -> None:
    async def use() -> None:
        resets = Resets(asyncio.get_running_loop())
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
            before = epolls()
            resets.watch(one.fileno(), lambda: pytest.fail("nothing was reset"))
            assert len(epolls()) == len(before) + 1
            assert in_child(lambda: epolls() == before)
            resets.forget(one.fileno())
            resets.close()

    def epolls() -> list[str]:
        return [name for name in held() if "eventpoll" in name]

    asyncio.run(use())


def test_the_collector_works_in_a_child_though_it_rests_in_the_parent() -> None:
    async def use() -> None:
        tasks = LoopTasks(asyncio.get_running_loop())
        tasks.defer_collection(True)
        try:
            assert not gc.isenabled()
            assert in_child(gc.isenabled)
            assert not gc.isenabled()
        finally:
            tasks.defer_collection(False)
            await tasks.close()

    asyncio.run(use())
