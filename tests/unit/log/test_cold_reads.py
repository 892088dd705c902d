"""Which bytes a read touches in files that may not be in the page cache."""

import pytest

from log_harness import LogOnDisk
from tidelog.simulation.disk import SimFile


def test_a_read_of_an_old_segment_leaves_the_rest_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked through for an end that lies in a later segment."""
    on = LogOnDisk(segment_bytes=100_000)
    while len(on.log.segments.items) < 3:
        on.append(bytes(700))
    end = on.log.log_end_offset
    on.open(clean=True, recovery_point=end)
    pread, touched = SimFile.pread, dict[str, int]()

    def noted(file: SimFile, size: int, position: int) -> bytes:
        touched[file.path] = max(touched.get(file.path, 0), position + size)
        return pread(file, size, position)

    monkeypatch.setattr(SimFile, "pread", noted)
    for number, segment in enumerate(on.log.segments.items[:2]):
        touched.clear()
        assert on.log.read(segment.base_offset, 2000, end).size
        assert 0 < touched[on.path(segment.base_offset, ".log")] < 50_000
        assert len([path for path in touched if path.endswith(".log")]) == 1
        # Where the end is in it, it is found.
        middle = segment.base_offset + 50
        piece = on.log.read(segment.base_offset, 1 << 20, middle)
        assert on.log.read(middle, 1 << 20, end).position == piece.position + piece.size, number
