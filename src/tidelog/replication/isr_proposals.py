"""Send proposed ISR changes to the controller (AlterPartition, KIP-497). The leaders on this broker propose them.

One request is in flight at a time. It contains the proposals of all waiting partitions. While it is in flight, new
proposals wait for the next request. If no answer arrives, the proposals are sent again after a pause. This is safe,
since each proposal names the partition epoch on which it is based.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

from tidelog.metadata.isr_changes import IsrProposal, IsrResult
from tidelog.metadata.link import AlterPartition, Answer
from tidelog.model.ids import TopicId
from tidelog.replication.replica import AskForIsr, IsrAnswered, Tick
from tidelog.runtime.cancelling import cancel_and_wait
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.metadata.link import ControllerLink
    from tidelog.replication.partition import Partition
    from tidelog.runtime.interfaces import Runtime

logger = logging.getLogger("tidelog.isr")

PROPOSALS_MAX: Final = 1000
"""Upper bound on the partitions of one request. The controller appends the changes of one request as one entry of the
journal."""
TIMEOUT_MS: Final = 10_000
"""Longest time that the proposals of one request wait for the controller. After this time they are sent again."""
RETRY_S: Final = 0.2
"""Pause before proposals with an unknown outcome are sent again, in seconds."""


class IsrProposals:
    """The proposals of this broker that wait for the controller."""

    def __init__(
        self, runtime: "Runtime", controller: "ControllerLink", node_id: int, broker_epoch: Callable[[], int]
    ) -> None:
        """`broker_epoch` returns the epoch of this broker's current registration."""
        self._tasks = runtime.tasks
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._waiting: dict[Partition, AskForIsr] = {}
        self._unanswered: dict[Partition, None] = {}
        """Partitions whose last proposal has an unknown outcome. The proposal is repeated after a pause."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._has_failed = False
        """Whether the last request failed. Only the first of consecutive failures is logged."""

    def ask(self, partition: "Partition", effect: AskForIsr) -> None:
        """Send the proposal soon. While it waits, a newer proposal for the same partition replaces it."""
        self._waiting[partition] = effect
        if self._task is None and not self._stopped:
            self._task = self._tasks.spawn(self._run(), name="alter-partition")

    async def stop(self) -> None:
        self._stopped = True
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        try:
            while self._waiting and not self._stopped:
                proposals = dict(islice(self._waiting.items(), PROPOSALS_MAX))
                for partition in proposals:
                    del self._waiting[partition]
                await self._send(proposals)
        finally:
            self._task = None

    async def _send(self, proposals: "dict[Partition, AskForIsr]") -> None:
        request = AlterPartition(
            self._node_id,
            self._broker_epoch(),
            [
                IsrProposal(
                    TopicId(partition.topic_id),
                    partition.index,
                    effect.leader_epoch,
                    effect.partition_epoch,
                    effect.isr,
                )
                for partition, effect in proposals.items()
            ],
            TIMEOUT_MS,
        )
        answer = await self._controller.alter_partition(request)
        self._log_failure(answer)
        results = {(result.topic_id, result.partition): result for result in answer.value or ()}
        for partition, effect in proposals.items():
            result = results.get((TopicId(partition.topic_id), partition.index))
            if result is None:  # the outcome is unknown, or the whole request was refused
                result = IsrResult(TopicId(partition.topic_id), partition.index, ErrorCode.NETWORK_EXCEPTION)
            self._process_result(partition, effect, result)

    def _process_result(self, partition: "Partition", effect: AskForIsr, result: IsrResult) -> None:
        """Report the result of a proposal to the replica. After an unknown outcome, let the replica propose again."""
        if partition.deleted:
            return
        answered = IsrAnswered(effect.leader_epoch, effect.partition_epoch, result.error)
        if result.state is not None:
            answered = answered._replace(partition_epoch=result.state.partition_epoch, isr=result.state.isr)
            logger.info(
                "isr changed partition=%s-%d isr=%s leader_epoch=%d",
                partition.topic,
                partition.index,
                ",".join(map(str, result.state.isr)),
                result.state.leader_epoch,
            )
        partition.step(answered)
        isr = partition.replica.isr
        # If the outcome of the proposal is unknown, the replica proposes the same ISR again after a pause.
        if isr is not None and isr.proposed is not None and not isr.awaits_answer and not isr.awaits_metadata:
            if not self._unanswered:
                self._tasks.call_later(RETRY_S, self._ask_again)
            self._unanswered[partition] = None

    def _ask_again(self) -> None:
        partitions, self._unanswered = self._unanswered, {}
        for partition in partitions:
            if not (self._stopped or partition.deleted):
                partition.step(Tick())  # in this step the replica proposes its ISR again

    def _log_failure(self, answer: "Answer[list[IsrResult]]") -> None:
        """Write the first of several consecutive failures to the log."""
        if answer.value is not None:
            self._has_failed = False
        elif not self._has_failed:
            self._has_failed = True
            logger.warning(
                "isr not changed, trying again reason=%s %s", answer.error.name, answer.message or "no message"
            )
