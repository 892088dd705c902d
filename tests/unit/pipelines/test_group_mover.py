"""The thread that moves the groups of a mirror: its last move, and its end."""

import threading

import pytest

from tidelog.pipelines.declarations import TemporaryError
from tidelog.pipelines.mirror_groups import GroupMover

WAIT_S = 20
NEVER_S = 3600


class Moves:
    """Records in which thread each call was made."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.ended = threading.Event()
        self.error: Exception | None = None

    def move(self) -> None:
        self.calls.append(("move", threading.current_thread().name))
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        if self.error is not None:
            raise self.error

    def at_end(self) -> None:
        self.calls.append(("end", threading.current_thread().name))
        self.ended.set()


def started(moves: Moves, every_s: float = NEVER_S) -> GroupMover:
    mover = GroupMover(moves.move, every_s, moves.at_end)
    mover.start()
    return mover


@pytest.mark.parametrize("move", [True, False])
def test_the_thread_itself_moves_the_groups_a_last_time(move: bool) -> None:
    moves = Moves()
    started(moves).stop(move=move, timeout_s=WAIT_S)
    assert moves.calls == [("move", "mirror-groups")] * move + [("end", "mirror-groups")]


def test_the_error_of_the_last_move_is_raised() -> None:
    moves = Moves()
    moves.error = RuntimeError("not the coordinator")
    with pytest.raises(RuntimeError, match="not the coordinator"):
        started(moves).stop(move=True, timeout_s=WAIT_S)
    assert moves.ended.is_set()


def test_a_move_that_does_not_end_does_not_hold_up_the_end() -> None:
    moves = Moves()
    moves.may_end.clear()
    mover = started(moves, every_s=0)
    assert moves.begun.wait(WAIT_S)
    with pytest.raises(TemporaryError, match=r"has not ended within 0.01 s, .* may be missing in the target: run"):
        mover.stop(move=True, timeout_s=0.01)
    assert not moves.ended.is_set()
    moves.may_end.set()
    assert moves.ended.wait(WAIT_S)
    assert [what for what, _ in moves.calls] == ["move", "end"], "no other move begins after the time limit"
