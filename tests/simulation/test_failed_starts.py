"""A failed start leaves all foreign files in its data directories, and none of its own."""

from collections.abc import Callable

import pytest

from simulation_harness import PORT, boot, config
from tidelog.broker.broker import BrokerServer
from tidelog.log.directories import DataDirectories
from tidelog.metadata.store import Store, StoreFailed
from tidelog.runtime.interfaces import Runtime
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated

TWO = {"log_dirs": "/above/a,/b"}


def failing_store(path: str, runtime: Runtime) -> Store:
    raise StoreFailed(f"{path} fails")


async def fail_to_start(world: World) -> SimDisk:
    """Fail to start after the directories were created and locked. Nothing that existed before may show traces of the
    start.
    """
    host = world.host("broker")
    host.disk.make_dirs("/b")
    broker = BrokerServer(config(host, **TWO), host.runtime, store_factory=failing_store)
    with pytest.raises(StoreFailed):
        await host.runtime.tasks.spawn(broker.start(), name="start")
    return host.disk


def test_a_port_in_use_is_found_before_anything_is_made() -> None:
    async def scenario() -> None:
        host = world.host("broker")
        await host.runtime.network.bind(host.address, PORT)
        host.disk.make_dirs("/b")
        written = len([line for line in world.trace.lines if " disk." in line])
        with pytest.raises(OSError, match="in use"):
            await boot(host, **TWO)
        assert len([line for line in world.trace.lines if " disk." in line]) == written

    with simulated(1) as world:
        world.run(scenario())


def test_what_was_made_is_gone_and_what_was_there_stays() -> None:
    async def scenario() -> None:
        disk = await fail_to_start(world)
        assert not disk.exists("/above")
        assert disk.list("/b") == []

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("path", ["/above/a", "/b"])
def test_what_came_before_the_lock_was_taken_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker may have created the file: it was started a moment earlier, and has ended."""
    acquire: Callable[[DataDirectories], None] = DataDirectories.acquire

    def acquire_later(directories: DataDirectories) -> None:
        disk = world.host("broker").disk
        disk.make_dirs(path)
        disk.write_atomic(f"{path}/precious", b"records")
        acquire(directories)

    async def scenario() -> None:
        monkeypatch.setattr(DataDirectories, "acquire", acquire_later)
        disk = await fail_to_start(world)
        assert disk.read(f"{path}/precious") == b"records"

    with simulated(1) as world:
        world.run(scenario())
