"""Registration of brokers where nothing is fenced yet, and bytes of the journal that must not change.

Fencing, incarnations, unclean stops and controlled shutdowns are in `tests/scenarios/controller`.
"""

import pytest

from metadata_harness.builders import image, settings, topic
from metadata_harness.journal_life import JournalLife, directory
from tidelog.config.endpoints import Endpoint
from tidelog.metadata import controller
from tidelog.metadata.image import METADATA_FEATURE
from tidelog.metadata.records import BrokerStateChanged, DirectoryId, FeatureLevelChanged, decode, encode
from tidelog.metadata.registration import (
    Heartbeat,
    HeartbeatReply,
    Registration,
    fence_broker,
    heartbeat,
    register_broker,
    unregister_broker,
)
from tidelog.model.steps import run_all
from tidelog.wire.errors import ApiError, ErrorCode

ENDPOINTS = (Endpoint("PLAINTEXT", "h", 9092),)


def test_below_level_1_a_registration_has_the_bytes_that_it_always_had() -> None:
    before = image(topic("a", 1))
    decision = run_all(
        register_broker(before, Registration(1, "run", ENDPOINTS, "r"), settings(), other_run_has_lease=False)
    )
    old = controller.register_broker(before, 1, "run", ENDPOINTS, "r")
    assert encode(1, decision.records) == encode(1, old.records)
    assert decision.reply == before.position


def test_below_level_1_heartbeats_change_nothing() -> None:
    before = image(topic("a", 1))
    for fields in ({}, {"wants_fence": True}, {"wants_shutdown": True}):
        request = Heartbeat(1, 0, 0)._replace(**fields)
        decision = run_all(heartbeat(before, request, settings()))
        assert decision.records == []
        assert decision.reply == HeartbeatReply(False, False, request.wants_shutdown)
    with pytest.raises(ApiError) as caught:
        run_all(unregister_broker(before, 1, settings()))
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_broker_of_an_older_version_ignores_what_it_does_not_know_of_a_registration() -> None:
    """A broker that registers with its features does so before the level allows new kinds of records."""
    before = image(brokers=[])
    request = Registration(1, "run", ENDPOINTS, features={METADATA_FEATURE: (0, 1)}, boot_id="b")
    (record,) = run_all(register_broker(before, request, settings(), other_run_has_lease=False)).records
    data = encode(1, [record])
    assert b'"kind":"broker"' in data
    assert b"fenced" not in data
    assert decode(data, 0).records == [record]


@pytest.mark.parametrize(
    "directories",
    [(directory(1), directory(1)), (DirectoryId(bytes(16)),), (DirectoryId(bytes(15) + b"\x02"),), (directory(2),)],
)
def test_directory_ids_are_unique_and_not_reserved(directories: tuple[DirectoryId, ...]) -> None:
    life = JournalLife()
    life.start(2)
    with pytest.raises(ApiError) as caught:
        life.register(1, directories=directories)
    assert caught.value.code is ErrorCode.INVALID_REGISTRATION


def test_the_same_run_may_register_with_other_addresses_and_keeps_its_epoch_and_state() -> None:
    life = JournalLife()
    life.register(1, "run")
    life.beat(1)
    before = life.image.brokers[1]
    moved = (Endpoint("PLAINTEXT", "elsewhere", 9092),)
    assert life.register(1, "run", other_run_has_lease=True, endpoints=moved) == before.epoch
    assert life.image.brokers[1] == before._replace(endpoints=moved)
    assert life.image.is_active(1)


def test_a_registration_says_whose_records_the_directories_have_until_the_broker_is_unfenced() -> None:
    life = JournalLife()
    first = life.register(1)
    assert (life.image.brokers[1].records_epoch, life.image.brokers[1].records_synced) == (-1, False)
    life.register(1, "second", previous_epoch=first, is_synced=True)
    life.register(1, "third", previous_epoch=first)
    found = life.image.brokers[1]
    assert (found.records_epoch, found.records_synced) == (first, True)
    life.check_replay()  # also from a snapshot
    # The same run sends its registration again, with other addresses.
    life.register(1, "third", previous_epoch=first, endpoints=(Endpoint("PLAINTEXT", "elsewhere", 9092),))
    assert life.image.brokers[1].records_epoch == first
    life.beat(1)
    life.decide(fence_broker(life.image, 1, "third", life.config))
    assert life.image.brokers[1].fenced
    assert (life.image.brokers[1].records_epoch, life.image.brokers[1].records_synced) == (-1, False)
    life.check_replay()


def test_after_an_unclean_stop_only_the_new_epoch_counts() -> None:
    life = JournalLife()
    first = life.register(1)
    life.register(1, previous_epoch=first, boot_id="other")
    assert life.image.brokers[1].records_epoch == -1


def test_a_broker_that_is_shutting_down_is_not_unfenced() -> None:
    life = JournalLife()
    life.start(1)
    life.beat(1, wants_shutdown=True)
    life.apply([BrokerStateChanged(1, life.image.brokers[1].epoch, fenced=True)])
    assert life.beat(1) == HeartbeatReply(True, True, False)


def test_only_registered_brokers_are_active() -> None:
    before = image(FeatureLevelChanged(METADATA_FEATURE, 1))
    assert before.is_active(1)
    assert not before.is_active(2)
