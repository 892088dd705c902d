"""What an append answers."""

from typing import NamedTuple


class Appended(NamedTuple):
    """`next_offset` follows the batch's last. `log_append_time_ms` is -1 where records keep the time of their
    creation.
    """

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
