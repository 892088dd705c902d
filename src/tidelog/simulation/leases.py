"""The leases of a simulated metadata store, with their holders and ends."""

from collections.abc import Callable, Iterable

from tidelog.metadata.store import Lease, lease_lost


class Leases:
    """The leases by name. `now_ms` is the store's clock. Before each change, `persist` is called with the new lease and
    its time of expiry. If `persist` raises, the change is not made.
    """

    def __init__(
        self, now_ms: Callable[[], int], persist: Callable[[Lease, int | None], None] = lambda _lease, _expires_ms: None
    ) -> None:
        self._now_ms = now_ms
        self._persist = persist
        self._by_name: dict[str, tuple[Lease, int | None]] = {}
        """Each lease with the time at which it expires; None if it does not expire."""

    def acquire(self, name: str, holder: str, ttl_ms: int | None) -> Lease | None:
        """See `Store.acquire`."""
        current, expires_ms = self._by_name.get(name, (Lease(name, "", 0), None))
        now_ms = self._now_ms()
        if current.holder not in (holder, "") and (expires_ms is None or expires_ms > now_ms):
            return None
        lease = Lease(name, holder, current.epoch + 1)
        self._change(lease, None if ttl_ms is None else now_ms + ttl_ms)
        return lease

    def renew(self, lease: Lease, ttl_ms: int) -> None:
        """Extend the lease to `ttl_ms` from now. Raises LeaseLost."""
        self.check(lease)
        self._change(lease, self._now_ms() + ttl_ms)

    def release(self, lease: Lease) -> None:
        """Release the lease, unless it is lost already."""
        current, _ = self._by_name.get(lease.name, (None, None))
        if current == lease:
            # The epoch is not reset, so that the epoch of the next holder is higher.
            self._change(lease._replace(holder=""), None)

    def expire(self, holder: str, name: str = "") -> list[str]:
        """End all leases of `holder`, and the lease called `name`, as a store does after the end of the holder's
        session. Returns the names of the leases.

        A lease whose holder is called HOLDER/PROCESS also belongs to HOLDER.
        """
        ended = [
            lease
            for lease, _ in self._by_name.values()
            if lease.holder and (lease.holder.partition("/")[0] == holder or lease.name == name)
        ]
        for lease in ended:
            self._change(lease, self._now_ms())
        return [lease.name for lease in ended]

    def check(self, lease: Lease) -> None:
        """Raise LeaseLost unless the lease is valid."""
        current, expires_ms = self._by_name.get(lease.name, (None, None))
        if current != lease or (expires_ms is not None and expires_ms <= self._now_ms()):
            raise lease_lost(lease)

    def held(self, prefix: str) -> list[Lease]:
        """Return the leases that have not ended and whose names begin with `prefix`, sorted by name."""
        now_ms = self._now_ms()
        return [
            lease
            for name, (lease, expires_ms) in sorted(self._by_name.items())
            if name.startswith(prefix) and lease.holder and (expires_ms is None or expires_ms > now_ms)
        ]

    def restore(self, lease: Lease, expires_ms: int | None) -> None:
        """Add a lease that was read from the disk."""
        self._by_name[lease.name] = lease, expires_ms

    def all(self) -> Iterable[tuple[Lease, int | None]]:
        """Return every lease with the time at which it expires."""
        return self._by_name.values()

    def _change(self, lease: Lease, expires_ms: int | None) -> None:
        self._persist(lease, expires_ms)
        self.restore(lease, expires_ms)
