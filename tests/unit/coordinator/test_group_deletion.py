import pytest
from classic_world import Reply, World

from tidelog.coordinator.group.core import DELETE_RECORDS_MAX
from tidelog.coordinator.group.state import GroupState
from tidelog.wire.errors import ApiError, ErrorCode
from tidelog.wire.messages.consumer_protocol import ConsumerProtocolSubscription


def subscription(*topics: str) -> bytes:
    return b"\0\1" + ConsumerProtocolSubscription(list(topics)).encode(1)


def delete(world: World, group: str = "g") -> int:
    """How many decisions that takes. Raises ApiError."""
    count, is_last = 0, False
    while not is_last:
        decision, is_last = world.core.delete_some(group, world.now)
        world.apply(decision)
        count += 1
    return count


def delete_offsets(world: World, *offsets: tuple[str, int], group: str = "g") -> list[ErrorCode]:
    reply = Reply()
    world.apply(world.core.delete_offsets(group, offsets, reply, world.now))
    codes: list[ErrorCode] = reply.only
    return codes


def refused(error: ErrorCode) -> object:
    return pytest.raises(ApiError, check=lambda raised: raised.code is error)


def test_nothing_is_left_of_a_group_that_is_deleted() -> None:
    world = World()
    world.commit((0, 1, ""), (1, 2, ""))
    world.commit((0, 1, ""), group="other")
    assert delete(world) == 1
    assert list(world.core.durable.by_id) == ["other"]
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        delete(world)


def test_a_large_group_goes_in_several_steps() -> None:
    world = World()
    world.commit(*((partition, 1, "") for partition in range(2 * DELETE_RECORDS_MAX + 1)))
    assert delete(world) == 3
    assert world.core.durable.by_id == {}


def test_a_group_that_somebody_joins_between_two_steps_stays() -> None:
    world = World()
    world.commit(*((partition, 1, "") for partition in range(2 * DELETE_RECORDS_MAX)))
    decision, is_last = world.core.delete_some("g", world.now)
    world.apply(decision)
    assert not is_last
    world.join()
    with refused(ErrorCode.NON_EMPTY_GROUP):
        world.core.delete_some("g", world.now)
    assert len(world.core.durable.by_id["g"].offsets["t"]) == DELETE_RECORDS_MAX


def test_members_keep_their_group_in_every_state() -> None:
    world = World()
    first = world.join()
    for state, step in (
        (GroupState.PREPARING_REBALANCE, lambda: world.wait(300)),
        (GroupState.COMPLETING_REBALANCE, lambda: world.sync(first.only.member_id, 1)),
        (GroupState.STABLE, lambda: world.leave((first.only.member_id, None))),
    ):
        assert world.group.state is state
        with refused(ErrorCode.NON_EMPTY_GROUP):
            delete(world)
        step()
    delete(world)
    assert world.core.groups == {}


def test_ids_without_a_member_keep_nothing_and_are_void() -> None:
    world = World()
    pending = world.join(version=4)
    delete(world)
    again = world.join(pending.only.member_id, version=4)
    assert again.error is ErrorCode.UNKNOWN_MEMBER_ID
    world.wait(10_000)
    assert world.core.groups == {}


def test_offsets_of_what_is_read_stay() -> None:
    world = World()
    join = world.join(protocols=[("range", subscription("t"))], session_ms=60_000)
    assert delete_offsets(world, ("t", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC], "nothing is known yet"
    world.wait(300)
    member_id = join.only.member_id
    world.sync(member_id, 1)
    world.commit((0, 1, ""), member_id=member_id, generation=1)
    world.commit((0, 1, ""), member_id=member_id, generation=1, topic="old")
    codes = delete_offsets(world, ("t", 0), ("old", 0), ("old", 7))
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert list(world.core.durable.by_id["g"].offsets) == ["t"]
    world.leave((member_id, None))
    assert delete_offsets(world, ("t", 0)) == [ErrorCode.NONE]
    assert world.core.durable.by_id["g"].offsets == {}


def test_a_loaded_group_knows_what_its_members_read() -> None:
    before = World()
    join = before.join(protocols=[("range", subscription("t"))], session_ms=60_000)
    before.wait(300)
    before.sync(join.only.member_id, 1)
    before.commit((0, 1, ""), member_id=join.only.member_id, generation=1, topic="old")
    after = World()
    after.core.durable = before.core.durable
    after.apply(after.core.loaded(after.now))
    assert delete_offsets(after, ("t", 0), ("old", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]


def test_a_group_without_a_last_offset_is_there_until_the_sweep() -> None:
    world = World()
    world.commit((0, 1, ""))
    delete_offsets(world, ("t", 0))
    described = world.core.describe("g")
    assert described is not None
    assert described.group_state == "Empty"
    world.commit((0, 2, ""))
    delete_offsets(world, ("t", 0))
    world.sweep()
    assert world.core.describe("g") is None
    assert world.core.groups == {}
