"""Which quota applies, compared with Kafka's written-out order; which clients share a sensor; names without bounds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.quotas.client_quotas import ClientQuotas
from tidelog.quotas.connections import ConnectionQuotas
from tidelog.quotas.entities import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Entity,
    entity_of,
)
from tidelog.quotas.limits import Limits
from tidelog.quotas.sensors import IDLE_MS, Sensors
from tidelog.quotas.windows import Rate, Window

ELEVEN = Window(11, 1000)
Names = st.sampled_from(["a", "b", None])
Entities = st.one_of(
    st.builds(lambda u: entity_of([("user", u)]), Names),
    st.builds(lambda c: entity_of([("client-id", c)]), Names),
    st.builds(lambda u, c: entity_of([("user", u), ("client-id", c)]), Names, Names),
)


def by_kafkas_order(quotas: dict[Entity, float], user: str, client: str) -> tuple[float, str, str] | None:
    """The eight levels of Kafka's documentation, and what shares the quota at each."""
    levels: list[tuple[list[tuple[str, str | None]], str, str]] = [
        ([("user", user), ("client-id", client)], user, client),
        ([("user", user), ("client-id", None)], user, client),
        ([("user", user)], user, ""),
        ([("user", None), ("client-id", client)], user, client),
        ([("user", None), ("client-id", None)], user, client),
        ([("user", None)], user, ""),
        ([("client-id", client)], "", client),
        ([("client-id", None)], "", client),
    ]
    for parts, shared_user, shared_client in levels:
        if entity_of(parts) in quotas:
            return quotas[entity_of(parts)], shared_user, shared_client
    return None


@given(st.dictionaries(Entities, st.floats(1, 100)), st.sampled_from("abc"), st.sampled_from("abc"))
def test_the_most_particular_quota_counts(quotas: dict[Entity, float], user: str, client: str) -> None:
    limits = Limits({entity: {"k": bound, "other": 1.0} for entity, bound in quotas.items()}, "k")
    found = limits.of(user, client)
    assert (None if found is None else tuple(found)) == by_kafkas_order(quotas, user, client)
    assert bool(limits) == bool(quotas)


def client_quotas(**quotas: float) -> ClientQuotas:
    made = ClientQuotas(ELEVEN, ELEVEN)
    made.set({entity_of([("client-id", "c")]): quotas})
    return made


def test_each_kind_of_quota_is_looked_up_for_itself() -> None:
    """A client's quota of one kind does not hide its user's of another."""
    quotas = ClientQuotas(ELEVEN, ELEVEN)
    quotas.set({
        entity_of([("user", "u"), ("client-id", "c")]): {REQUEST_PERCENTAGE: 5.0},
        entity_of([("user", "u")]): {PRODUCER_BYTE_RATE: 10.0},
    })  # fmt: skip
    assert quotas.produce.record("u", "c", 1000, 0) > 0
    assert quotas.fetch.record("u", "c", 1000, 0) == 0
    assert not quotas.fetch.applies("u", "c")


def test_nothing_is_active_without_a_quota() -> None:
    quotas = ClientQuotas(ELEVEN, ELEVEN)
    assert not quotas.active
    quotas.set({entity_of([("ip", "10.0.0.1")]): {CONNECTION_CREATION_RATE: 1.0}})
    assert not quotas.active
    quotas.set({entity_of([("client-id", "c")]): {PRODUCER_BYTE_RATE: 1.0}})
    assert quotas.active
    quotas.set({})
    assert not quotas.active


def test_whom_quotas_concern() -> None:
    quotas = client_quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
    before = quotas.generation
    assert quotas.has_quota("u", "c")
    assert not quotas.has_quota("u", "other")
    quotas.set({entity_of([("user", "u")]): {REQUEST_PERCENTAGE: 1.0}})
    assert quotas.has_quota("u", "other")
    assert quotas.generation > before


def test_a_changed_quota_counts_for_what_was_recorded_before() -> None:
    quotas = client_quotas(producer_byte_rate=1000.0)
    assert quotas.produce.record("u", "c", 5000, 0) == 0
    quotas.set({entity_of([("client-id", "c")]): {PRODUCER_BYTE_RATE: 100.0}})
    assert quotas.produce.record("u", "c", 0, 1) > 0


def test_the_wait_for_a_percentage_is_one_window_at_the_most() -> None:
    quotas = client_quotas(request_percentage=0.001)
    assert quotas.requests.record("u", "c", 100.0, 0) == 1000


def test_mutations_are_strict_or_not() -> None:
    quotas = client_quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
    assert quotas.mutations.take("u", "c", 20, 0, strict=True) == (True, 0)
    assert quotas.mutations.take("u", "c", 1, 0, strict=True) == (False, 9000)
    assert quotas.mutations.take("u", "c", 1, 0, strict=False) == (True, 10_000)
    assert quotas.mutations.take("u", "other", 1000, 0, strict=True) == (True, 0)
    assert quotas.mutations.take("u", "c", 1, 10_000, strict=True) == (True, 0)


def test_distinct_names_cost_a_bounded_amount() -> None:
    sensors: Sensors[Rate] = Sensors(Rate, sensors_max=100)
    for number in range(1000):
        sensors.of("u", f"client-{number}" + "x" * 30_000, number)
    assert len(sensors) == 100
    assert max(len(name) for key in sensors._sensors for name in key) < 200


def test_the_longest_unused_sensor_goes_first() -> None:
    sensors: Sensors[list[Any]] = Sensors(list, sensors_max=3)
    kept = sensors.of("u", "kept", 0)
    for number in range(10):
        sensors.of("u", f"{number}", number)
        assert sensors.of("u", "kept", number) is kept


def test_what_is_idle_for_an_hour_is_dropped() -> None:
    sensors: Sensors[list[Any]] = Sensors(list)
    first = sensors.of("u", "a", 0)
    sensors.of("u", "b", IDLE_MS - 1)
    sensors.of("u", "c", IDLE_MS)
    assert len(sensors) == 2
    assert sensors.of("u", "a", IDLE_MS) is not first


def test_connections_of_one_address() -> None:
    quotas = ConnectionQuotas(ELEVEN)
    assert quotas.close_delay_ms("10.0.0.1", 0) == 0
    quotas.set({
        entity_of([("ip", "10.0.0.1")]): {CONNECTION_CREATION_RATE: 1.0},
        entity_of([("ip", None)]): {CONNECTION_CREATION_RATE: 2.0},
        entity_of([("ip", "::ffff:10.0.0.3")]): {CONNECTION_CREATION_RATE: 5.0},
    })  # fmt: skip

    def accepted(address: str) -> int:
        return sum(quotas.close_delay_ms(address, 0) == 0 for _ in range(200))

    assert accepted("10.0.0.1") == 10
    assert accepted("10.0.0.2") == 20
    assert accepted("10.0.0.3") == 50
    assert accepted("[::1]") == 20
    assert 0 < quotas.close_delay_ms("10.0.0.1", 1) <= 1000


def test_connections_of_all() -> None:
    quotas = ConnectionQuotas(ELEVEN)
    waits = [quotas.broker_wait_ms(2, 0) for _ in range(30)]
    assert waits[:20] == [0] * 20
    assert all(0 < wait <= 1000 for wait in waits[20:])
    assert quotas.broker_wait_ms(0, 0) == 1000
