"""Assign producer ids from the blocks that the controller allocates."""

import asyncio

from tidelog.metadata.link import AllocateProducerIds, ControllerLink
from tidelog.wire.errors import ApiError, CoordinatorLoadInProgress


class ProducerIds:
    """The producer ids of this broker. A block whose allocation was not answered in time is never used."""

    def __init__(self, controller: ControllerLink, node_id: int, timeout_ms: int | None = None) -> None:
        """`timeout_ms` is the longest time that a producer waits for the controller. It is None if this broker cannot
        send requests to a controller on another broker.
        """
        self._controller = controller
        self._request = AllocateProducerIds(node_id, timeout_ms)
        self._block = iter(range(0))
        self._allocation_lock = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that was never assigned in this cluster.

        Raises CoordinatorLoadInProgress if the controller allocates no block. As in Kafka, the error is the same for
        every reason, because clients repeat InitProducerId and EndTxn after this error, but give up after most others.
        """
        producer_id = next(self._block, None)
        while producer_id is None:
            async with self._allocation_lock:
                producer_id = next(self._block, None)
                if producer_id is None:
                    try:
                        first, end = (await self._controller.allocate_producer_ids(self._request)).result()
                    except ApiError as error:
                        reason = error.message or error.code.name
                        raise CoordinatorLoadInProgress(f"no producer ids can be allocated: {reason}") from error
                    self._block = iter(range(first, end))
                    producer_id = next(self._block)
        return producer_id
