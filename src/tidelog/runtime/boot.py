"""The id of the machine's current boot. All processes that run between two restarts of the machine see the same id."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""The file from which Linux processes can read the id."""


def read_boot_id(disk: "Disk") -> str:
    """Return the id of the machine's current boot, or "" if the system has no boot ids. Blocks."""
    try:
        return "-".join(disk.read(BOOT_ID).decode(errors="replace").split())
    except OSError:
        return ""
