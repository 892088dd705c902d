"""Each checker finds the violation that it checks for."""

from collections.abc import Callable

import pytest

from simulation_harness.checkers import (
    AcknowledgedRecord,
    Checker,
    CommitsNotAhead,
    CommitsStay,
    InOrderOnce,
    MonotonicHighWatermark,
    NoAckedLoss,
    Promises,
    SurvivingData,
    TopicsStay,
    check_all,
)

KEY = ("orders", 0)
VALUES = [b"0:0:", b"1:0:", b"0:1:"]
CUT_AT = 10.0


def promises() -> Promises:
    promised = Promises()
    promised.topics = {"orders": 1}
    promised.records = {KEY: [AcknowledgedRecord(1.0 + n, n, value) for n, value in enumerate(VALUES)]}
    promised.watermarks = {KEY: [(1.5, 1), (3.5, 3)]}
    promised.commits = {KEY: (4.0, 2)}
    promised.tried = {KEY: 3}
    return promised


def found() -> SurvivingData:
    return SurvivingData({"orders": [0]}, {KEY: list(VALUES)}, {KEY: 3}, {KEY: 2})


def checkers() -> list[Checker]:
    return [
        TopicsStay(),
        NoAckedLoss(CUT_AT),
        InOrderOnce(),
        CommitsStay(CUT_AT),
        CommitsNotAhead({KEY: 3}),
        MonotonicHighWatermark(CUT_AT),
    ]


def test_what_is_as_promised_passes() -> None:
    check_all(checkers(), promises(), found())


def test_what_came_after_the_safe_moment_may_be_missing() -> None:
    late: list[Checker] = [NoAckedLoss(2.5), CommitsStay(4.0), MonotonicHighWatermark(3.5)]
    check_all(late, promises(), SurvivingData({"orders": [0]}, {KEY: VALUES[:2]}, {KEY: 1}, {KEY: -1}))


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("TopicsStay", lambda f: f.topics.clear()),
        ("TopicsStay", lambda f: f.topics.update(orders=[56])),
        ("NoAckedLoss", lambda f: f.values[KEY].pop()),
        ("NoAckedLoss", lambda f: f.values.update({KEY: [b"0:0:", b"0:1:", b"1:0:"]})),
        ("InOrderOnce", lambda f: f.values[KEY].append(b"0:1:")),
        ("InOrderOnce", lambda f: f.values[KEY].append(b"0:3:")),
        ("CommitsStay", lambda f: f.committed.update({KEY: 1})),
        ("CommitsNotAhead", lambda f: f.committed.update({KEY: 4})),
        ("MonotonicHighWatermark", lambda f: f.high_watermarks.update({KEY: 2})),
    ],
)
def test_a_wrong_is_named(name: str, spoil: Callable[[SurvivingData], object]) -> None:
    wrong = found()
    spoil(wrong)
    with pytest.raises(AssertionError, match=name):
        check_all(checkers(), promises(), wrong)


def test_a_high_watermark_that_went_back_before_the_cut() -> None:
    promised = promises()
    promised.watermarks[KEY].append((5.0, 2))
    with pytest.raises(AssertionError, match="MonotonicHighWatermark"):
        check_all(checkers(), promised, found())
