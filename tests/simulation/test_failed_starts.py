"""What a start that fails leaves of its data directories: all that somebody else put there, and nothing of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simulation_harness import PORT, boot
from tidelog.log.directories import DataDirectories
from tidelog.simulation.disk import SimDisk
from tidelog.simulation.world import World, simulated

TWO = {"log_dirs": "/above/a,/b"}


async def fail_to_start(world: World) -> SimDisk:
    """Its port is in use."""
    host = world.host("broker")
    host.disk.make_dirs("/b")
    await host.runtime.network.listen(host.address, PORT, lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(OSError, match="in use"):
        await boot(host, **TWO)
    return host.disk


def test_what_was_made_is_gone_and_what_was_there_stays() -> None:
    async def scenario() -> None:
        disk = await fail_to_start(world)
        assert not disk.exists("/above")
        assert disk.list("/b") == []

    with simulated(1) as world:
        world.run(scenario())


@pytest.mark.parametrize("path", ["/above/a", "/b"])
def test_what_came_before_the_lock_was_taken_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a broker that was started a moment earlier, and has ended."""
    opened: Callable[..., DataDirectories] = DataDirectories.open

    def open_later(disk: Any, paths: Sequence[str]) -> DataDirectories:
        disk.make_dirs(path)
        disk.write_atomic(f"{path}/precious", b"records")
        return opened(disk, paths)

    async def scenario() -> None:
        monkeypatch.setattr(DataDirectories, "open", open_later)
        disk = await fail_to_start(world)
        assert disk.read(f"{path}/precious") == b"records"

    with simulated(1) as world:
        world.run(scenario())
