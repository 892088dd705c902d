"""Errors about data on the disk. The exceptions for the protocol's error codes are in `tidelog.wire.errors`."""


class CorruptLog(Exception):
    """Damage was found at `position` (in bytes) of the file `path`. The partition goes offline. Nothing is deleted."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
