"""A follower whose leader reports a difference of their logs in every answer. In a real broker, the end of each cut
lets the replica follow its leader again, in the same epoch.
"""

import asyncio

import pytest

from replication_harness.brokers import Stage, run
from tidelog.replication.fetcher import LOG_CHANGES_MAX, Fetcher
from tidelog.replication.follower_session import PartitionAnswer
from tidelog.wire.messages.fetch import EpochEndOffset


@pytest.mark.parametrize("removed", [0, 1])
def test_a_follower_pauses_between_cuts_without_end(monkeypatch: pytest.MonkeyPatch, removed: int) -> None:
    """Each cut removes no record, or one record. The cuts of one second are as many as in a fetcher without a broker
    (`LOG_CHANGES_MAX`), and the follower is in sync again as soon as the leader reports no difference.
    """
    apply = Fetcher._apply

    async def scenario(stage: Stage) -> None:
        for number in range(40):
            await stage.produce(b"%d" % number)
        follower = stage.followers[0]
        await stage.until_equal(follower)
        log = stage.partition(follower).log
        cuts = 0

        async def apply_difference(fetcher: Fetcher, answers: list[PartitionAnswer]) -> None:
            nonlocal cuts
            for answer in answers:
                cuts += 1
                answer.data.records = b""
                answer.data.diverging_epoch = EpochEndOffset(log.epochs.latest, max(log.log_end_offset - removed, 0))
            await apply(fetcher, answers)

        monkeypatch.setattr(Fetcher, "_apply", apply_difference)
        await stage.produce(b"last", acks=1)
        await stage.until(lambda: cuts >= 1)
        await asyncio.sleep(0.5)
        assert cuts == (LOG_CHANGES_MAX + 1 if removed else 1)
        await asyncio.sleep(5)
        assert cuts <= LOG_CHANGES_MAX + 10
        monkeypatch.setattr(Fetcher, "_apply", apply)
        await stage.until_equal(follower)

    run(scenario, brokers=2)
