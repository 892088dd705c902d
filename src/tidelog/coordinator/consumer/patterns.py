"""Subscription by regular expression: checked when a member brings one, resolved to topics a bounded piece at a time.

The syntax is that of RE2/J, as in Kafka; RE2 matches, whose time is linear in the text: no expression of a client can
hold the loop for long.
What an expression may cost is bounded too: its length, the memory of its program, and the work of one turn.
"""

from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.consumer.pattern_syntax import InvalidPattern, as_re2
from tidelog.coordinator.consumer.settings import PATTERN_LENGTH_MAX, PATTERNS_MAX
from tidelog.coordinator.consumer.state import ConsumerGroup, Resolved
from tidelog.coordinator.consumer.topics import metadata_hash
from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.decision import Decision, Moment
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.coordinator.consumer.group_context import GroupContext

PROGRAM_BYTES_MAX = 1 << 19
"""For the program of one expression and what RE2 caches of its states."""
WORK_PER_TURN = 20_000
"""Instructions of the expressions, times names, that are matched in one turn of the loop."""
COMPILED_MAX = 64
TURN_MS = 1


@lru_cache(COMPILED_MAX)
def compiled(pattern: str) -> Any:
    """RE2's object for the expression. Raises ApiError (INVALID_REGULAR_EXPRESSION)."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(f"a regular expression has at most {PATTERN_LENGTH_MAX} characters")
    try:
        import re2  # costs start-up time, and few groups need it
    except ImportError:
        raise _invalid("subscription by regular expression needs the package google-re2") from None
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(as_re2(pattern), options)
    except (re2.error, UnicodeError, InvalidPattern) as error:
        given = error.args[0] if error.args else error
        reason = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
        raise _invalid(f"{pattern!r} is no regular expression that RE2/J takes: {reason}") from None


def check_pattern(group: ConsumerGroup, pattern: str) -> None:
    """Raise ApiError unless the group can take in this new expression."""
    if len(group.patterns) >= PATTERNS_MAX:
        raise _invalid(f"the members of a group may have {PATTERNS_MAX} different regular expressions")
    compiled(pattern)


def _invalid(message: str) -> ApiError:
    return ApiError(message, ErrorCode.INVALID_REGULAR_EXPRESSION)


class _Search:
    """Names that are to be matched, for one group."""

    __slots__ = ("adds", "deadline", "found", "names", "place")

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.found: dict[str, dict[str, None]] = {}
        """Expression -> names that match, for every expression that is searched for."""
        self.names: list[str] = []
        self.place = 0
        self.adds = False
        """Whether `names` are some topics only: what is known of the others stays."""

    def restart(self, patterns: Iterable[str], names: Iterable[str], *, adds: bool) -> None:
        self.found = {pattern: {} for pattern in patterns}
        self.names = list(names)
        self.place = 0
        self.adds = adds

    def topics(self, pattern: str, known: tuple[str, ...], existing: Container[str]) -> tuple[str, ...]:
        """What the expression stands for after the search."""
        found = self.found[pattern]
        if self.adds:
            searched = dict.fromkeys(self.names)
            found = {**dict.fromkeys(name for name in known if name not in searched), **found}
        return tuple(sorted(name for name in found if name in existing))


class Resolver:
    """Keeps the expressions of all groups of one coordinator partition resolved. Soft state but for its records."""

    def __init__(self, context: "Callable[[], GroupContext]") -> None:
        self._world = context
        self._searches: dict[str, _Search] = {}
        self._stale: dict[str, dict[str, None] | None] = {}
        """Group -> names of topics that have come or gone since its last search began; None for all there are."""

    def wake(self, group_id: str, now_ms: int) -> None:
        """Resolve what is not resolved, soon."""
        search = self._searches.get(group_id)
        if search is None:
            search = self._searches[group_id] = _Search(Deadline(self._turn, group_id))
        if search.deadline.at_ms is None:
            self._world().deadlines.set(search.deadline, now_ms)

    def topics_changed(self, group: ConsumerGroup, changed: dict[str, None], now_ms: int) -> None:
        """Match what has come, and forget what has gone."""
        if group.patterns:
            stale = self._stale.setdefault(group.group_id, {})
            if stale is not None:
                stale.update(changed)
            self.wake(group.group_id, now_ms)

    def refresh(self, group_id: str, now_ms: int) -> None:
        """Search anew, whatever is known: before a load, topics may have changed unseen."""
        self._stale[group_id] = None
        self.wake(group_id, now_ms)

    def _turn(self, group_id: str, out: Decision, now: Moment) -> None:
        context = self._world()
        search = self._searches[group_id]
        group = context.group(group_id)
        if group is None or not (search.found or self._begin(group, search)):
            del self._searches[group_id]
            self._stale.pop(group_id, None)
            return
        self._match(search)
        if search.place >= len(search.names):
            self._write(group, search, out, now)
            search.restart((), (), adds=False)
        context.deadlines.set(search.deadline, now.monotonic_ms + TURN_MS)

    def _begin(self, group: ConsumerGroup, search: _Search) -> bool:
        """Returns whether there is anything to do."""
        topics = self._world().image_now().topics
        new = [pattern for pattern in group.patterns if pattern not in group.resolved]
        if self._stale.get(group.group_id, {}) is None:
            del self._stale[group.group_id]
            search.restart(group.patterns, topics, adds=False)
        elif new:
            search.restart(new, topics, adds=False)
        elif (names := self._stale.pop(group.group_id, None)) is not None:
            search.restart(group.patterns, names, adds=True)
        return bool(search.found)

    def _match(self, search: _Search) -> None:
        expressions = []
        work = 1
        for pattern, found in search.found.items():
            try:
                expression = compiled(pattern)
            except ApiError:
                continue  # written by a broker that knew more; it stands for nothing here
            work += int(expression.programsize)
            expressions.append((expression.fullmatch, found))
        end = search.place + max(WORK_PER_TURN // work, 1)
        for name in search.names[search.place : end]:
            for fullmatch, found in expressions:
                if fullmatch(name) is not None:
                    found[name] = None
        search.place = end

    def _write(self, group: ConsumerGroup, search: _Search, out: Decision, now: Moment) -> None:
        context = self._world()
        image = context.image_now()
        bump = False
        names = dict.fromkeys(group.topics)
        for pattern in group.patterns:
            resolved = group.resolved.get(pattern)
            topics = () if resolved is None else resolved.topics
            if pattern in search.found:
                found = search.topics(pattern, topics, image.topics)
                if resolved is None or found != topics:
                    bump |= found != topics
                    out.records.append(group.expression_record(pattern, Resolved(found, image.position, now.wall_ms)))
                topics = found
            names.update(dict.fromkeys(topics))
        fresh_hash = metadata_hash(image, names)
        if bump or fresh_hash != group.metadata_hash:
            out.records.append(group.epoch_record(group.epoch + 1, fresh_hash))
            context.checked[group.group_id] = None
