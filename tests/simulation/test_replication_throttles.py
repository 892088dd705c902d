"""The limits on the rate of replication (KIP-73) delay replicas that are not in sync, and nothing else."""

import pytest

from replication_harness.brokers import Stage, run

RATE = 20_000
"""Bytes per second."""
RECORD_BYTES = 5_000
RECORDS = 60


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("replicas", ["*", "0:1,0:2,0:3", "0:9", ""])
def test_a_replica_that_catches_up_is_throttled(side: str, replicas: str) -> None:
    async def scenario(stage: Stage) -> None:
        late, other = stage.followers
        late.kill()
        await stage.until_isr(stage.leader.node_id, other.node_id)
        began_s = stage.world.loop.time()
        for _ in range(RECORDS):
            assert (await stage.produce(bytes(RECORD_BYTES))).error_code == 0
        assert stage.world.loop.time() - began_s < 5, "in-sync replicas are not throttled"
        began_s = stage.world.loop.time()
        await late.start()
        await stage.until_isr(1, 2, 3, seconds=120)
        seconds = stage.world.loop.time() - began_s
        if replicas in ("", "0:9"):
            assert seconds < 6
        else:
            assert 5 < seconds < 30, "the window lets pass a burst"
        await stage.until_equal(*stage.cluster.nodes)

    run(
        scenario,
        settings={f"{side}.replication.throttled.rate": str(RATE), "replica.fetch.response.max.bytes": "10000"},
        config={f"{side}.replication.throttled.replicas": replicas},
    )
