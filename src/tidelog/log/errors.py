"""What is wrong on the disk, as opposed to with a peer."""


class CorruptLog(Exception):
    """Damage found at `position` (bytes) of the file `path`. Its partition goes offline; nothing is dropped."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
