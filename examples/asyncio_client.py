"""A producer and a consumer in one event loop, with aiokafka, against a broker in this process.

pip install . aiokafka                  # in a clone of the repository
python examples/asyncio_client.py
"""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tidelog.testing import Broker

READINGS = 100


async def measure(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(READINGS):
            await producer.send("temperatures", key=b"sensor-1", value=str(20 + number / 10).encode())


async def average(bootstrap: str) -> float:
    consumer = AIOKafkaConsumer("temperatures", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        values = [float((await consumer.getone()).value or 0) for _ in range(READINGS)]
    return sum(values) / len(values)


async def main() -> None:
    async with Broker() as broker:
        await measure(broker.bootstrap)
        async with asyncio.timeout(30):
            print(f"average of {READINGS} readings: {await average(broker.bootstrap):.2f}")


if __name__ == "__main__":
    asyncio.run(main())
