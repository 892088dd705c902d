"""AddOffsetsToTxn (key 25), v0-4. v2: the error PRODUCER_FENCED.

Add the group's partition of `__consumer_offsets` to a transaction. Producers with transaction version 2 do not send
this request.
"""

from tidelog.api.coordinator_reply import CoordinatorReply
from tidelog.api.pending import Pending
from tidelog.api.services import RequestContext, Services
from tidelog.api.transactions import code_for_version
from tidelog.coordinator.decision import Producer
from tidelog.metadata.image import CONSUMER_OFFSETS
from tidelog.wire.errors import ApiError
from tidelog.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

FENCED_SINCE = 2


async def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
    def build(answer: ApiError | None) -> AddOffsetsToTxnResponse:
        if answer is None:
            return AddOffsetsToTxnResponse()
        return AddOffsetsToTxnResponse(error_code=code_for_version(answer.code, context.api_version, FENCED_SINCE))

    reply = CoordinatorReply(build)
    groups = services.groups.host
    try:
        if not groups.has_topic:
            await groups.make_topic()
        partition = CONSUMER_OFFSETS, groups.partition_index(request.group_id)
        producer = Producer(request.producer_id, request.producer_epoch)
        # 0 stands for every transaction version below 2.
        services.transactions.add_partitions(request.transactional_id, producer, [partition], 0, reply)
    except ApiError as error:
        return build(error)
    return reply.outcome()
