"""The result of an append. If a producer sends a batch again, the batch is not appended again, and the result describes
the first append.
"""

from typing import NamedTuple


class Appended(NamedTuple):
    """The offsets of an appended batch. `next_offset` is the batch's last offset + 1. `log_start_offset` is the present
    start of the log.

    `log_append_time_ms` is -1 if the topic uses CreateTime timestamps. There is one exception: if the batch was sent
    again, `log_append_time_ms` is the largest timestamp of the batch, whatever the topic uses.
    """

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
