"""Stop leading partitions after the lease of this broker has ended, if another broker may have been elected.

The controller elects a member of the ISR as the new leader. If the ISR is smaller than `min.insync.replicas`, the
controller may elect another replica that has all committed records (ELR, KIP-966). In this case, "member" means any
replica in the following sentences. A member that sends a fetch to this broker, in this broker's leader epoch, does not
lead the partition at that time. So if the last fetch of every other member is at most half of the lease's term old,
this broker continues to lead the partition, for example while it cannot reach the store. Otherwise another member may
lead the partition now. If this broker continued to lead it, it could answer with old records, or with old committed
offsets that the new leader has already replaced.

A limit of half the term is safe even if this process was paused. If the lease was renewed regularly, after each third
of its term, at least two thirds of the term remain when a pause begins. So if a new leader was elected during the
pause, the pause took two thirds of the term or more. After such a pause, this process may handle a fetch that was sent
before the election. Therefore the guard does not use the time at which a fetch was handled. It uses
`FetchTime.proved_ms`, a time after which the fetch was certainly sent. For a fetch that was sent before the election,
`proved_ms` is a time before the pause, and so more than half of the term ago.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.replication.replica import Replica, WentOffline

if TYPE_CHECKING:
    from tidelog.replication.partitions import Partitions


class LeaseGuard:
    """Takes partitions out of service while the broker has no lease, and puts them back into service afterwards."""

    def __init__(self, partitions: "Partitions", monotonic: Callable[[], float], lease_ms: int) -> None:
        self._partitions = partitions
        self._monotonic = monotonic
        self._lease_ms = lease_ms

    def lease_is_over(self) -> None:
        """Stop leading the partitions that another broker may lead now. Called at intervals while there is no lease."""
        earliest_ms = int(self._monotonic() * 1000) - self._lease_ms // 2
        for partition in self._partitions:
            replica = partition.replica
            if replica.leads and not replica.is_alone and not _are_fetching(replica, earliest_ms):
                partition.step(WentOffline(replica.leader_epoch))

    def lease_is_regained(self) -> None:
        """Set the roles of all partitions again, from the newest image. This image must be newer than the new lease."""
        self._partitions.reconciler.apply_roles_again()


def _are_fetching(replica: Replica, earliest_ms: int) -> bool:
    """Return whether all other replicas that may be elected have sent a fetch in this epoch since `earliest_ms`."""
    isr = replica.isr
    assert isr is not None
    smallest = isr.committed if isr.proposed is None else min(isr.committed, isr.proposed, key=len)
    electable = isr.maximal if len(smallest) >= isr.min_isr else isr.replicas
    return all(
        isr.followers[member].end_offset >= 0 and isr.followers[member].proved_ms >= earliest_ms
        for member in electable
        if member in isr.followers
    )
