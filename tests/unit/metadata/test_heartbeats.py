"""Heartbeats to one active controller: a broker stops when all active brokers know the new leaders."""

import pytest

from metadata_harness.journal_life import JournalLife
from tidelog.metadata.heartbeats import Heartbeats
from tidelog.metadata.registration import Heartbeat, HeartbeatReply, fence_broker
from tidelog.wire.errors import ApiError, ErrorCode


class Life(JournalLife):
    """Three brokers whose heartbeats go to one controller. Each of them leads a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.start(1, 2, 3)
        self.controller = Heartbeats(self.config)

    def send(
        self, broker_id: int, *, followed: int | None = None, epoch: int | None = None, stops: bool = False
    ) -> HeartbeatReply:
        broker = self.image.brokers[broker_id]
        position = self.image.position if followed is None else followed
        request = Heartbeat(broker_id, broker.epoch if epoch is None else epoch, position, wants_shutdown=stops)
        return self.decide(self.controller.decide(self.image, request))


def test_a_broker_stops_when_every_active_broker_has_followed() -> None:
    life = Life()
    assert not life.send(1, stops=True).should_shut_down
    assert life.image.brokers[1].in_controlled_shutdown
    after_shutdown = life.image.position
    assert not life.send(1, stops=True).should_shut_down
    life.send(2)
    assert not life.send(1, stops=True).should_shut_down
    life.send(3, followed=after_shutdown - 1)
    assert not life.send(1, stops=True).should_shut_down
    life.send(3, followed=after_shutdown)
    assert life.send(1, stops=True).should_shut_down


def test_later_entries_do_not_delay_the_stop() -> None:
    life = Life()
    life.send(1, stops=True)
    life.send(1, stops=True)
    for broker in (2, 3):
        life.send(broker)
    life.register(4)
    assert life.send(1, stops=True).should_shut_down


def test_a_new_controller_waits_for_the_next_heartbeats() -> None:
    life = Life()
    life.send(1, stops=True)
    for broker in (2, 3):
        life.send(broker)
    life.controller = Heartbeats(life.config)
    assert not life.send(1, stops=True).should_shut_down
    for broker in (2, 3):
        life.send(broker)
    assert life.send(1, stops=True).should_shut_down


def test_a_fenced_broker_delays_nothing() -> None:
    life = Life()
    life.send(1, stops=True)
    life.send(2)
    assert not life.send(1, stops=True).should_shut_down
    life.decide(fence_broker(life.image, 3, life.image.brokers[3].incarnation, life.config))
    life.send(2)
    assert life.send(1, stops=True).should_shut_down


def test_a_heartbeat_of_an_earlier_run_counts_for_nothing() -> None:
    life = Life()
    life.send(1, stops=True)
    life.send(1, stops=True)
    life.send(2)
    with pytest.raises(ApiError) as caught:
        life.send(3, epoch=life.image.brokers[3].epoch - 1)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert not life.send(1, stops=True).should_shut_down
