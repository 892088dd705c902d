"""Scenarios of transactions: requests of producers, delayed and reordered, and the answers.

producer A                      a new producer of the transactional id "tx"; the indented line is the answer
    NONE epoch 0
add A P ..                      AddPartitionsToTxn of version 1
produce A P VALUE seq=N [v1]    one record into partition P of the topic
offset A N [v1]                 TxnOffsetCommit for the group "g", whose partition is added first with v1
commit A [v1]    abort A [v1]   EndTxn. With version 2, the producer continues with the epoch of the answer.
delay NAME: COMMAND             the network holds the request back; its epoch is that of now
arrive NAME                     the delayed request arrives, and is answered
hold markers    release markers the coordinator cannot write markers until they are released
restart                         the broker's process is killed, and started again
wait SECONDS
until STATE                     wait until the transaction is in this state
read P                          the values that a consumer with read_committed gets, and the last stable offset
committed                       the offset of the group "g", for a consumer that requires a stable one
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tidelog.client.error_codes import error_name
from tidelog.simulation.world import simulated
from transaction_harness import COMMIT_V1, COMMIT_V2, END_V1, END_V2, PRODUCE_V1, PRODUCE_V2, TOPIC, Producer, Stage

Request = Callable[[], Coroutine[Any, Any, str]]


class Play:
    """One run of a scenario. `run` returns its text with the answers that came."""

    def __init__(self, text: str) -> None:
        self._events = [line for line in text.splitlines() if not line.startswith(" ")]
        self._stage: Stage
        self._producers: dict[str, Producer] = {}
        self._delayed: dict[str, Request] = {}
        self._held = asyncio.Event()

    def run(self) -> str:
        with simulated(1) as world:
            self._stage = Stage(world, {})
            lines: list[str] = []
            world.run(self._play(lines))
            return "\n".join(lines) + "\n"

    async def _play(self, lines: list[str]) -> None:
        await self._stage.start()
        await (await self._stage.client()).create_topic(TOPIC, 3)
        for event in self._events:
            lines.append(event)
            if event and not event.startswith("#"):
                answer = await self._perform(event)
                if answer:
                    lines.append(f"    {answer}")
        await self._stage.stop()

    async def _perform(self, event: str) -> str:
        stage = self._stage
        match event.split():
            case ["delay", name, *words]:
                self._delayed[name.rstrip(":")] = self._request(words)
            case ["arrive", name]:
                return await self._delayed.pop(name)()
            case ["hold", "markers"]:
                self._hold_markers()
            case ["release", "markers"]:
                self._held.set()
            case ["restart"]:
                await stage.kill()
                await stage.init("another")  # both coordinators are loaded then
            case ["wait", seconds]:
                await asyncio.sleep(float(seconds))
            case ["until", state]:
                await stage.until_state(state)
            case ["read", index]:
                values = b" ".join(await stage.values(index=int(index))).decode() or "-"
                return f"{values}  stable {await stage.end_offset(committed=True, index=int(index))}"
            case ["committed"]:
                return str(await stage.offset())
            case words:
                return await self._request(words)()
        return ""

    def _request(self, words: list[str]) -> Request:
        """Return the request of a producer, with the epoch that the producer has now."""
        stage, is_v1 = self._stage, words[-1] == "v1"
        if is_v1:
            words = words[:-1]
        if words[0] == "producer":
            return lambda: self._begin(words[1])
        producer = self._producers[words[1]]

        async def code(answer: Coroutine[Any, Any, int]) -> str:
            return error_name(await answer)

        match words:
            case ["add", _, *indexes]:
                return lambda: code(stage.add(producer, *map(int, indexes)))
            case ["produce", _, index, value, sequence]:
                number = int(sequence.removeprefix("seq="))
                version = PRODUCE_V1 if is_v1 else PRODUCE_V2
                return lambda: code(
                    stage.produce(producer, value.encode(), sequence=number, index=int(index), version=version)
                )
            case ["offset", _, offset]:
                return lambda: self._commit_offset(producer, int(offset), is_v1=is_v1)
            case ["commit" | "abort" as verb, name]:
                return lambda: self._end(name, producer, commit=verb == "commit", is_v1=is_v1)
        raise ValueError(f"no such command: {' '.join(words)}")

    async def _begin(self, name: str) -> str:
        self._producers[name] = await self._stage.producer()
        return f"NONE epoch {self._producers[name].epoch}"

    async def _commit_offset(self, producer: Producer, offset: int, *, is_v1: bool) -> str:
        if is_v1:
            response = await self._stage.call(
                "AddOffsetsToTxn",
                4,
                transactional_id="tx",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                group_id="g",
            )
            if response.error_code:
                return f"AddOffsetsToTxn {error_name(response.error_code)}"
        return error_name(await self._stage.commit_offset(producer, offset, version=COMMIT_V1 if is_v1 else COMMIT_V2))

    async def _end(self, name: str, producer: Producer, *, commit: bool, is_v1: bool) -> str:
        response = await self._stage.end(producer, commit=commit, version=END_V1 if is_v1 else END_V2)
        if response.error_code or is_v1:
            return error_name(response.error_code)
        if self._producers[name] == producer:
            self._producers[name] = Producer(response.producer_id, response.producer_epoch)
        return f"NONE epoch {response.producer_epoch}"

    def _hold_markers(self) -> None:
        parts = self._stage.broker._transactions
        assert parts is not None
        writer, held = parts._markers, self._held
        held.clear()
        write = writer._write_locally

        async def write_later(request: Any) -> Any:
            await held.wait()
            return await write(request)

        writer._write_locally = write_later
