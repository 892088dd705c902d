"""Disks of a limited size: a file system in a file, mounted for the namespaces of this program only."""

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path

SIZE_BYTES = 400 << 20
FILLER = "filler"


def mount(directory: Path, image: Path) -> str:
    """Mount a small disk at `directory`: ext4 in `image`, or a tmpfs. Return its kind; empty if neither is possible."""
    directory.mkdir(parents=True)
    with open(image, "wb") as file:
        file.truncate(SIZE_BYTES)
    if shutil.which("mkfs.ext4"):
        # -m 0: no blocks that only root may use, so that the disk is full for root too.
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], capture_output=True, check=True)
        if _mount("-o", "loop,nodiscard", str(image), str(directory)):
            return "ext4"
    image.unlink()
    return "tmpfs" if _mount("-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(directory)) else ""


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", directory], capture_output=True, check=False)


def fill(directory: Path) -> None:
    """Use all free space of the disk."""
    descriptor = os.open(directory / FILLER, os.O_WRONLY | os.O_CREAT)
    try:
        size = 0
        for step in (1 << 20, 1 << 12):
            with contextlib.suppress(_DiskFull):
                while True:
                    _allocate(descriptor, size, step)
                    size += step
    finally:
        os.close(descriptor)


class _DiskFull(Exception):
    pass


def _allocate(descriptor: int, offset: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _DiskFull from error
        raise


def free(directory: Path) -> None:
    """Undo `fill`."""
    (directory / FILLER).unlink(missing_ok=True)
