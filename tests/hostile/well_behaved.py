"""A typical client in a separate process: writes a record, reads it, sometimes a large one, and measures the time.

    python well_behaved.py PORT TOPIC

works until its standard input ends, then prints its account as JSON: requests, the p50, p99 and the longest in ms.
"""

import json
import select
import sys
import time

from process_harness.raw import RawConnection
from tidelog.wire.errors import ErrorCode

PAUSE_S = 0.003
LARGE_EVERY = 20
LARGE_BYTES = 900_000


def main(port: int, topic: str) -> None:
    times: list[float] = []
    number = 0
    with RawConnection(("127.0.0.1", port)) as client:
        client.create_topic(topic)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            large = number % LARGE_EVERY == LARGE_EVERY - 1
            value = b"%d" % number + bytes(LARGE_BYTES if large else 0)
            began = time.perf_counter()
            produced = client.produce(topic, 0, [value])
            assert (produced.error_code, produced.base_offset) == (ErrorCode.NONE, number), produced
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            code, records = client.fetch(topic, 0, number)
            assert (code, [record.value for record in records]) == (ErrorCode.NONE, [value])
            times.append(time.perf_counter() - began)
            number += 1
    times.sort()
    account = {
        "requests": len(times),
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[len(times) * 99 // 100],
        "max_ms": 1000 * times[-1],
    }
    print(json.dumps(account), flush=True)


main(int(sys.argv[1]), sys.argv[2])
