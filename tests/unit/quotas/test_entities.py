"""Which entity can have which quota, and which entities a filter matches, compared with written-out rules."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.addresses import normal_ip
from tidelog.quotas.entities import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    Component,
    Entity,
    Filter,
    check_quota,
    entity_of,
)
from tidelog.wire.errors import ApiError, ErrorCode

NAMES = ["a", "b", None]
ENTITIES: list[Entity] = [
    *(entity_of([("user", u)]) for u in NAMES),
    *(entity_of([("client-id", c)]) for c in NAMES),
    *(entity_of([("user", u), ("client-id", c)]) for u, c in product(NAMES, NAMES)),
    *(entity_of([("ip", i)]) for i in ("10.0.0.1", None)),
]
KINDS = ["user", "client-id", "ip"]


@given(
    st.dictionaries(st.sampled_from(KINDS[:2]), st.sampled_from(["a", "b", "c", MATCH_DEFAULT, MATCH_ANY])),
    st.booleans(),
)
def test_a_filter_matches_what_it_says(wanted: dict[str, str | int], strict: bool) -> None:
    components = [
        Component(kind, MATCH_EXACT, match) if isinstance(match, str) else Component(kind, match, None)
        for kind, match in wanted.items()
    ]
    found = [e for e in ENTITIES if Filter(components, strict=strict).matches(e)]
    assert found == [e for e in ENTITIES if is_wanted(dict(e), wanted, strict)]


def is_wanted(parts: dict[str, str | None], wanted: dict[str, str | int], strict: bool) -> bool:
    if strict and set(parts) != set(wanted):
        return False
    for kind, match in wanted.items():
        if kind not in parts:
            return False
        if match == MATCH_DEFAULT and parts[kind] is not None:
            return False
        if isinstance(match, str) and parts[kind] != match:
            return False
    return True


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("producer_byte_rate", 1.0, ""),
        ("producer_byte_rate", 1000.0000001, ""),
        ("producer_byte_rate", 999.9999999, "whole"),
        ("producer_byte_rate", 0.0, "greater"),
        ("producer_byte_rate", float("nan"), "greater"),
        ("producer_byte_rate", float("inf"), "whole"),
        ("request_percentage", 0.5, ""),
        ("request_percentage", float("inf"), ""),
        ("controller_mutation_rate", -1.0, "greater"),
        ("connection_creation_rate", 1.0, "has no quota"),
        ("no_such_rate", 1.0, "has no quota"),
    ],
)
def test_values_of_clients(key: str, value: float, refusal: str) -> None:
    check(entity_of([("client-id", "c")]), key, value, refusal)


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("connection_creation_rate", 2147483647.0, ""),
        ("connection_creation_rate", 2147483648.0, "whole"),
        ("connection_creation_rate", 1.5, "whole"),
        ("producer_byte_rate", 1.0, "has no quota"),
    ],
)
def test_values_of_addresses(key: str, value: float, refusal: str) -> None:
    check(entity_of([("ip", "::1")]), key, value, refusal)


def check(entity: Entity, key: str, value: float, refusal: str) -> None:
    if not refusal:
        check_quota(entity, key, value)
        return
    with pytest.raises(ApiError, match=refusal) as raised:
        check_quota(entity, key, value)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_a_name_longer_than_a_client_id_can_be_is_refused() -> None:
    with pytest.raises(ApiError, match="32767"):
        entity_of([("client-id", "x" * 32768)])


def test_addresses_have_one_form() -> None:
    assert normal_ip("::ffff:10.0.0.1") == normal_ip("10.0.0.1") == "10.0.0.1"
    assert normal_ip("0:0::1") == "::1"
    assert normal_ip("localhost") is None
