"""Errors about data on the disk, as opposed to errors of a peer."""


class CorruptLog(Exception):
    """Damage was found at `position` (bytes) of the file `path`. The partition goes offline; nothing is deleted."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
