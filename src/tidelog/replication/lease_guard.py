"""What a leader may do after the lease of its broker has ended: it serves on only while no other broker can have been
elected.

The controller elects a member of the ISR. A member that has fetched in the leader's epoch within the last term of a
lease did not lead then, so no other leader has existed for longer than that. If a member has not fetched for so long,
it may be the leader by now, and this leader would answer with records that are not the newest.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.replication.replica import Replica, WentOffline

if TYPE_CHECKING:
    from tidelog.replication.partitions import Partitions


class LeaseGuard:
    """Takes partitions out of service while the broker has no lease, and back into service afterwards."""

    def __init__(self, partitions: "Partitions", monotonic: Callable[[], float], lease_ms: int) -> None:
        self._partitions = partitions
        self._monotonic = monotonic
        self._lease_ms = lease_ms

    def lease_is_over(self) -> None:
        """Resign from the partitions of which another broker may be the leader. Called at intervals."""
        earliest_ms = int(self._monotonic() * 1000) - self._lease_ms
        for partition in self._partitions:
            replica = partition.replica
            if replica.leads and not replica.is_alone and not _are_fetching(replica, earliest_ms):
                partition.step(WentOffline(replica.leader_epoch))

    def lease_is_regained(self) -> None:
        """Give the partitions the roles of the newest image again. It must be newer than the new lease."""
        self._partitions.reconciler.take_roles_again()


def _are_fetching(replica: Replica, earliest_ms: int) -> bool:
    """Return whether every other member of the ISR has fetched in this leader epoch since `earliest_ms`."""
    isr = replica.isr
    assert isr is not None
    return all(
        isr.followers[member].end_offset >= 0 and isr.followers[member].fetched_ms >= earliest_ms
        for member in isr.maximal
        if member in isr.followers
    )
