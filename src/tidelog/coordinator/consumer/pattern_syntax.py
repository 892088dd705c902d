r"""Translate a client's regular expression from RE2/J to RE2.

Kafka compiles these expressions with RE2/J 1.8, which differs from RE2 in a few places. The translation removes the
differences:

- Expressions that RE2 accepts but RE2/J refuses are refused: `\C`, a group name that is used twice or is not ASCII, a
  count of more than eight digits, a repetition after a literal `{`, and Unicode scripts that are missing in RE2/J.
- RE2 limits the product of nested counts, such as 2 * 3 in `(a{2}){3}`; RE2/J does not. Therefore counts are reduced,
  and a repetition with a count that is still too large is split into several. The expression still matches the same
  topic names, because a name has at most 249 characters.
- A backslash before a character that is not ASCII is dropped.
- The Unicode script `Unknown`, which only RE2/J has, is replaced.
"""

import re
from typing import NamedTuple

NAME_LENGTH_MAX = 249
"""Maximum length of a topic's name. Counts are reduced on the assumption that no matched text is longer."""
COUNT_MAX = 1000
"""RE2's upper bound on one count and on the product of nested counts."""
TEXT_LENGTH_MAX = 1 << 16
"""Maximum length of a translated expression. A translation may be longer than the original expression, because one
repetition may become several."""
MATCHES_NOTHING = r"[^\x00-\x{10FFFF}]"
"""An expression that matches no text. If all matches of an atom's repetition would be too long for a topic's name, this
expression replaces the repetition operator after the atom. Together, the atom and this expression match nothing."""
# The parts of an expression that the translation examines.
_COUNT = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")  # {n}, {n,} or {n,m}
_COUNT_DIGITS_MAX = 8
_GROUP = re.compile(r"\(\?P?<([^>]*)>")  # the beginning of a named group: (?<name> or (?P<name>
_FLAGS = re.compile(r"\(\?[imsU-]*([:)])")  # (?flags) or the beginning of a group (?flags:
_GROUP_NAME = re.compile(r"[A-Za-z0-9_]+")
_ESCAPE = re.compile(r"\\(?:x\{[^}]*\}|x..|[0-7]{1,3}|[pP]\{([^}]*)\}|[pP].|.)", re.DOTALL)
_CLASS_NAME = re.compile(r"\[:\^?\w+:\]")  # [:name:] in a character class
_ZERO_WIDTH = ("\\A", "\\b", "\\B", "\\z")
_NEWER_SCRIPTS = frozenset(
    re.findall(
        r"\w+",
        "Adlam Ahom Anatolian_Hieroglyphs Bassa_Vah Bhaiksuki Caucasian_Albanian Chakma Chorasmian "
        "Cypro_Minoan Dives_Akuru Dogra Duployan Elbasan Elymaic Grantha Gunjala_Gondi Hanifi_Rohingya Hatran "
        "Kawi Khitan_Small_Script Khojki Khudawadi Linear_A Mahajani Makasar Manichaean Marchen Masaram_Gondi "
        "Medefaidrin Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mro Multani Nabataean "
        "Nag_Mundari Nandinagari Newa Nushu Nyiakeng_Puachue_Hmong Old_Hungarian Old_North_Arabian Old_Permic "
        "Old_Sogdian Old_Uyghur Osage Pahawh_Hmong Palmyrene Pau_Cin_Hau Psalter_Pahlavi Sharada Siddham "
        "SignWriting Sogdian Sora_Sompeng Soyombo Takri Tangsa Tangut Tirhuta Toto Vithkuqi Wancho "
        "Warang_Citi Yezidi Zanabazar_Square ",
    )
)
"""Unicode scripts that RE2 supports and RE2/J does not."""


class InvalidPattern(ValueError):
    """An expression that RE2/J refuses, or whose translation would be too long. The message says why."""


class _NotTranslatable(Exception):
    """The expression has an error that RE2 also finds. The expression is passed to RE2 unchanged, so that the client
    gets RE2's message.
    """


class _Atom(NamedTuple):
    """The part of an expression that a repetition operator applies to."""

    start: int
    """Index of the atom's first piece in the list of pieces."""
    length_min: int
    """Length of the shortest text that the atom matches. The length is limited to NAME_LENGTH_MAX + 1."""
    nullable: bool
    """Whether the atom matches the empty text at every position, unlike `^` or `\\b`."""
    nested_count: int
    """The largest product of nested counts in the atom."""


class _Group:
    """An open group, or the whole expression. It accumulates the properties of its alternatives. `length_min` and
    `nullable` describe only the alternative that is being translated.
    """

    __slots__ = ("has_nullable_alternative", "length_min", "nested_count", "nullable", "shortest_alternative", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.length_min = 0
        self.nullable = True
        self.shortest_alternative: int | None = None
        self.has_nullable_alternative = False
        self.nested_count = 1

    def add(self, atom: _Atom) -> None:
        self.length_min = min(self.length_min + atom.length_min, NAME_LENGTH_MAX + 1)
        self.nullable = self.nullable and atom.nullable
        self.nested_count = max(self.nested_count, atom.nested_count)

    def end_alternative(self) -> None:
        shortest = self.shortest_alternative
        self.shortest_alternative = self.length_min if shortest is None else min(shortest, self.length_min)
        self.has_nullable_alternative = self.has_nullable_alternative or self.nullable
        self.length_min = 0
        self.nullable = True

    def close(self) -> _Atom:
        self.end_alternative()
        assert self.shortest_alternative is not None
        return _Atom(self.start, self.shortest_alternative, self.has_nullable_alternative, self.nested_count)


def as_re2(pattern: str) -> str:
    """Return the expression for RE2. Raises InvalidPattern if RE2/J refuses the expression and RE2 would accept it, or
    if the translation would be too long.
    """
    try:
        return _Translation(pattern).text()
    except _NotTranslatable:
        return pattern


class _Translation:
    """One translation. It reads the expression from left to right, and collects the pieces of the translated
    expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._pieces: list[str] = []
        self._length = 0
        self._groups = [_Group(0)]
        self._last_atom: _Atom | None = None
        """The last atom, if it has not been added to the open group yet. If a repetition operator comes next, it
        applies to this atom."""
        self._names: set[str] = set()

    def text(self) -> str:
        while self._position < len(self._pattern):
            self._step()
        if len(self._groups) != 1:
            raise _NotTranslatable
        return "".join(self._pieces)

    def _step(self) -> None:
        character = self._pattern[self._position]
        if character == "\\":
            self._escape()
        elif character == "[":
            self._class()
        elif character == "(":
            self._open_group()
        elif character == ")":
            self._close_group()
        elif character == "|":
            self._add_last_atom()
            self._groups[-1].end_alternative()
            self._copy(1)
        elif character in "*+?{":
            self._repetition(character)
        else:
            self._atom(character, 1, length_min=0 if character in "^$" else 1)

    def _copy(self, size: int) -> str:
        """Copy the next `size` characters to the output unchanged, and return them."""
        copied = self._pattern[self._position : self._position + size]
        self._position += size
        self._write(copied)
        return copied

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        if self._length > TEXT_LENGTH_MAX:
            raise InvalidPattern("the expression is too long, or its repetitions are too many")

    def _add_last_atom(self) -> None:
        """Add the last atom to the open group, because no repetition operator follows it."""
        if self._last_atom is not None:
            self._groups[-1].add(self._last_atom)
            self._last_atom = None

    def _atom(self, text: str, size: int, *, length_min: int) -> None:
        """Consume `size` characters as one atom, which is written as `text`."""
        self._add_last_atom()
        self._last_atom = _Atom(len(self._pieces), length_min, nullable=False, nested_count=1)
        self._position += size
        self._write(text)

    def _escape(self) -> None:
        if self._pattern.startswith("\\Q", self._position):
            self._quoted()
            return
        match = _ESCAPE.match(self._pattern, self._position)
        if match is None:
            raise _NotTranslatable
        text = self._checked_escape(match)
        if text == "\\E":
            raise _NotTranslatable
        self._atom(text, len(match[0]), length_min=0 if text in _ZERO_WIDTH else 1)

    def _checked_escape(self, match: re.Match[str]) -> str:
        if match[0] == "\\C":
            raise InvalidPattern("invalid escape sequence: \\C")
        if match[1] is not None and match[1].removeprefix("^") in _NEWER_SCRIPTS:
            raise InvalidPattern(f"invalid character class range: {match[0]}")
        if match[1] is not None and match[1].removeprefix("^") == "Unknown":
            # RE2 does not know the script Unknown. The category Co can replace it, because neither contains a character
            # that may occur in a topic's name.
            return match[0].replace("Unknown", "Co")
        return match[0][1:] if match[0][1] > "\x7f" else match[0]

    def _quoted(self) -> None:
        r"""Translate \Q...\E. All characters between them are literal. \E may be missing at the end."""
        begin = self._position + len("\\Q")
        end = self._pattern.find("\\E", begin)
        quoted = self._pattern[begin:] if end < 0 else self._pattern[begin:end]
        for character in quoted:
            self._atom(re.escape(character) if character.isascii() else character, 0, length_min=1)
        self._position = len(self._pattern) if end < 0 else end + len("\\E")

    def _class(self) -> None:
        start = position = self._position
        new_pieces = ["["]
        position += 1
        if self._pattern.startswith("^", position):
            new_pieces.append("^")
            position += 1
        first = True
        while first or not self._pattern.startswith("]", position):
            first = False
            part, size = self._class_part(position)
            new_pieces.append(part)
            position += size
        self._atom("".join(new_pieces) + "]", position + 1 - start, length_min=1)

    def _class_part(self, position: int) -> tuple[str, int]:
        """Return the output for the next part of a character class, and the length of that part in the input."""
        match = _CLASS_NAME.match(self._pattern, position)
        if match is None:
            match = _ESCAPE.match(self._pattern, position)
            if match is not None:
                return self._checked_escape(match), len(match[0])
        if match is not None:
            return match[0], len(match[0])
        if position >= len(self._pattern):
            raise _NotTranslatable
        return self._pattern[position], 1

    def _open_group(self) -> None:
        if self._pattern.startswith("(?", self._position):
            self._open_special_group()
        else:
            self._add_last_atom()
            self._groups.append(_Group(len(self._pieces)))
            self._copy(1)

    def _open_special_group(self) -> None:
        named = _GROUP.match(self._pattern, self._position)
        if named is not None:
            name = named[1]
            if not _GROUP_NAME.fullmatch(name):
                raise InvalidPattern(f"invalid named capture: {named[0]}")
            if name in self._names:
                raise InvalidPattern(f"duplicate capture group name: {name}")
            self._names.add(name)
        flags = _FLAGS.match(self._pattern, self._position)
        match = named or flags
        if match is None:
            raise _NotTranslatable
        # Flags without a group are no atom: in `a(?i)*`, the operator `*` applies to `a`. So the last atom is kept.
        if flags is None or flags[1] == ":":
            self._add_last_atom()
            self._groups.append(_Group(len(self._pieces)))
        self._copy(len(match[0]))

    def _close_group(self) -> None:
        if len(self._groups) == 1:
            raise _NotTranslatable
        self._add_last_atom()
        self._copy(1)
        self._last_atom = self._groups.pop().close()

    def _repetition(self, character: str) -> None:
        """Translate a repetition operator, which applies to the last atom."""
        minimum, maximum, size = 0, None, 1
        if character == "{":
            match = _COUNT.match(self._pattern, self._position)
            if match is None:
                self._literal_brace()
                return
            minimum, maximum = self._counts(match)
            size = len(match[0])
        elif character == "+":
            minimum = 1
        elif character == "?":
            maximum = 1
        if self._last_atom is None:
            raise _NotTranslatable  # no atom precedes the repetition operator
        atom, self._last_atom = self._last_atom, None
        self._position += size
        lazy_suffix = ""
        if self._pattern.startswith("?", self._position):
            lazy_suffix = "?"
            self._position += 1
        if self._pattern.startswith(("*", "+", "?"), self._position) or _COUNT.match(self._pattern, self._position):
            raise _NotTranslatable  # RE2 refuses two repetition operators in a row
        self._repeat(atom, minimum, maximum, lazy_suffix)

    def _literal_brace(self) -> None:
        """Translate a `{` that is literal, because it does not begin a count."""
        if self._pattern[self._position + 1 : self._position + 2] in ("*", "+", "?") or _COUNT.match(
            self._pattern, self._position + 1
        ):
            raise InvalidPattern("invalid nested repetition operator: {" + self._pattern[self._position + 1])
        self._atom("{", 1, length_min=1)

    def _counts(self, match: re.Match[str]) -> tuple[int, int | None]:
        if max(len(match[1]), len(match[3] or "")) > _COUNT_DIGITS_MAX:
            raise InvalidPattern(f"invalid repeat count: {match[0]}")
        minimum = int(match[1])
        maximum: int | None = None  # {n,}
        if match[2] is None:
            maximum = minimum  # {n}
        elif match[3]:
            maximum = int(match[3])  # {n,m}
        if max(minimum, maximum or 0) > COUNT_MAX or (maximum is not None and maximum < minimum):
            raise _NotTranslatable
        return minimum, maximum

    def _repeat(self, atom: _Atom, minimum: int, maximum: int | None, lazy_suffix: str) -> None:
        """Write the repetition of the last atom, `atom`. The counts in the output may differ from the input, but the
        output matches the same topic names.
        """
        length_min = min(atom.length_min * minimum, NAME_LENGTH_MAX + 1)
        nullable = minimum == 0 or atom.nullable
        if length_min > NAME_LENGTH_MAX:
            self._write(MATCHES_NOTHING)  # the atom remains before it, so that RE2 checks the atom's syntax
            self._last_atom = atom._replace(length_min=length_min, nullable=False)
            return
        # A name has room for at most `repetitions_max` repetitions with a non-empty match. Repetitions with an empty
        # match change nothing. So a `maximum` of `repetitions_max` or more has no effect. An atom that matches the
        # empty text needs no minimum, because repetitions with an empty match can always reach the minimum.
        repetitions_max = NAME_LENGTH_MAX // atom.length_min if atom.length_min else NAME_LENGTH_MAX
        if atom.nullable:
            minimum = 0
        minimum = min(minimum, NAME_LENGTH_MAX + 1)
        if maximum is not None and maximum >= repetitions_max:
            maximum = None
        repeated = self._pieces[atom.start :]
        new_pieces: list[str] = []
        count = 0
        for part_minimum, part_maximum in _split_counts(minimum, maximum, COUNT_MAX // atom.nested_count):
            new_pieces += [*repeated, _repetition_text(part_minimum, part_maximum) + lazy_suffix]
            count = max(count, atom.nested_count * max(part_maximum or part_minimum, 1))
        if len(new_pieces) > len(repeated) + 1:
            new_pieces = ["(?:", *new_pieces, ")"]
        self._replace(atom, new_pieces)
        self._last_atom = _Atom(atom.start, length_min, nullable, count)

    def _replace(self, atom: _Atom, pieces: list[str]) -> None:
        self._length -= sum(map(len, self._pieces[atom.start :]))
        del self._pieces[atom.start :]
        for piece in pieces:
            self._write(piece)


def _split_counts(minimum: int, maximum: int | None, count_max: int) -> list[tuple[int, int | None]]:
    """Split one repetition into several, so that no count is larger than `count_max`. Return the minimum and the
    maximum of each. The sum of the minimums is `minimum`, and the sum of the maximums is `maximum`. If `maximum` is
    None, only the last repetition has no maximum.
    """
    parts: list[tuple[int, int | None]] = []
    while max(minimum, maximum or 0) > count_max:
        part_minimum = min(minimum, count_max)
        part_maximum = None if maximum is None else min(maximum, count_max)
        if maximum is not None and part_maximum is not None:
            maximum -= part_maximum
            parts.append((part_minimum, part_maximum))
        else:
            parts.append((part_minimum, part_minimum))
        minimum -= part_minimum
    return [*parts, (minimum, maximum)]


def _repetition_text(minimum: int, maximum: int | None) -> str:
    if maximum is None:
        return {0: "*", 1: "+"}.get(minimum, f"{{{minimum},}}")
    if (minimum, maximum) == (0, 1):
        return "?"
    return f"{{{minimum}}}" if minimum == maximum else f"{{{minimum},{maximum}}}"
