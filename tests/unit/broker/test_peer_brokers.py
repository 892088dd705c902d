"""Brokers identify themselves on their connections; only identified brokers may send Envelope requests."""

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tidelog.client.async_link import AsyncLink
from tidelog.client.channel import Channel
from tidelog.client.errors import BrokenProtocol
from tidelog.client.identification import (
    MAC_BYTES,
    NUMBER_BYTES,
    Challenge,
    Claim,
    Identity,
    MalformedIdentification,
    decode_message,
    encode_proof,
    identify,
    make_macs,
)
from tidelog.metadata.controller import NewTopic
from tidelog.metadata.image import ImageBuilder
from tidelog.metadata.link import Answer, CreateTopics, RegisterBroker
from tidelog.metadata.link_codec import decode_answer, encode_request
from tidelog.metadata.records import BrokerUnregistered
from tidelog.metadata.registration import Registration
from tidelog.model.steps import run_all
from tidelog.simulation.cluster import PORT, SimCluster, SimNode
from tidelog.simulation.world import World, simulated
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState

CREATE = CreateTopics([NewTopic("t", 1, 1)])


class Stage:
    """Two brokers, of which the first is the controller, and a host from which strangers connect."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.stranger = cluster.world.host("stranger").runtime

    @property
    def receiver(self) -> SimNode:
        return self.cluster.nodes[0]

    def identity(self, **fields: Any) -> Identity:
        """Return what broker 2 knows, with other values in place of these fields."""
        assert self.receiver.broker is not None
        image = self.receiver.broker.services.metadata.image
        known = Identity(2, image.brokers[2].incarnation, 1, image.brokers[1].incarnation, image.cluster_id)
        return known._replace(**fields)

    async def connect(self, identity: Identity | None = None) -> AsyncLink:
        link = await AsyncLink.connect(self.stranger, *self.receiver.address, "stranger")
        if identity is not None:
            await identify(link, identity, self.stranger.new_uuid)
        return link

    async def refusal(self, identity: Identity) -> ErrorCode:
        with pytest.raises(ApiError) as refused:
            await self.connect(identity)
        return refused.value.code


async def envelope(link: AsyncLink, request: Any) -> EnvelopeResponse:
    data = request if isinstance(request, bytes) else run_all(encode_request(request))
    return await link.ask(EnvelopeRequest(request_data=data, request_principal=None), EnvelopeResponse)


def answer_in(response: EnvelopeResponse, kind: type[Any] = CreateTopics) -> Answer[Any]:
    assert response.error_code == ErrorCode.NONE
    assert response.response_data is not None
    return run_all(decode_answer(kind, response.response_data))


def run(scenario: Callable[[Stage], Coroutine[Any, Any, None]], **settings: str) -> None:
    async def whole(world: World) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        cluster = SimCluster(world, 2, names)
        for node in cluster.nodes:
            await node.start()
        await scenario(Stage(cluster))
        for node in reversed(cluster.nodes):
            await node.stop()

    with simulated(1) as world:
        world.run(whole(world))


def test_an_identified_broker_reaches_the_controller() -> None:
    async def scenario(stage: Stage) -> None:
        link = await stage.connect(stage.identity())
        (result,) = answer_in(await envelope(link, CREATE)).result()
        assert (result.name, result.error) == ("t", ErrorCode.NONE)
        link.close()

    run(scenario)


def test_strangers_cannot_send_envelopes() -> None:
    async def scenario(stage: Stage) -> None:
        for content in (CREATE, b"", b"\0\x13\0\7\0\0\0\1\xff\xff", RegisterBroker(Registration(3, "x", ()))):
            link = await stage.connect()
            with pytest.raises(OSError, match="ended"):
                await envelope(link, content)
        assert stage.receiver.broker is not None
        assert "t" not in stage.receiver.broker.services.metadata.image.topics

    run(scenario)


def test_envelope_is_not_offered_to_clients() -> None:
    async def scenario(stage: Stage) -> None:
        link = await stage.connect()
        assert 58 not in link._connection.versions
        link.close()

    run(scenario)


def test_a_broker_that_knows_the_receiver_only_may_only_register() -> None:
    async def scenario(stage: Stage) -> None:
        link = await stage.connect(stage.identity(broker_id=3, incarnation=""))
        assert (await envelope(link, CREATE)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        other = RegisterBroker(Registration(2, "x", ()))
        assert (await envelope(link, other)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "another broker"
        own = RegisterBroker(Registration(3, "x", ()))
        assert answer_in(await envelope(link, own), RegisterBroker).error != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        link.close()

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"broker_id": 7}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"receiver_id": 2}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ({"broker_id": 1}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
    ids=str,
)
def test_wrong_claims_are_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    async def scenario(stage: Stage) -> None:
        assert await stage.refusal(stage.identity(**fields)) == code

    run(scenario)


@pytest.mark.parametrize(
    "fields",
    [{"incarnation": "guessed"}, {"receiver_incarnation": "guessed"}, {"incarnation": "", "receiver_incarnation": ""}],
    ids=str,
)
def test_the_wrong_secret_is_refused_on_both_sides(fields: dict[str, Any]) -> None:
    async def scenario(stage: Stage) -> None:
        wrong = stage.identity(**fields)
        with pytest.raises(BrokenProtocol, match="does not prove that it is broker 1"):
            await stage.connect(wrong)
        link = await stage.connect()
        claim = Claim(2, 1, bool(wrong.incarnation), bytes(NUMBER_BYTES), wrong.cluster_id)
        challenge = Challenge.decode((await envelope(link, claim.encode())).response_data)
        proof = make_macs(claim, challenge.number, wrong.receiver_incarnation, wrong.incarnation)[1]
        assert (await envelope(link, encode_proof(proof))).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        right = make_macs(claim, challenge.number, stage.identity().receiver_incarnation, stage.identity().incarnation)
        assert (await envelope(link, encode_proof(right[1]))).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, (
            "a second proof of the same claim"
        )
        with pytest.raises(OSError, match="ended"):
            await envelope(link, CREATE)

    run(scenario)


def test_a_recorded_exchange_proves_nothing() -> None:
    """Neither the sender's messages again, nor the receiver's own MAC, are a proof."""

    async def scenario(stage: Stage) -> None:
        known = stage.identity()
        claim = Claim(2, 1, is_registered=True, number=bytes(NUMBER_BYTES), cluster_id=known.cluster_id)
        first = await stage.connect()
        challenge = Challenge.decode((await envelope(first, claim.encode())).response_data)
        proof = make_macs(claim, challenge.number, known.receiver_incarnation, known.incarnation)[1]
        for recorded in (proof, challenge.mac):
            link = await stage.connect()
            assert (await envelope(link, claim.encode())).error_code == ErrorCode.NONE
            assert (await envelope(link, encode_proof(recorded))).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            link.close()
        assert (await envelope(first, encode_proof(proof))).error_code == ErrorCode.NONE
        first.close()

    run(scenario)


def test_an_earlier_run_of_a_broker_is_no_longer_accepted() -> None:
    async def scenario(stage: Stage) -> None:
        old = stage.identity()
        link = await stage.connect(old)
        await stage.cluster.nodes[1].stop()
        await stage.cluster.nodes[1].start()
        assert (await envelope(link, CREATE)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(BrokenProtocol, match="does not prove"):
            await stage.connect(old)
        link.close()

    run(scenario)


def test_a_broker_that_was_removed_is_no_longer_accepted() -> None:
    async def scenario(stage: Stage) -> None:
        known = stage.identity()
        link = await stage.connect(known)
        assert stage.receiver.broker is not None
        services = stage.receiver.broker.services
        image = services.metadata.image
        removal = BrokerUnregistered(2, image.brokers[2].epoch)
        services.metadata.image = ImageBuilder(image).apply([removal]).build()
        assert (await envelope(link, CREATE)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        services.metadata.image = image
        link.close()

    run(scenario)


def test_requests_that_cannot_be_decoded_get_an_answer() -> None:
    async def scenario(stage: Stage) -> None:
        link = await stage.connect(stage.identity())
        data = run_all(encode_request(CREATE))
        for content, code in (
            (data[:-1], ErrorCode.INVALID_REQUEST),
            (data + b"\0", ErrorCode.INVALID_REQUEST),
            (b"\0\x13\0\7\0\0\0\1\xff\xff", ErrorCode.INVALID_REQUEST),
            (data.replace(b"CreateTopics", b"ExplodeTopic"), ErrorCode.UNSUPPORTED_VERSION),
        ):
            answer = answer_in(await envelope(link, content))
            assert (answer.value, answer.error) == (None, code)
            assert answer.message
        assert answer_in(await envelope(link, CREATE)).error == ErrorCode.NONE
        link.close()

    run(scenario)


def test_only_the_inter_broker_listener_serves_envelopes() -> None:
    async def scenario(stage: Stage) -> None:
        link = await AsyncLink.connect(stage.stranger, stage.receiver.host.address, PORT, "stranger")
        with pytest.raises(OSError, match="ended"):
            await identify(link, stage.identity(), stage.stranger.new_uuid)
        link = await AsyncLink.connect(stage.stranger, stage.receiver.host.address, PORT + 1, "stranger")
        await identify(link, stage.identity(), stage.stranger.new_uuid)
        assert answer_in(await envelope(link, CREATE)).error == ErrorCode.NONE
        link.close()

    run_with_two_listeners(scenario)


@pytest.mark.parametrize(("setting", "limit"), [("max.connections", 6), ("max.connection.creation.rate", 1)])
def test_clients_cannot_keep_brokers_away(setting: str, limit: int) -> None:
    """As in Kafka, the broker's own limits do not apply to a listener that only brokers use."""

    async def scenario(stage: Stage) -> None:
        links: list[AsyncLink] = []
        if setting == "max.connections":
            with pytest.raises(OSError, match="ended"):
                for _ in range(limit + 1):
                    links.append(await AsyncLink.connect(stage.stranger, stage.receiver.host.address, PORT, "client"))
        began_s = stage.cluster.world.loop.time()
        for _ in range(40):
            link = await AsyncLink.connect(stage.stranger, stage.receiver.host.address, PORT + 1, "broker")
            await identify(link, stage.identity(), stage.stranger.new_uuid)
            links.append(link)
        assert stage.cluster.world.loop.time() - began_s < 1
        for link in links:
            link.close()

    run_with_two_listeners(scenario, {setting: str(limit)})


def run_with_two_listeners(
    scenario: Callable[[Stage], Coroutine[Any, Any, None]], settings: dict[str, str] | None = None
) -> None:
    """Run with the listener CLIENTS on PORT, and the listener BROKERS, which brokers use, on PORT + 1."""

    async def whole(world: World) -> None:
        cluster = SimCluster(world, 2)
        for node in cluster.nodes:
            host = node.host.address
            cluster.settings = {
                "listeners": f"CLIENTS://{host}:{PORT},BROKERS://{host}:{PORT + 1}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                **(settings or {}),
            }
            await node.start()
        await scenario(Stage(cluster))
        for node in reversed(cluster.nodes):
            await node.stop()

    with simulated(1) as world:
        world.run(whole(world))


class ReportedFetches:
    """`Followers` that accept every fetch."""

    def __init__(self) -> None:
        self.brokers: list[int] = []

    def fetched(self, partition: Any, follower: Any, fetch_offset: int, log_start_offset: int, *_: int) -> None:
        self.brokers.append(follower.broker_id)

    def watch_ends(self, watcher: Any) -> None: ...
    def unwatch_ends(self, watcher: Any) -> None: ...


def test_a_follower_fetches_on_its_own_connection_only() -> None:
    async def scenario(stage: Stage) -> None:
        assert stage.receiver.broker is not None
        assert stage.cluster.nodes[1].broker is not None
        services = stage.receiver.broker.services
        services.followers = followers = ReportedFetches()
        topic = NewTopic("t", assignments=[(0, [1])])
        await services.controller.create_topics(CreateTopics([topic]))
        image = services.metadata.image
        connections = stage.cluster.nodes[1].broker.peer_connections
        assert connections is not None
        partitions = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]
        topics = [FetchTopic(topic_id=image.topics["t"].topic_id, partitions=partitions)]

        async def fetch(channel: Channel, broker_id: int) -> int:
            state = ReplicaState(broker_id, image.brokers[2].epoch)
            request = FetchRequest(topics=topics, replica_state=state, session_epoch=-1, max_wait_ms=0)
            answer = await channel.ask(request, FetchResponse)
            return answer.responses[0].partitions[0].error_code

        own = connections.channel(image.brokers[1])
        stranger = Channel(stage.stranger, stage.receiver.address)
        assert await fetch(own, 2) == ErrorCode.NONE
        assert followers.brokers == [2]
        assert await fetch(own, 3) != ErrorCode.NONE, "in the name of another broker"
        assert await fetch(stranger, 2) != ErrorCode.NONE
        assert followers.brokers == [2]
        own.close()
        stranger.close()

    run(scenario)


def test_incarnations_are_neither_sent_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario(stage: Stage) -> None:
        known = stage.identity()
        link = await stage.connect(known)
        link.close()
        with pytest.raises(BrokenProtocol):
            await stage.connect(stage.identity(incarnation="guessed"))
        claim = Claim(2, 1, True, stage.stranger.new_uuid(), known.cluster_id)
        sent = claim.encode() + b"".join(make_macs(claim, bytes(16), known.receiver_incarnation, known.incarnation))
        for incarnation in (known.incarnation, known.receiver_incarnation):
            assert incarnation.encode() not in sent
            assert incarnation not in caplog.text

    run(scenario)


@pytest.mark.parametrize(
    "data",
    [
        b"TLID",
        b"TLID\1\1",
        b"TLID\2\1",
        b"TLID\1\2" + bytes(MAC_BYTES - 1),
        b"TLID\1\2" + bytes(MAC_BYTES + 1),
        b"TLID\1\3" + bytes(MAC_BYTES),
        Claim(1, 2, False, bytes(NUMBER_BYTES), "c").encode() + b"x",
        Claim(1, 2, False, bytes(NUMBER_BYTES), "c").encode()[:-1] + b"\xff",
        Claim(1, 2, False, bytes(NUMBER_BYTES), "c").encode().replace(b"TLID\1\1\0", b"TLID\1\1\2"),
    ],
    ids=repr,
)
def test_malformed_identifications_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedIdentification):
        decode_message(data)
    claim = Claim(1, 2, True, bytes(range(NUMBER_BYTES)), "cluster")
    assert decode_message(claim.encode()) == claim
    assert decode_message(encode_proof(bytes(MAC_BYTES))) == bytes(MAC_BYTES)
