"""Scenarios of real brokers in the simulation: what clients send to which broker, faults, and the answers.

    brokers 3 [SETTING=VALUE ...] [racks]     start brokers 1 to 3, with `racks` each in a rack of its own
    topic [replicas=1,2] [SETTING=VALUE ...]  create the topic "orders" with one partition; the first replica leads
    produce B VALUE [acks=all] [key=K]        the indented line below is the answer of broker B
        NONE at 0

The other commands:

    read B OFFSET [rack=R] [epoch=E] [as=BROKER]            E is the leader epoch that the client knows
    latest B [epoch=E]            epoch-end B E   the end offset of an epoch      delete-records B OFFSET
    create-topic NAME B           set B SETTING=VALUE      alter the topic's settings
    elect preferred|unclean B     send ElectLeaders to broker B
    coordinator G B               commit G B OFFSET                             committed G B
    kill|start|stop|pause|resume|cut-power B
    empty B                       delete the data directory of broker B, which does not run
    isolate B                     cut broker B off from the other brokers and from the store; clients still reach it
    cut-store B                   cut broker B off from the store
    lose-answers B                calls of broker B reach the store, but their answers are lost
    heal                          end the faults of links
    until leader=B|isr=B,..|equal B ..|lost-lease B
    wait SECONDS                  show          the state in the metadata, and of each replica
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from replication_harness.brokers import TOPIC, Stage
from tidelog.client.channel import Channel, ChannelConfig
from tidelog.client.error_codes import error_name
from tidelog.client.errors import BrokerUnreachable
from tidelog.client.operations import LATEST
from tidelog.simulation import shared_store
from tidelog.simulation.cluster import DATA
from tidelog.simulation.medium import PowerCutOdds
from tidelog.simulation.member import SimMember
from tidelog.simulation.world import simulated
from tidelog.wire.message import Message
from tidelog.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidelog.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidelog.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.records import Record, batches_in, decode_records, encode_batch

TIMEOUT_MS = 4_000


class Play:
    """One run of a scenario. `run` returns its text with the answers that came."""

    def __init__(self, text: str) -> None:
        self._events = [line for line in text.splitlines() if not line.startswith(" ")]
        self._answers: list[str] = []
        self._stage: Any = None
        self._channels: dict[int, Channel] = {}

    def run(self) -> str:
        with simulated(1) as world:
            first = next(line for line in self._events if line.startswith("brokers "))
            words, settings = _parse(first)
            self._stage = Stage(world, int(words[1]), settings, has_racks="racks" in words)
            lines: list[str] = []
            world.run(self._play(lines))
            return "\n".join(lines) + "\n"

    async def _play(self, lines: list[str]) -> None:
        for event in self._events:
            lines.append(event)
            if not event or event.startswith(("#", "brokers ")):
                continue
            words, options = _parse(event)
            self._answers = []
            name = "_" + words[0].replace("-", "_")
            verb: Callable[[list[str], dict[str, str]], Coroutine[Any, Any, None]] = getattr(self, name)
            await verb(words[1:], options)
            lines += [f"    {answer}" for answer in self._answers]

    def _node(self, word: str) -> Any:
        return self._stage.node(int(word))

    async def _ask(self, broker: str, request: Message) -> Any:
        """Send a request to a broker. None: there is no answer in time."""
        node = self._node(broker)
        channel = self._channels.get(node.node_id)
        if channel is None:
            config = ChannelConfig("client", TIMEOUT_MS, connection_setup_timeout_ms=TIMEOUT_MS)
            channel = Channel(self._stage.world.host("client").runtime, node.address, config)
            self._channels[node.node_id] = channel
        try:
            return await channel.ask(request, Message)  # type: ignore[type-abstract]
        except BrokerUnreachable:
            self._answers.append("no answer")
            return None

    # Clients

    async def _topic(self, words: list[str], options: dict[str, str]) -> None:
        replicas = tuple(int(word) for word in options.pop("replicas", "1,2,3").split(","))
        await self._stage.start(config=options, replicas=replicas)

    async def _produce(self, words: list[str], options: dict[str, str]) -> None:
        acks = {"all": -1, "1": 1}[options.get("acks", "all")]
        key = options["key"].encode() if "key" in options else None
        record = Record(key=key, value=words[1].encode(), timestamp=self._stage.world.host("client").clock.now_ms())
        data = PartitionProduceData(index=0, records=encode_batch([record]))
        topic = TopicProduceData("", self._stage.image.topics[TOPIC].topic_id, [data])
        request = ProduceRequest(acks=acks, timeout_ms=2_000, topic_data=[topic])
        answer = await self._ask(words[0], request)
        if answer is not None:
            result = answer.responses[0].partition_responses[0]
            place = "" if result.error_code else f" at {result.base_offset}"
            self._answers.append(f"{error_name(result.error_code)}{place}{_hint(result, answer)}")

    async def _read(self, words: list[str], options: dict[str, str]) -> None:
        item = FetchPartition(partition=0, fetch_offset=int(words[1]), partition_max_bytes=1 << 20)
        item.current_leader_epoch = int(options.get("epoch", -1))
        topic = FetchTopic("", self._stage.image.topics[TOPIC].topic_id, [item])
        rack = options.get("rack", "")
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, rack_id=rack, topics=[topic])
        if "as" in options:
            follower = int(options["as"])
            request.replica_state = ReplicaState(follower, self._stage.image.brokers[follower].epoch)
        answer = await self._ask(words[0], request)
        if answer is None:
            return
        data = answer.responses[0].partitions[0]
        if data.error_code:
            self._answers.append(f"{error_name(data.error_code)}{_hint(data, answer)}")
        elif data.preferred_read_replica >= 0:
            self._answers.append(f"read from broker {data.preferred_read_replica}")
        else:
            records = [record for header in batches_in(data.records) for record in _decoded(data.records, header)]
            values = ",".join((record.value or b"").decode() for record in records)
            self._answers.append(f"{values or 'nothing'}, high watermark {data.high_watermark}")

    async def _latest(self, words: list[str], options: dict[str, str]) -> None:
        topic = ListOffsetsTopic(TOPIC, [ListOffsetsPartition(0, int(options.get("epoch", -1)), LATEST)])
        answer = await self._ask(words[0], ListOffsetsRequest(replica_id=-1, topics=[topic]))
        if answer is not None:
            result = answer.topics[0].partitions[0]
            self._answers.append(error_name(result.error_code) if result.error_code else f"offset {result.offset}")

    async def _epoch_end(self, words: list[str], options: dict[str, str]) -> None:
        partition = OffsetForLeaderPartition(0, int(options.get("epoch", -1)), int(words[1]))
        answer = await self._ask(words[0], OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(TOPIC, [partition])]))
        if answer is not None:
            result = answer.topics[0].partitions[0]
            end = f"epoch {result.leader_epoch} ends at {result.end_offset}"
            self._answers.append(error_name(result.error_code) if result.error_code else end)

    async def _delete_records(self, words: list[str], options: dict[str, str]) -> None:
        topic = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, int(words[1]))])
        answer = await self._ask(words[0], DeleteRecordsRequest([topic], timeout_ms=2_000))
        if answer is not None:
            result = answer.topics[0].partitions[0]
            where = "" if result.error_code else f", the log begins at {result.low_watermark}"
            self._answers.append(f"{error_name(result.error_code)}{where}")

    async def _create_topic(self, words: list[str], options: dict[str, str]) -> None:
        topic = CreatableTopic(name=words[0], num_partitions=1, replication_factor=-1)
        answer = await self._ask(words[1], CreateTopicsRequest(topics=[topic], timeout_ms=3_000))
        if answer is not None:
            self._answers.append(error_name(answer.topics[0].error_code))

    async def _elect(self, words: list[str], options: dict[str, str]) -> None:
        kind = {"preferred": 0, "unclean": 1}[words[0]]
        answer = await self._ask(words[1], ElectLeadersRequest(kind, [TopicPartitions(TOPIC, [0])], 3_000))
        if answer is not None:
            self._answers.append(error_name(answer.replica_election_results[0].partition_result[0].error_code))

    async def _set(self, words: list[str], options: dict[str, str]) -> None:
        configs = [AlterableConfig(name, 0, value) for name, value in options.items()]
        resource = AlterConfigsResource(2, TOPIC, configs)
        answer = await self._ask(words[0], IncrementalAlterConfigsRequest([resource]))
        if answer is not None:
            self._answers.append(error_name(answer.responses[0].error_code))

    async def _coordinator(self, words: list[str], options: dict[str, str]) -> None:
        answer = await self._ask(words[1], FindCoordinatorRequest(key_type=0, coordinator_keys=[words[0]]))
        if answer is not None:
            found = answer.coordinators[0]
            error = error_name(found.error_code)
            self._answers.append(error if found.error_code else f"broker {found.node_id}")

    async def _member(self, group: str, broker: str) -> tuple[SimMember, Any]:
        client = await self._stage.client(self._node(broker))
        return SimMember(client, group, [TOPIC]), client

    async def _commit(self, words: list[str], options: dict[str, str]) -> None:
        member, client = await self._member(words[0], words[1])
        self._answers.append(error_name(await member.commit(TOPIC, 0, int(words[2]))))
        client.close()

    async def _committed(self, words: list[str], options: dict[str, str]) -> None:
        member, client = await self._member(words[0], words[1])
        offset, code = await member.committed(TOPIC, 0)
        self._answers.append(error_name(code) if code else f"offset {offset}")
        client.close()

    # Faults

    async def _kill(self, words: list[str], options: dict[str, str]) -> None:
        self._node(words[0]).kill()

    async def _start(self, words: list[str], options: dict[str, str]) -> None:
        await self._node(words[0]).start()

    async def _stop(self, words: list[str], options: dict[str, str]) -> None:
        await self._node(words[0]).stop()

    async def _pause(self, words: list[str], options: dict[str, str]) -> None:
        self._node(words[0]).host.pause()

    async def _resume(self, words: list[str], options: dict[str, str]) -> None:
        self._node(words[0]).host.resume()

    async def _cut_power(self, words: list[str], options: dict[str, str]) -> None:
        self._node(words[0]).cut_power(PowerCutOdds(keep=0.0, torn=0.0, wrong_size=0.0))

    async def _empty(self, words: list[str], options: dict[str, str]) -> None:
        self._node(words[0]).host.disk.remove_tree(DATA)

    async def _isolate(self, words: list[str], options: dict[str, str]) -> None:
        node = self._node(words[0])
        for other in self._stage.cluster.nodes:
            if other is not node:
                self._stage.world.network.partition(node.host.name, other.host.name)
        self._stage.world.network.partition(node.host.name, shared_store.HOST)

    async def _cut_store(self, words: list[str], options: dict[str, str]) -> None:
        self._stage.world.network.partition(self._node(words[0]).host.name, shared_store.HOST)

    async def _lose_answers(self, words: list[str], options: dict[str, str]) -> None:
        self._stage.world.network.partition_one_way(shared_store.HOST, self._node(words[0]).host.name)

    async def _heal(self, words: list[str], options: dict[str, str]) -> None:
        self._stage.world.network.heal()

    # Waiting and showing

    async def _until(self, words: list[str], options: dict[str, str]) -> None:
        stage = self._stage
        if "leader" in options:
            leader = int(options["leader"])
            await stage.until(lambda: stage.state().leader == leader and stage.leads(stage.node(leader)))
        elif "isr" in options:
            await stage.until_isr(*map(int, options["isr"].split(",")))
        elif words[0] == "equal":
            await stage.until_equal(*(self._node(word) for word in words[1:]))
        elif words[0] == "lost-lease":
            await stage.until(lambda: stage.partition(self._node(words[1])).replica.role.value == "offline")
        else:
            raise ValueError(f"there is nothing like {words}")

    async def _wait(self, words: list[str], options: dict[str, str]) -> None:
        await asyncio.sleep(float(words[0]))

    async def _show(self, words: list[str], options: dict[str, str]) -> None:
        stage, state = self._stage, self._stage.state()
        isr = ",".join(map(str, sorted(state.isr)))
        self._answers.append(f"metadata: leader={state.leader} epoch={state.leader_epoch} isr={isr}")
        for node in stage.cluster.nodes:
            if node.broker is None:
                self._answers.append(f"{node.node_id} down")
                continue
            partition = node.broker.services.partitions.find(TOPIC, 0)
            if partition is not None:
                replica = partition.replica
                values = ",".join(value.decode() for value in stage.values(node))
                self._answers.append(
                    f"{node.node_id} {replica.role.value} epoch={replica.leader_epoch} "
                    f"hw={replica.high_watermark} log={values or '-'}"
                )


def _decoded(data: Any, header: Any) -> list[Record]:
    return decode_records(data, header.position)


def _hint(result: Any, answer: Any) -> str:
    """Return the leader that the answer names (KIP-951)."""
    leader = result.current_leader
    if leader is None or leader.leader_id < 0:
        return ""
    address = next((f" at {e.host}:{e.port}" for e in answer.node_endpoints if e.node_id == leader.leader_id), "")
    return f", the leader is broker {leader.leader_id} in epoch {leader.leader_epoch}{address}"


def _parse(line: str) -> tuple[list[str], dict[str, str]]:
    words = line.split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return [word for word in words if "=" not in word], options
