"""A file in each data directory of a cluster's broker. It names the run of the broker that used the directory last.

When the next run has locked the directory, it knows that the named run has ended, and does not have to wait for the end
of the lease. This conclusion is valid only for the same directory on the same machine without a reboot: a copy of the
directory may still be in use on another machine. The file also tells the controller whether the directory may lack
records that the registered run has acknowledged (KIP-966).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.log.checkpoints import META_PROPERTIES, format_properties, read_properties
from tidelog.log.errors import CorruptLog
from tidelog.metadata.records import DirectoryId
from tidelog.model.ids import uuid_from_text

if TYPE_CHECKING:
    from tidelog.runtime.interfaces import Disk

LAST_RUN: Final = "broker.run"
"""Name of the file."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""The file from which Linux processes can read the id of the current boot."""


class LastRun(NamedTuple):
    incarnation: str = ""
    """Identifies the run; "" if the run is unknown, or if different runs have used the directories."""
    broker_epoch: int = -1
    """The epoch with which the run was registered."""
    boot_id: str = ""
    """The machine's boot id during the run."""
    has_ended: bool = False
    """Whether the run has certainly ended, provided that this process has locked the directories."""


def read_last_run(disk: "Disk", paths: Sequence[str]) -> LastRun:
    """Return the run that used all directories last. The directories must be locked. Blocks."""
    boot_id = read_boot_id(disk)
    runs = [_read(disk, path, boot_id) for path in paths]
    return runs[0] if runs and all(run == runs[0] for run in runs) else LastRun()


def _read(disk: "Disk", path: str, boot_id: str) -> LastRun:
    try:
        properties = read_properties(disk.read(f"{path}/{LAST_RUN}"), path)
        run = LastRun(properties["incarnation"], int(properties["broker.epoch"]), properties["boot.id"])
        is_same_directory = properties["path"] == _in_hex(path)
    except (OSError, CorruptLog, LookupError, ValueError):
        return LastRun()  # the controller then treats the stop as unclean, which is always safe
    return run._replace(has_ended=is_same_directory and run.boot_id != "" and run.boot_id == boot_id)


def write_last_run(disk: "Disk", paths: Sequence[str], run: LastRun) -> None:
    """Write the file into each directory. Blocks. Raises OSError."""
    properties = {
        "incarnation": run.incarnation,
        "broker.epoch": str(run.broker_epoch),
        "boot.id": run.boot_id,
    }
    for path in paths:
        disk.write_atomic(f"{path}/{LAST_RUN}", format_properties({**properties, "path": _in_hex(path)}))


def _in_hex(path: str) -> str:
    """Return the path in a form that needs no escaping."""
    return path.encode(errors="surrogateescape").hex()


def directory_ids(disk: "Disk", paths: Sequence[str]) -> tuple[DirectoryId, ...]:
    """Return the ids of the directories. Directories whose ids cannot be read are skipped. Blocks."""
    ids = []
    for path in paths:
        try:
            text = read_properties(disk.read(f"{path}/{META_PROPERTIES}"), path)["directory.id"]
            ids.append(DirectoryId(uuid_from_text(text)))
        except (OSError, CorruptLog, LookupError, ValueError):
            continue
    return tuple(ids)


def read_boot_id(disk: "Disk") -> str:
    """Return the id of the machine's current boot, or "" if the system has no boot ids. Blocks."""
    try:
        return "-".join(disk.read(BOOT_ID).decode(errors="replace").split())
    except OSError:
        return ""
