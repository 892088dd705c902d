"""What is wrong on the disk, as opposed to with a peer."""


class CorruptLog(Exception):
    """Damage found at `position` (bytes) of the file `path`. Its partition goes offline; nothing is dropped."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class MissingOffsets(CorruptLog):
    """What lies between two batches of a log that was never compacted is not there: a segment file is missing."""

    def __init__(self, path: str, position: int, first: int, found: int) -> None:
        super().__init__(path, position, f"offsets {first} to {found - 1} are missing before this batch")
