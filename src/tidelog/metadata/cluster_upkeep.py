"""The changes that the active controller of a cluster makes without a request: it fences the brokers whose leases have
ended, completes the leader elections that the previous controller left unfinished, and makes preferred replicas
leaders again.
"""

import logging
from functools import partial
from typing import Final

from tidelog.config.broker_config import BrokerConfig
from tidelog.metadata.controller import JournalDecision
from tidelog.metadata.elections import elect_leaderless, rebalance_leaders
from tidelog.metadata.image import MetadataImage
from tidelog.metadata.journal import Journal
from tidelog.metadata.local_controller import LocalController
from tidelog.metadata.registration import BROKER_LEASES, broker_lease, fence_broker
from tidelog.metadata.store import Store, StoreFailed, StoreUnavailable
from tidelog.model.steps import Steps
from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.metadata")

GRACE_S: Final = 0.6
"""A new controller waits for this time, in seconds, before it fences the first broker. If all leases ended during an
outage of the store, the brokers acquire their leases again within this time."""
CHECK_S: Final = 0.25
"""Longest interval at which the controller compares the brokers with their leases, in seconds. After a write to the
store, the controller may compare them sooner, because the supervisor may have ended the lease of a dead broker."""
DISCARD_S: Final = 300.0
"""Interval at which the controller lets the store discard old values, in seconds."""


class ClusterUpkeep:
    """The periodic work of one broker while it is the controller."""

    def __init__(
        self, store: Store, journal: Journal, controller: LocalController, config: BrokerConfig, runtime: Runtime
    ) -> None:
        self._store = store
        self._journal = journal
        self._controller = controller
        self._config = config
        self._clock = runtime.clock
        self._tasks = runtime.tasks

    async def run(self) -> None:
        """Run until this task is cancelled because the broker is no longer the controller."""
        # Old values are discarded in a task of their own, so that a slow store does not delay the fencing of brokers.
        discards = self._tasks.spawn(self._discard_history(), name="cluster-history")
        try:
            await self._run()
        finally:
            discards.cancel()

    async def _discard_history(self) -> None:
        while True:
            try:
                await self._store.discard_history()
            except (StoreUnavailable, StoreFailed) as error:
                logger.warning("old metadata not discarded reason=%s", error)
            await self._tasks.sleep(DISCARD_S)

    async def _run(self) -> None:
        await self._tasks.sleep(GRACE_S)
        is_logged = False
        is_new = True
        rebalance_s = self._clock.monotonic() + self._config.leader_imbalance_check_interval_seconds
        while True:
            try:
                await self._fence_brokers_without_lease()
                is_logged = False
                if is_new:
                    is_new = not await self._elect_leaderless()
                if self._clock.monotonic() >= rebalance_s:
                    is_complete = await self._rebalance()
                    interval_s = self._config.leader_imbalance_check_interval_seconds if is_complete else CHECK_S
                    rebalance_s = self._clock.monotonic() + interval_s
            except (StoreUnavailable, StoreFailed) as error:
                if not is_logged:
                    logger.warning("leases of the brokers not read reason=%s", error)
                is_logged = True
            except Exception:
                logger.exception("upkeep of the cluster failed")  # the next run tries again
            await self._store.wait_for_write(CHECK_S)

    async def _fence_brokers_without_lease(self) -> None:
        # A broker acquires its lease before it is registered. So the image must be read before the leases; otherwise a
        # newly registered broker could seem to have no lease.
        image = self._journal.image
        unfenced = [broker for broker in image.brokers.values() if not broker.fenced]
        if not unfenced or image.metadata_level == 0:
            return
        holders = {lease.name: lease.holder for lease in await self._store.held_leases(BROKER_LEASES)}
        for broker in unfenced:
            number, incarnation = broker.broker_id, broker.incarnation
            if holders.get(broker_lease(number)) == incarnation:
                continue
            answer = await self._controller.decide(partial(self._fence, number, incarnation))
            if answer.error:
                logger.warning("broker not fenced node=%d reason=%s", number, answer.message)
            elif broker.in_controlled_shutdown:
                logger.info("broker fenced, it was in controlled shutdown node=%d epoch=%d", number, broker.epoch)
            else:
                logger.warning("broker fenced, its lease has ended node=%d epoch=%d", number, broker.epoch)

    async def _elect_leaderless(self) -> bool:
        """Elect leaders of partitions without a leader, where the current settings allow this. Perhaps the previous
        controller did not complete these elections after a change of `unclean.leader.election.enable`.

        Returns whether the elections are complete.
        """
        if self._journal.image.metadata_level == 0:
            return True
        answer = await self._controller.decide(self._decide_leaderless)
        return not answer.error

    async def _rebalance(self) -> bool:
        """Make preferred replicas leaders again. Returns False if more elections remain for a later call."""
        if not self._config.auto_leader_rebalance_enable or self._journal.image.metadata_level == 0:
            return True
        answer = await self._controller.decide(self._decide_rebalance)
        return not answer.value  # None after an error: the next rebalance comes after the usual interval

    def _decide_leaderless(self, image: MetadataImage) -> Steps[JournalDecision[None]]:
        return elect_leaderless(image, self._config)

    def _decide_rebalance(self, image: MetadataImage) -> Steps[JournalDecision[bool]]:
        return rebalance_leaders(image, self._config)

    def _fence(self, number: int, incarnation: str, image: MetadataImage) -> Steps[JournalDecision[None]]:
        return fence_broker(image, number, incarnation, self._config)
