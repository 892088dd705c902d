"""The simulated disk compared with a model, and the faults that it makes on demand."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.simulation.disk import SimDisk
from tidelog.simulation.medium import SECTOR_BYTES, PowerCutOdds
from tidelog.simulation.tasks import ProcessGone


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(rng=random.Random(seed))


def cuts(disk: SimDisk, count: int = 60) -> list[SimDisk]:
    """Many power cuts at this moment."""
    return [disk.power_cut(random.Random(seed)) for seed in range(count)]


def outcomes(disk: SimDisk, look: Callable[[SimDisk], object]) -> set[object]:
    return {look(cut) for cut in cuts(disk)}


def test_reads_and_writes_as_a_file_system_does() -> None:
    disk = new_disk()
    disk.make_dirs("/data/orders-0")
    with pytest.raises(FileNotFoundError):
        disk.open("/data/orders-0/0.log")
    file = disk.open("/data/orders-0/0.log", create=True)
    file.pwrite(b"hello", 0)
    file.pwrite(memoryview(b"!"), 8)
    assert file.pread(100, 0) == b"hello\0\0\0!"
    assert file.pread(3, 9) == b""
    file.truncate(5)
    assert (file.size(), disk.size("/data/orders-0/0.log"), disk.read("/data/orders-0/0.log")) == (5, 5, b"hello")
    disk.rename("/data/orders-0", "/data/orders-0.x-delete")
    assert file.path == "/data/orders-0.x-delete/0.log"
    assert disk.list("/data") == ["orders-0.x-delete"]
    assert (disk.is_dir("/data"), disk.is_dir(file.path), disk.exists("/data/orders-0")) == (True, False, False)
    disk.remove_tree("/data/orders-0.x-delete")
    assert file.pread(5, 0) == b"hello"  # as an open descriptor
    assert disk.list("/data") == []
    file.close()
    with pytest.raises(OSError):
        file.pread(1, 0)
    for wrong, error in (("/nowhere/x", FileNotFoundError), ("/data", IsADirectoryError)):
        with pytest.raises(error):
            disk.open(wrong, create=True)
    with pytest.raises(ValueError):
        disk.exists("relative")


def test_what_was_synced_survives_and_what_was_not_may_not() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    file.pwrite(b"synced", 0)
    file.sync()
    file.pwrite(b" unsynced", 6)
    seen = outcomes(disk, lambda cut: cut.read("/a"))
    assert {b"synced", b"synced unsynced"} <= seen
    assert all(isinstance(content, bytes) and content.startswith(b"synced") for content in seen)
    assert file.pread(100, 0) == b"synced unsynced"


def test_a_later_write_may_survive_an_earlier_one() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    file.pwrite(b"1" * SECTOR_BYTES, 0)
    file.pwrite(b"2" * SECTOR_BYTES, SECTOR_BYTES)
    assert bytes(SECTOR_BYTES) + b"2" * SECTOR_BYTES in outcomes(disk, lambda cut: cut.read("/a"))


def test_a_write_is_torn_between_sectors_and_never_within_one() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    file.pwrite(bytes(5 * SECTOR_BYTES), 0)
    file.sync()
    disk.sync_dir("/")
    file.pwrite(b"x" * (3 * SECTOR_BYTES), 100)
    torn = 0
    for cut in cuts(disk, 200):
        content = cut.read("/a")
        inside = [content[100:512], content[512:1024], content[1024:1536], content[1536 : 100 + 1536]]
        assert all(len(set(part)) == 1 for part in inside)
        torn += len({part[:1] for part in inside}) == 2
    assert torn > 5


def test_sizes_reach_the_disk_on_their_own() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    for number in range(4):
        file.pwrite(b"x" * 1000, number * 1000)
    contents = [cut.read("/a") for cut in cuts(disk, 300)]
    assert any(content and content[-1:] == b"\0" for content in contents)
    assert any(len(content) in (1000, 2000, 3000) for content in contents)


@pytest.mark.parametrize("synced", [False, True])
def test_names_are_durable_after_the_sync_of_their_directory(synced: bool) -> None:
    disk = new_disk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    old = disk.open("/data/old", create=True)
    disk.open("/data/doomed", create=True)
    disk.sync_dir("/data")
    disk.rename("/data/old", "/data/new")
    disk.remove("/data/doomed")
    disk.open("/data/created", create=True).sync()
    old.sync()
    if synced:
        disk.sync_dir("/data")
    seen = outcomes(disk, lambda cut: tuple(cut.list("/data")))
    if synced:
        assert seen == {("created", "new")}
    else:
        assert {("created", "new"), ("doomed", "old")} <= seen
        assert all(("old" in names) != ("new" in names) for names in seen)  # type: ignore[operator]


def test_directories_are_durable_when_made_and_move_with_their_files() -> None:
    disk = new_disk()
    disk.make_dirs("/data/deep")
    assert outcomes(disk, lambda cut: cut.is_dir("/data/deep")) == {True}
    disk.open("/data/deep/a", create=True).sync()
    assert False in outcomes(disk, lambda cut: cut.exists("/data/deep/a"))
    disk.sync_dir("/data/deep")
    assert outcomes(disk, lambda cut: cut.exists("/data/deep/a")) == {True}
    disk.rename("/data/deep", "/data/moved")
    where = outcomes(disk, lambda cut: (cut.exists("/data/deep/a"), cut.exists("/data/moved/a")))
    assert where == {(True, False), (False, True)}


def test_a_move_between_directories_leaves_exactly_one_name() -> None:
    disk = new_disk()
    disk.make_dirs("/one")
    disk.make_dirs("/two")
    disk.sync_dir("/")
    disk.open("/one/a", create=True)
    disk.rename("/one/a", "/two/b")
    for cut in cuts(disk):
        assert len(cut.list("/one")) + len(cut.list("/two")) <= 1
    disk.sync_dir("/two")
    disk.rename("/two/b", "/one/c")
    disk.rename("/one/c", "/one/d")
    for cut in cuts(disk):
        assert len(cut.list("/one")) + len(cut.list("/two")) == 1
    disk.rename("/one/d", "/two/b")
    disk.sync_dir("/two")
    assert outcomes(disk, lambda cut: (tuple(cut.list("/one")), tuple(cut.list("/two")))) == {((), ("b",))}


def test_atomic_replacement_is_old_or_new_at_every_step() -> None:
    disk = new_disk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    disk.write_atomic("/data/meta", b"old" * 500)
    assert outcomes(disk, lambda cut: cut.read("/data/meta")) == {b"old" * 500}
    seen: set[bytes] = set()
    steps: list[str] = []

    def cut_here(operation: str, _path: str) -> None:
        steps.append(operation)
        seen.update(cut.read("/data/meta") for cut in cuts(disk))

    disk.on_operation = cut_here
    disk.write_atomic("/data/meta", b"new" * 700)
    assert steps == ["create", "truncate", "write", "sync", "rename", "sync_dir"]
    assert seen == {b"old" * 500, b"new" * 700}
    disk.on_operation = None
    assert outcomes(disk, lambda cut: cut.read("/data/meta")) == {b"new" * 700}


def test_planted_errors_come_where_they_were_planted() -> None:
    disk = new_disk()
    file = disk.open("/a.log", create=True)
    other = disk.open("/a.index", create=True)
    disk.fail("write", "*.log", errno.EIO, skip=1, times=2)
    file.pwrite(b"one", 0)
    other.pwrite(b"one", 0)
    for _ in range(2):
        with pytest.raises(OSError) as planted:
            file.pwrite(b"two", 3)
        assert planted.value.errno == errno.EIO
        assert b"onetwo".startswith(file.pread(9, 0))  # a part may be there
    file.pwrite(b"two", 3)
    assert file.pread(9, 0) == b"onetwo"


def test_a_failed_sync_is_for_good_and_its_bytes_are_never_written() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    file.pwrite(b"lost", 0)
    disk.fail("sync", "/a", errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError):
            file.sync()
    assert file.pread(4, 0) == b"lost"
    again = disk.open("/a")
    again.sync()  # another descriptor: the kernel has nothing to write and says so
    assert outcomes(disk, lambda cut: cut.read("/a")) == {b""}


def test_a_full_disk_takes_a_part() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.limit_space(1000)
    file.pwrite(bytes(900), 0)
    assert disk.free_bytes("/") == 100
    with pytest.raises(OSError) as full:
        file.pwrite(b"x" * 200, 900)
    assert full.value.errno == errno.ENOSPC
    assert 900 <= file.size() <= 1100
    file.truncate(900)
    file.pwrite(b"x" * 100, 800)
    disk.limit_space(None)
    file.pwrite(b"x" * 200, 900)


def test_a_killed_process_writes_nothing_more_and_loses_nothing() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    file.pwrite(b"cached", 0)
    lock = disk.lock("/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/.lock")
    after = disk.kill()
    for call in (lambda: file.pwrite(b"x", 0), lambda: disk.list("/"), lambda: disk.open("/a"), file.sync):
        with pytest.raises(ProcessGone):
            call()
    assert after.read("/a") == b"cached"
    after.lock("/.lock").release()
    lock.release()
    after.lock("/.lock")


def test_a_process_may_be_killed_from_within_an_operation() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    numbers: list[int] = []

    def kill_at_the_third(operation: str, path: str) -> None:
        numbers.append(disk.operations)
        if disk.operations == 3:
            disk.kill()

    disk.on_operation = kill_at_the_third
    file.pwrite(b"1", 0)
    with pytest.raises(ProcessGone):
        file.pwrite(b"2", 1)
    with pytest.raises(ProcessGone):
        file.pwrite(b"3", 2)
    assert numbers == [2, 3]
    assert disk.kill().read("/a") == b"12"


def test_residency_follows_the_chance() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    assert all(file.resident(0, 1) for _ in range(100))
    disk.cold_chance = 0.5
    assert {file.resident(0, 1) for _ in range(100)} == {True, False}


NAMES = ("a", "b", "c")


class DiskMachine(RuleBasedStateMachine):
    """Random histories: what was synced is there after any power cut, whatever else happened."""

    @initialize(seed=st.integers(0, 1 << 30))
    def begin(self, seed: int) -> None:
        self.disk = new_disk(seed)
        self.seed = seed
        self.content: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}  # bytes synced since which nothing was written or truncated
        self.names_synced: tuple[str, ...] | None = ()

    @rule(
        name=st.sampled_from(NAMES), position=st.integers(0, 3000), size=st.integers(1, 2000), value=st.integers(1, 255)
    )
    def write(self, name: str, position: int, size: int, value: int) -> None:
        if name not in self.content:
            self.content[name] = bytearray()
            self.names_synced = None
        data = bytes([value]) * size
        self.disk.open(f"/{name}", create=True).pwrite(data, position)
        content = self.content[name]
        content.extend(bytes(max(position - len(content), 0)))
        content[position : position + size] = data
        self.synced.pop(name, None)

    @precondition(lambda self: bool(self.content))
    @rule(size=st.integers(0, 4000), data=st.data())
    def truncate(self, size: int, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.content)))
        self.disk.open(f"/{name}").truncate(size)
        content = self.content[name]
        content[:] = content[:size] + bytes(max(size - len(content), 0))
        self.synced.pop(name, None)

    @precondition(lambda self: bool(self.content))
    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.content)))
        self.disk.open(f"/{name}").sync()
        self.synced[name] = bytes(self.content[name])

    @rule()
    def sync_names(self) -> None:
        self.disk.sync_dir("/")
        self.names_synced = tuple(sorted(self.content))

    @precondition(lambda self: bool(self.content))
    @rule(new=st.sampled_from(NAMES), data=st.data())
    def rename(self, new: str, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.content)))
        self.disk.rename(f"/{source}", f"/{new}")
        if source != new:
            self.names_synced = None
            self.content[new] = self.content.pop(source)
            self.synced.pop(new, None)
            if source in self.synced:
                self.synced[new] = self.synced.pop(source)

    @precondition(lambda self: bool(self.content))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.content)))
        self.disk.remove(f"/{name}")
        del self.content[name]
        self.synced.pop(name, None)
        self.names_synced = None

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.kill()

    @rule(seed=st.integers(0, 1 << 30))
    def go_on_after_a_power_cut(self, seed: int) -> None:
        self.disk = self.disk.power_cut(random.Random(seed))
        self.content = {name: bytearray(self.disk.read(f"/{name}")) for name in self.disk.list("/")}
        self.synced = {name: bytes(content) for name, content in self.content.items()}
        self.names_synced = tuple(sorted(self.content))

    @invariant()
    def the_live_view_is_the_model(self) -> None:
        assert self.disk.list("/") == sorted(self.content)
        for name, content in self.content.items():
            assert self.disk.read(f"/{name}") == content

    @invariant()
    def what_was_synced_survives(self) -> None:
        for seed in range(4):
            cut = self.disk.power_cut(random.Random(self.seed + seed))
            if self.names_synced is not None:
                assert tuple(cut.list("/")) == self.names_synced
                for name, content in self.synced.items():
                    assert cut.read(f"/{name}") == content


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 3000)), max_size=12), st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_every_byte_after_a_cut_was_there_at_some_time(writes: list[tuple[int, int]], seed: int) -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    possible: dict[int, set[int]] = {}
    for number, (position, size) in enumerate(writes, 1):
        file.pwrite(bytes([number]) * size, position)
        for at in range(position, position + size):
            possible.setdefault(at, {0}).add(number)
    content = disk.power_cut(random.Random(seed)).read("/a")
    assert len(content) <= file.size()
    assert all(value in possible.get(at, {0}) for at, value in enumerate(content))


@given(st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_equal_seeds_cut_equally(seed: int) -> None:
    def run() -> bytes:
        disk = new_disk(seed)
        file = disk.open("/a", create=True)
        for number in range(10):
            file.pwrite(bytes([number]) * 700, number * 650)
        cut = disk.power_cut()
        return cut.read("/a") if cut.exists("/a") else b"absent"

    assert run() == run()


def test_one_bit_is_flipped_in_a_synced_file_and_a_power_cut_keeps_it() -> None:
    disk = SimDisk(rng=random.Random(1))
    assert disk.flip_bit("*", random.Random(1)) is None
    for path, synced in (("/a.log", True), ("/b.log", False), ("/c.txt", True)):
        file = disk.open(path, create=True)
        file.pwrite(bytes(1000), 0)
        if synced:
            file.sync()
    disk.sync_dir("/")
    assert disk.flip_bit("*.log", random.Random(1)) == "/a.log"
    damaged = disk.read("/a.log")
    assert sum(byte.bit_count() for byte in damaged) == 1
    assert disk.power_cut(random.Random(1)).read("/a.log") == damaged
    assert disk.read("/c.txt") == bytes(1000)


def test_a_torn_write_can_be_forced_and_is_counted() -> None:
    disk = SimDisk(rng=random.Random(1))
    file = disk.open("/a", create=True)
    disk.sync_dir("/")
    file.pwrite(b"x" * 5000, 0)
    after = disk.power_cut(random.Random(1), PowerCutOdds(keep=0.0, torn=1.0, wrong_size=0.0))
    assert 0 < after.read("/a").count(b"x") < 5000
    assert after.medium.power_cut_effects == {"torn writes": 1}
