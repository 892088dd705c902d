"""Observations of a process from outside: its memory, its reads, its state."""

from pathlib import Path


def resident_bytes(pid: int) -> int:
    return _field(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def peak_resident_bytes(pid: int) -> int:
    return _field(Path(f"/proc/{pid}/status"), "VmHWM") * 1024


def read_bytes(pid: int) -> int:
    """Return the bytes that the process has read by system calls since its start, from the page cache or not."""
    return _field(Path(f"/proc/{pid}/io"), "rchar")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise AssertionError(f"{path} has no {name}")
