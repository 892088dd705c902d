"""The result of an append, or of a repeated append of the same batch."""

from typing import NamedTuple


class Appended(NamedTuple):
    """The offsets of an appended batch. `next_offset` is the offset after its last one. `log_append_time_ms` is -1 if
    the topic uses CreateTime timestamps.
    """

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
