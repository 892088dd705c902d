"""Reads one topic and writes another one, each record exactly once, with aiokafka.

pip install . aiokafka                  # in a clone of the repository
tidelog start                           # in a terminal of its own
python examples/exactly_once_aiokafka.py        # writes 30 payments, books each of them once, and ends
python examples/exactly_once_aiokafka.py HOST:PORT SOURCE TARGET PARTITION      # works until it is stopped

Start one worker for each partition of SOURCE. aiokafka sends offsets to a transaction without the member of the group,
so the broker cannot refuse the offsets of a worker that has lost its partitions. Therefore partitions do not move
between these workers: each reads one partition, and has this partition in its transactional id. If a second process is
started for the same partition, the first one is fenced.

After any error the process ends. Start it again: it continues at the committed offset.
"""

import asyncio
import os
import signal
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

PAYMENTS = 30
RECORDS_MAX = 500
"""Upper bound on the records of one transaction."""
STUCK_S = 45.0
"""Time limit of one transaction; the broker aborts it earlier, after the transaction timeout. The process then ends."""


class Worker:
    """Consumes the records of one partition, and writes the results and the offset in one transaction."""

    def __init__(self, bootstrap: str, source: str, target: str, partition: int) -> None:
        self.group = f"{source}-to-{target}"
        self.source = TopicPartition(source, partition)
        self.target = target
        self.producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=f"{self.group}-{partition}",
            transaction_timeout_ms=20_000,
        )
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=self.group,  # only for the committed offsets: `assign` does not join the group
            enable_auto_commit=False,  # the transaction commits the offset
            auto_offset_reset="earliest",
            isolation_level="read_committed",  # skip the records of aborted transactions
        )

    async def start(self) -> None:
        # The order matters. The start of the producer ends the transaction of an earlier process. The committed offset
        # is read after that.
        await self.producer.start()
        await self.consumer.start()
        self.consumer.assign([self.source])

    async def work(self) -> int:
        """Process some records, in one transaction. Return their number; 0 if there are none at present."""
        polled = await self.consumer.getmany(self.source, timeout_ms=500, max_records=RECORDS_MAX)
        records = polled.get(self.source, [])
        if not records:
            return 0
        stuck = asyncio.get_running_loop().call_later(STUCK_S, os._exit, 1)
        async with self.producer.transaction():
            for record in records:
                await self.producer.send(self.target, key=record.key, value=book(record.value))
            await self.producer.send_offsets_to_transaction({self.source: records[-1].offset + 1}, self.group)
        stuck.cancel()
        return len(records)

    async def stop(self) -> None:
        await self.consumer.stop()
        await self.producer.stop()


def book(payment: bytes | None) -> bytes:
    """Return the result for one record."""
    return b"booked " + (payment or b"")


async def run(bootstrap: str, source: str, target: str, partition: int) -> None:
    """Work until SIGTERM or Ctrl-C."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    worker = Worker(bootstrap, source, target, partition)
    try:
        await worker.start()
        while not stopping.is_set():
            await worker.work()
    finally:
        await worker.stop()


async def demonstrate(bootstrap: str) -> None:
    suffix = uuid.uuid4().hex[:8]
    source, target = f"payments-{suffix}", f"bookings-{suffix}"
    shop = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"shop-{suffix}")
    async with shop, shop.transaction():
        for number in range(PAYMENTS):
            await shop.send(source, f"payment {number}".encode())

    worker = Worker(bootstrap, source, target, 0)
    await worker.start()
    async with asyncio.timeout(60):
        booked = 0
        while booked < PAYMENTS:
            booked += await worker.work()
    await worker.stop()

    reader = AIOKafkaConsumer(
        target, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    async with reader, asyncio.timeout(60):
        values = [(await reader.getone()).value for _ in range(PAYMENTS)]
    print(f"{len(values)} bookings of {len(set(values))} payments, the first: {values[0].decode()}")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        asyncio.run(run(*sys.argv[1:4], int(sys.argv[4])))
    else:
        asyncio.run(demonstrate(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"))
