"""Groups that one request names again and again.

A large group is told of in megabytes, and named in a few bytes: named a thousand times it would fill the memory. Kafka
answers each time; clients name each once.
"""

REPEATS_MAX = 10
REFUSED = f"the request names groups again more than {REPEATS_MAX} times"


class Repeats:
    """Of one request."""

    __slots__ = ("_count", "_named")

    def __init__(self) -> None:
        self._named: dict[str, None] = {}
        self._count = 0

    def is_one_too_many(self, name: str) -> bool:
        """Whether `name`, which is named now, was named before, as too many were."""
        if name not in self._named:
            self._named[name] = None
            return False
        self._count += 1
        return self._count > REPEATS_MAX
