"""DescribeCluster (key 60), v0-2. v1: a request asks for brokers or for controllers (KIP-919); v2: a request may
ask for fenced brokers, too (KIP-1073).
"""

from tidelog.api.operations import CLUSTER_OPERATIONS, OPERATIONS_NOT_REQUESTED
from tidelog.api.services import RequestContext, Services
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKER_ENDPOINTS = 1
CONTROLLER_ENDPOINTS = 2


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker's listener, which describes only brokers; controllers have no listeners",
        )
    if request.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {request.endpoint_type} is unknown: 1 is brokers, 2 is controllers",
        )
    image = services.metadata.image
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.reported_controller(services.config.node_id),
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.broker_id,
                host=address.host,
                port=address.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in image.brokers.values()
            if request.include_fenced_brokers or not broker.fenced
            for address in (broker.endpoint(context.peer.listener),)
        ],
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else OPERATIONS_NOT_REQUESTED,
    )
