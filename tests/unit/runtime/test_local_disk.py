"""The real disk: files, the descriptor pool, failed syncs, atomic replacement, locks."""

import errno
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.runtime import descriptors as descriptors_module
from tidelog.runtime import disk as disk_module
from tidelog.runtime.descriptors import RESERVED_FOR_SYNCS, descriptor_limit, raise_descriptor_limit
from tidelog.runtime.disk import LocalDisk, LocalFile


def open_count(disk: LocalDisk) -> int:
    return len(disk.pool._order) + len(disk.pool._retiring)


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    disk = LocalDisk(descriptors_max=4)
    yield disk
    disk.close()


def open_descriptors() -> int:
    listing = Path("/proc/self/fd")
    return len(list((listing if listing.is_dir() else Path("/dev/fd")).iterdir()))


def test_syncs_go_on_when_all_descriptors_are_taken(tmp_path: Path) -> None:
    program = (
        "import errno, os, resource, sys\n"
        "from tidelog.runtime.disk import LocalDisk\n"
        "root = sys.argv[1]\n"
        "disk = LocalDisk(descriptors_max=20)\n"
        "index = disk.open(f'{root}/0.index', create=True)\n"
        "disk.pool.close_descriptor(index)\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "dirty, taken = [], []\n"
        "for number in range(5):\n"
        "    dirty.append(disk.open(f'{root}/{number}.log', create=True))\n"
        "    dirty[-1].pwrite(b'unsynced', 0)\n"
        "try:\n"
        "    while True: taken.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError as error: assert error.errno == errno.EMFILE\n"
        "for again in range(20):\n"
        "    disk.sync_dir(root)\n"
        "    disk.write_atomic(f'{root}/checkpoint', b'%d' % again)\n"
        "    index.sync()\n"
        "    disk.pool.close_descriptor(index)\n"
        "try: disk.open(f'{root}/another', create=True)\n"
        "except OSError as error: print(error.errno == errno.EMFILE)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True\n", ""), "what is held back is for syncs"
    assert (tmp_path / "checkpoint").read_bytes() == b"19"


def test_reads_and_writes_at_positions(disk: LocalDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "00.log")
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    file = disk.open(path, create=True)
    file.pwrite(b"hello world", 0)
    file.pwrite(memoryview(b"WORLD"), 6)
    file.pwrite(bytearray(b"!"), 14)
    assert file.size() == 15
    assert file.pread(100, 0) == b"hello WORLD\0\0\0!"
    assert file.pread(5, 6) == b"WORLD"
    assert file.pread(5, 15) == b""
    file.truncate(5)
    assert disk.read(path) == b"hello"
    file.sync()
    assert not file.dirty


def test_a_short_write_is_continued_and_its_error_is_raised(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    pwrite = os.pwrite
    room = [20]

    def nearly_full(descriptor: int, data: memoryview, position: int) -> int:
        count = min(3, room[0], len(data))
        if not count:
            raise OSError(errno.ENOSPC, "no space left")
        room[0] -= count
        return pwrite(descriptor, bytes(data)[:count], position)

    monkeypatch.setattr(os, "pwrite", nearly_full)
    file.pwrite(b"0123456789", 0)
    assert file.pread(10, 0) == b"0123456789"
    with pytest.raises(OSError) as full:
        file.pwrite(b"abcdefghijklmn", 10)
    assert full.value.errno == errno.ENOSPC
    assert file.pread(100, 10) == b"abcdefghij"
    assert file.dirty


def test_short_reads_are_continued(disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    file = disk.open(str(tmp_path / "a"))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, position: pread(descriptor, min(size, 7), position))
    assert file.pread(90, 5) == bytes(range(5, 95))


def test_opening_takes_no_descriptor_and_the_pool_is_bounded(disk: LocalDisk, tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.log").write_bytes(b"%d" % number)
    before = open_descriptors()
    files = [disk.open(str(tmp_path / f"{number}.log")) for number in range(50)]
    assert open_descriptors() == before
    for _ in range(3):
        for number, file in enumerate(files):
            assert file.pread(10, 0) == b"%d" % number
            assert open_count(disk) <= 4
            assert open_descriptors() <= before + 4 + RESERVED_FOR_SYNCS
    disk.close()
    assert open_descriptors() == before


def test_a_file_in_use_keeps_its_descriptor_before_an_idle_one(disk: LocalDisk, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.log").write_bytes(b"x")
    files = [disk.open(str(tmp_path / f"{number}.log")) for number in range(20)]
    hot = files[0]
    hot.pread(1, 0)
    descriptor = hot.descriptor
    for cold in files[1:]:
        cold.pread(1, 0)
        assert hot.descriptor == descriptor
        hot.pread(1, 0)


def test_unsynced_descriptors_stay_and_the_excess_is_said_once(
    disk: LocalDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [disk.open(str(tmp_path / f"{number}.log"), create=True) for number in range(10)]
    assert open_count(disk) == 4  # clean ones made room
    with caplog.at_level(logging.WARNING, "tidelog.disk"):
        for file in files:
            file.pwrite(b"dirty", 0)
    assert open_count(disk) == 10
    assert all(file.descriptor >= 0 for file in files)
    assert caplog.text.count("more open descriptors") == 1
    for file in files[:8]:
        file.sync()
    one_more = disk.open(str(tmp_path / "more.log"), create=True)
    assert one_more.descriptor >= 0
    assert open_count(disk) == 4
    assert all(file.descriptor >= 0 for file in files[8:])


def test_out_of_descriptors_the_pool_gives_back_some(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.pool.descriptors_max = 1000
    files = [disk.open(str(tmp_path / f"{number}.log"), create=True) for number in range(8)]
    really_open = os.open

    def limited(path: str, flags: int, mode: int = 0o777) -> int:
        if open_count(disk) >= 8:
            raise OSError(errno.EMFILE, "too many open files")
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", limited)
    last = disk.open(str(tmp_path / "last.log"), create=True)
    last.pwrite(b"x", 0)
    assert open_count(disk) <= 8
    for file in files:
        file.pwrite(b"dirty", 0)
        if file is files[-2]:
            break
    with pytest.raises(OSError) as exhausted:
        files[-1].pread(1, 0)
    assert exhausted.value.errno == errno.EMFILE


def test_no_thread_meets_a_descriptor_that_was_taken_away(tmp_path: Path) -> None:
    disk = LocalDisk(descriptors_max=2)
    content = {}
    for number in range(12):
        content[number] = bytes([number]) * 4096
        (tmp_path / f"{number}.log").write_bytes(content[number])
    files = {number: disk.open(str(tmp_path / f"{number}.log")) for number in range(12)}
    wrong: list[object] = []

    def read(first: int) -> None:
        try:
            for turn in range(1500):
                number = (first * 5 + turn * 7) % 12
                if files[number].pread(4096, 0) != content[number]:
                    wrong.append(number)
        except OSError as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    disk.close()
    assert wrong == []


def test_a_descriptor_in_use_is_closed_only_afterwards(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    file = disk.open(str(tmp_path / "a"))
    file.pread(1, 0)
    descriptor = file.descriptor
    file.pins.append(None)  # as if a sync were in another thread
    file.close()
    os.fstat(descriptor)
    file.pins.clear()
    disk.open(str(tmp_path / "b"), create=True)
    assert open_count(disk) == 1
    with pytest.raises(OSError) as closed:
        file.pread(1, 0)
    assert closed.value.errno == errno.EBADF
    file.close()


def test_a_failed_sync_is_never_retried_into_silence(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"x", 0)
    calls: list[int] = []

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(disk_module, "_sync_descriptor", failing)
    with pytest.raises(OSError) as first:
        file.sync()
    assert (first.value.errno, first.value.filename) == (errno.EIO, str(tmp_path / "a"))
    monkeypatch.setattr(disk_module, "_sync_descriptor", os.fsync)
    for _ in range(2):
        with pytest.raises(OSError, match="earlier sync failed") as again:
            file.sync()
        assert again.value.errno == errno.EIO
    assert calls == [file.descriptor]
    assert file.dirty


def test_what_is_written_during_a_sync_stays_dirty(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.pwrite(b"x", 0)
    monkeypatch.setattr(disk_module, "_sync_descriptor", lambda _descriptor: file.pwrite(b"y", 1))
    file.sync()
    assert file.dirty
    monkeypatch.undo()
    file.sync()
    assert not file.dirty


def test_atomic_replacement_leaves_old_or_new(disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "meta.properties")
    disk.write_atomic(path, b"old")
    steps: list[str] = []
    replace, sync_dir = os.replace, disk.sync_dir
    monkeypatch.setattr(disk_module, "_sync_descriptor", lambda _descriptor: steps.append("sync"))

    def noted_replace(source: str, target: str) -> None:
        steps.append("rename")
        replace(source, target)

    def noted_sync_dir(directory: str) -> None:
        steps.append(f"sync {directory}")
        sync_dir(directory)

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(disk, "sync_dir", noted_sync_dir)
    disk.write_atomic(path, b"new")
    assert steps == ["sync", "rename", f"sync {tmp_path}"]
    assert disk.read(path) == b"new"

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(disk_module, "_sync_descriptor", failing)
    with pytest.raises(OSError):
        disk.write_atomic(path, b"newer")
    assert disk.read(path) == b"new"
    assert disk.list(str(tmp_path)) == ["meta.properties"]


def test_open_files_follow_renames(disk: LocalDisk, tmp_path: Path) -> None:
    root = str(tmp_path)
    disk.make_dirs(f"{root}/orders-0/deep")
    disk.make_dirs(f"{root}/orders-0/deep")
    log = disk.open(f"{root}/orders-0/0.log", create=True)
    index = disk.open(f"{root}/orders-0/0.index", create=True)
    deep = disk.open(f"{root}/orders-0/deep/x", create=True)
    log.pwrite(b"log", 0)
    log.sync()
    disk.rename(log.path, f"{root}/orders-0/0.log.deleted")
    assert (log.path, index.path) == (f"{root}/orders-0/0.log.deleted", f"{root}/orders-0/0.index")
    disk.rename(f"{root}/orders-0", f"{root}/orders-0.x-delete")
    assert log.path == f"{root}/orders-0.x-delete/0.log.deleted"
    assert index.path == f"{root}/orders-0.x-delete/0.index"
    assert deep.path == f"{root}/orders-0.x-delete/deep/x"
    disk.pool.close_descriptor(log)
    assert log.pread(3, 0) == b"log"
    other = disk.open(f"{root}/other", create=True)
    disk.rename(f"{root}/other", index.path)
    assert other.path == f"{root}/orders-0.x-delete/0.index"
    disk.remove_tree(f"{root}/orders-0.x-delete")
    assert disk.list(root) == []


def test_a_file_that_is_being_renamed_on_another_thread_is_opened_where_it_went(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "0.log")
    file = disk.open(path, create=True)
    file.pwrite(b"log", 0)
    file.sync()
    disk.pool.close_descriptor(file)
    renamed, missed = threading.Event(), threading.Event()
    replace, pool_open = os.replace, disk.pool.open

    def slow_replace(source: str, target: str) -> None:
        replace(source, target)
        renamed.set()
        assert missed.wait(10)

    def noted_open(file: LocalFile, flags: int, *, to_sync: bool) -> int:
        try:
            return pool_open(file, flags, to_sync=to_sync)
        except FileNotFoundError:
            missed.set()
            raise

    monkeypatch.setattr(os, "replace", slow_replace)
    monkeypatch.setattr(disk.pool, "open", noted_open)
    thread = threading.Thread(target=disk.rename, args=(path, f"{path}.deleted"))
    thread.start()
    assert renamed.wait(10)
    assert file.pread(3, 0) == b"log"
    thread.join()
    disk.remove(f"{path}.deleted")
    disk.pool.close_descriptor(file)
    with pytest.raises(FileNotFoundError):
        file.pread(3, 0)


def test_the_file_system_around_files(disk: LocalDisk, tmp_path: Path) -> None:
    root = str(tmp_path)
    disk.make_dirs(f"{root}/a/b")
    disk.open(f"{root}/a/z", create=True)
    disk.open(f"{root}/a/c", create=True).pwrite(b"123", 0)
    assert disk.list(f"{root}/a") == ["b", "c", "z"]
    assert (disk.size(f"{root}/a/c"), disk.exists(f"{root}/a/c"), disk.exists(f"{root}/a/d")) == (3, True, False)
    assert (disk.is_dir(f"{root}/a/b"), disk.is_dir(f"{root}/a/c")) == (True, False)
    with pytest.raises(IsADirectoryError):
        disk.open(f"{root}/a/b")
    disk.remove(f"{root}/a/z")
    assert disk.list(f"{root}/a") == ["b", "c"]
    disk.sync_dir(root)
    assert disk.free_bytes(root) > 0


def test_directories_are_made_durable(disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_dir", synced.append)
    disk.make_dirs(f"{tmp_path}/a/b/c")
    assert synced == [f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/a/b"]
    disk.make_dirs(f"{tmp_path}/a/b/c")
    disk.make_dirs(f"{tmp_path}/a/b/d/")
    assert synced[3:] == [f"{tmp_path}/a/b"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        disk.make_dirs(f"{tmp_path}/file")


def test_a_lock_keeps_out_this_process_and_others(disk: LocalDisk, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        LocalDisk().lock(path)
    posix = "import fcntl,sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-S", "-c", posix, path]
    assert b"BlockingIOError" in subprocess.run(command, capture_output=True, check=False).stderr
    held.release()
    held.release()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    disk.lock(path).release()


def test_residency_is_asked_without_waiting(disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    file = disk.open(str(tmp_path / "a"))
    assert file.resident(0, 1 << 20)
    assert file.resident(5, 0)
    answers: dict[int, OSError] = {}
    probes: list[int] = []

    def probe(_descriptor: int, buffers: list[bytearray], position: int, _flags: int) -> int:
        assert len(buffers[0]) == 1
        probes.append(position)
        if position in answers:
            raise answers[position]
        return 1

    monkeypatch.setattr(disk_module, "_RWF_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", probe)
    assert file.resident(10, 300_000)
    assert probes == [10, 131_082, 262_154, 300_009]
    answers[262_154] = BlockingIOError(errno.EAGAIN, "would wait")
    assert not file.resident(10, 300_000)
    answers[262_154] = OSError(errno.EOPNOTSUPP, "cannot tell")
    assert file.resident(10, 300_000)
    answers[262_154] = OSError(errno.EIO, "broken")
    with pytest.raises(OSError):
        file.resident(10, 300_000)
    monkeypatch.setattr(disk_module, "_RWF_NOWAIT", 0)
    assert file.resident(10, 300_000)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"), reason="Linux only")
def test_dropped_pages_are_seen_as_not_resident(disk: LocalDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "a"), create=True)
    file.pwrite(bytes(1 << 20), 0)
    file.sync()
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(file.descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        assert not file.resident(0, 1 << 20)
        file.pread(1 << 20, 0)
        assert file.resident(0, 1 << 20)
    except OSError as error:
        pytest.skip(f"this file system cannot tell: {error}")
    else:
        pytest.skip("the pages stayed (a memory file system)")


def test_read_only_files_can_be_read(disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"kept")
    really_open = os.open

    def read_only_disk(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, "read-only file system", path)
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only_disk)
    file = disk.open(str(tmp_path / "a"))
    assert file.pread(4, 0) == b"kept"
    with pytest.raises(OSError):
        file.pwrite(b"x", 0)
    with pytest.raises(OSError):
        disk.open(str(tmp_path / "new"), create=True)


def test_macos_syncs_to_the_platter_or_as_well_as_it_can(
    disk: LocalDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _descriptor, command: asked.append(command))
    sync = disk_module._platform_sync()
    file = disk.open(str(tmp_path / "a"), create=True)
    sync(file.descriptor)
    assert asked == [51]

    def unsupported(_descriptor: int, _command: int) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "fcntl", unsupported)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    disk_module._platform_sync()(file.descriptor)
    assert synced == [file.descriptor]


def test_the_limit_of_descriptors_is_raised_as_far_as_it_goes() -> None:
    script = (
        "import resource; from tidelog.runtime.descriptors import raise_descriptor_limit;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); print(raise_descriptor_limit(), hard)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert int(said[0]) == int(said[1]) or int(said[0]) >= 10_240
    assert descriptor_limit() > 0
    assert LocalDisk().pool.descriptors_max == max(descriptor_limit() // 2, 16)
    assert raise_descriptor_limit is descriptors_module.raise_descriptor_limit


def test_files_say_where_they_failed(disk: LocalDisk, tmp_path: Path) -> None:
    file: LocalFile = disk.open(str(tmp_path / "a"), create=True)
    disk.pool.close_descriptor(file)
    disk.remove(str(tmp_path / "a"))
    with pytest.raises(FileNotFoundError) as gone:
        file.pread(1, 0)
    assert gone.value.filename == str(tmp_path / "a")
