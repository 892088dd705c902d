"""Subscriptions by regular expression: check a member's expression, and search for the matching topics in short steps.

The syntax is RE2/J's, as in Kafka. RE2 matches in time linear in the length of the text, so a client's expression
cannot block the event loop for long. The length of an expression, the memory of its compiled program, and the work of
one turn are also limited.
"""

from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.consumer.pattern_syntax import InvalidPattern, as_re2
from tidelog.coordinator.consumer.settings import PATTERN_LENGTH_MAX, PATTERNS_MAX
from tidelog.coordinator.consumer.state import ConsumerGroup, MatchedTopics
from tidelog.coordinator.consumer.topics import metadata_hash
from tidelog.coordinator.deadlines import Deadline
from tidelog.coordinator.decision import Decision, Moment
from tidelog.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidelog.coordinator.consumer.group_context import GroupContext

PROGRAM_BYTES_MAX = 1 << 19
"""Upper bound on the memory of one expression, in bytes: its compiled program and the states that RE2 caches."""
WORK_PER_TURN = 20_000
"""Upper bound on the work in one turn of the event loop: the number of instructions of all programs, times the number
of names that are matched. A turn matches at least one name, even if this exceeds the bound."""
COMPILED_PATTERNS_MAX = 64
"""Upper bound on the cached compiled expressions."""
TURN_INTERVAL_MS = 1
"""Pause between two turns of a search."""


@lru_cache(COMPILED_PATTERNS_MAX)
def compile_pattern(pattern: str) -> Any:
    """Return RE2's compiled expression. Raises ApiError (INVALID_REGULAR_EXPRESSION)."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise _invalid(f"the regular expression has more than {PATTERN_LENGTH_MAX} characters")
    try:
        import re2  # imported here, because the import takes time and few groups need it
    except ImportError:
        raise _invalid("a subscription by regular expression needs the package google-re2 on the broker") from None
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(as_re2(pattern), options)
    except (re2.error, UnicodeError, InvalidPattern) as error:
        raw_reason = error.args[0] if error.args else error
        reason = raw_reason.decode(errors="replace") if isinstance(raw_reason, bytes) else str(raw_reason)
        raise _invalid(f"{pattern!r} is not a valid RE2/J regular expression: {reason}") from None


def check_pattern(group: ConsumerGroup, pattern: str) -> None:
    """Raise ApiError unless the group can add this new expression."""
    if len(group.patterns) >= PATTERNS_MAX:
        raise _invalid(
            f"the group's members already use {PATTERNS_MAX} different regular expressions, which is the limit"
        )
    compile_pattern(pattern)


def _invalid(message: str) -> ApiError:
    return ApiError(message, ErrorCode.INVALID_REGULAR_EXPRESSION)


class _PatternSearch:
    """One search of a group: the topic names to match with the group's expressions, and the results so far."""

    __slots__ = ("deadline", "is_partial", "matches", "names", "position")

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.matches: dict[str, dict[str, None]] = {}
        """Matching names so far, by expression, for all expressions of this search."""
        self.names: list[str] = []
        self.position = 0
        self.is_partial = False
        """Whether `names` contains only some of the topics. For all other topics, the previous matches remain valid."""

    def restart(self, patterns: Iterable[str], names: Iterable[str], *, is_partial: bool) -> None:
        self.matches = {pattern: {} for pattern in patterns}
        self.names = list(names)
        self.position = 0
        self.is_partial = is_partial

    def topics(self, pattern: str, previous: tuple[str, ...], existing: Container[str]) -> tuple[str, ...]:
        """Return the topics that the expression matches after the search, sorted."""
        matching_names = self.matches[pattern]
        if self.is_partial:
            searched = dict.fromkeys(self.names)
            matching_names = {**dict.fromkeys(name for name in previous if name not in searched), **matching_names}
        return tuple(sorted(name for name in matching_names if name in existing))


class Resolver:
    """Updates the matching topics of all groups' expressions, for one coordinator partition.

    Its state is soft; the matches are stored in the groups' records.
    """

    def __init__(self, context: "Callable[[], GroupContext]") -> None:
        self._context = context
        self._searches: dict[str, _PatternSearch] = {}
        self._changed_topics: dict[str, dict[str, None] | None] = {}
        """Names of topics that have changed since the last search of the group began, by group id. None means all
        topics."""

    def wake(self, group_id: str, now_ms: int) -> None:
        """Schedule a turn at `now_ms`, if none is scheduled for the group. If the group then needs a search, for
        example because one of its expressions is new, this turn begins the search.
        """
        search = self._searches.get(group_id)
        if search is None:
            search = self._searches[group_id] = _PatternSearch(Deadline(self._run_turn, group_id))
        if search.deadline.at_ms is None:
            self._context().deadlines.set(search.deadline, now_ms)

    def topics_changed(self, group: ConsumerGroup, changed: dict[str, None], now_ms: int) -> None:
        """Schedule a search that matches the changed topics with the group's expressions."""
        if group.patterns:
            changed_topics = self._changed_topics.setdefault(group.group_id, {})
            if changed_topics is not None:
                changed_topics.update(changed)
            self.wake(group.group_id, now_ms)

    def refresh(self, group_id: str, now_ms: int) -> None:
        """Schedule a search through all topics. Such a search is needed after the coordinator has loaded the group,
        because topics may have changed before.
        """
        self._changed_topics[group_id] = None
        self.wake(group_id, now_ms)

    def _run_turn(self, group_id: str, out: Decision, now: Moment) -> None:
        context = self._context()
        search = self._searches[group_id]
        group = context.group(group_id)
        if group is None or not (search.matches or self._begin(group, search)):
            del self._searches[group_id]
            self._changed_topics.pop(group_id, None)
            return
        self._match(search)
        if search.position >= len(search.names):
            self._write(group, search, out, now)
            search.restart((), (), is_partial=False)
        context.deadlines.set(search.deadline, now.monotonic_ms + TURN_INTERVAL_MS)

    def _begin(self, group: ConsumerGroup, search: _PatternSearch) -> bool:
        """Begin the next search of the group. Returns False if the group needs no search."""
        topics = self._context().image_now().topics
        new = [pattern for pattern in group.patterns if pattern not in group.resolved]
        if self._changed_topics.get(group.group_id, {}) is None:
            del self._changed_topics[group.group_id]
            search.restart(group.patterns, topics, is_partial=False)
        elif new:
            search.restart(new, topics, is_partial=False)
        elif (names := self._changed_topics.pop(group.group_id, None)) is not None:
            search.restart(group.patterns, names, is_partial=True)
        return bool(search.matches)

    def _match(self, search: _PatternSearch) -> None:
        compiled_patterns = []
        work = 1
        for pattern, matching_names in search.matches.items():
            try:
                compiled_pattern = compile_pattern(pattern)
            except ApiError:
                continue  # another version of the broker accepted the expression; this version finds no topics for it
            work += int(compiled_pattern.programsize)
            compiled_patterns.append((compiled_pattern.fullmatch, matching_names))
        end = search.position + max(WORK_PER_TURN // work, 1)
        for name in search.names[search.position : end]:
            for fullmatch, matching_names in compiled_patterns:
                if fullmatch(name) is not None:
                    matching_names[name] = None
        search.position = end

    def _write(self, group: ConsumerGroup, search: _PatternSearch, out: Decision, now: Moment) -> None:
        """Write the results of a finished search. If they or the metadata hash changed, begin a new group epoch."""
        context = self._context()
        image = context.image_now()
        matches_changed = False
        names = dict.fromkeys(group.topics)
        for pattern in group.patterns:
            previous = group.resolved.get(pattern)
            topics = () if previous is None else previous.topics
            if pattern in search.matches:
                matching_names = search.topics(pattern, topics, image.topics)
                if previous is None or matching_names != topics:
                    matches_changed |= matching_names != topics
                    out.records.append(
                        group.expression_record(pattern, MatchedTopics(matching_names, image.position, now.wall_ms))
                    )
                topics = matching_names
            names.update(dict.fromkeys(topics))
        fresh_hash = metadata_hash(image, names)
        if matches_changed or fresh_hash != group.metadata_hash:
            out.records.append(group.epoch_record(group.epoch + 1, fresh_hash))
            context.groups_with_current_epoch[group.group_id] = None
