"""A client's regular expression as RE2 takes it.

Kafka compiles these expressions with RE2/J 1.8, which differs from RE2 in a few places. Here they are made to agree:

- What RE2/J refuses and RE2 takes is refused: `\\C`, a group name that is used twice or is not ASCII, a count of more
  than eight digits, a repetition after a `{` that stands for itself, scripts that are newer than RE2/J's tables.
- RE2 limits the product of nested counts, RE2/J does not. A topic's name has at most 249 characters, so a larger
  count says nothing about it: counts are lowered until RE2 takes them, and the expression matches the same names.
- A backslash before a character that is not ASCII is dropped. The script `Unknown`, which only RE2/J has, is replaced.
"""

import re
from typing import NamedTuple

NAME_LENGTH_MAX = 249
"""Of a topic's name. Counts are lowered in the knowledge that no text that is matched is longer."""
COUNT_MAX = 1000
"""RE2's limit for one count and for the product of nested ones."""
TEXT_LENGTH_MAX = 1 << 16
"""Of an expression whose repetitions had to be written out."""
NEVER = r"[^\x00-\x{10FFFF}]"
_COUNT = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")
_COUNT_DIGITS_MAX = 8
_GROUP = re.compile(r"\(\?P?<([^>]*)>")
_FLAGS = re.compile(r"\(\?[imsU-]*([:)])")
_GROUP_NAME = re.compile(r"[A-Za-z0-9_]+")
_ESCAPE = re.compile(r"\\(?:x\{[^}]*\}|x..|[0-7]{1,3}|[pP]\{([^}]*)\}|[pP].|.)", re.DOTALL)
_CLASS_NAME = re.compile(r"\[:\^?\w+:\]")
_OF_NO_WIDTH = ("\\A", "\\b", "\\B", "\\z")
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
"""Scripts that RE2 knows and RE2/J does not."""


class InvalidPattern(ValueError):
    """An expression that RE2/J refuses. The message says why."""


class _NotUnderstood(Exception):
    """RE2 is to say what is wrong with the expression."""


class _Atom(NamedTuple):
    """What a repetition repeats."""

    start: int
    """Where its text begins, as a place in the list of pieces."""
    length_min: int
    """Of what it matches; beyond NAME_LENGTH_MAX, just more than that."""
    nullable: bool
    """Whether it matches the empty text wherever it stands."""
    nested_count: int
    """The largest product of nested counts in it."""


class _Group:
    """A group that is open, or the whole expression: what its alternatives match."""

    __slots__ = ("count", "length_min", "nullable", "shortest", "some_nullable", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.length_min = 0
        self.nullable = True
        self.shortest: int | None = None
        self.some_nullable = False
        self.count = 1

    def add(self, atom: _Atom) -> None:
        self.length_min = min(self.length_min + atom.length_min, NAME_LENGTH_MAX + 1)
        self.nullable = self.nullable and atom.nullable
        self.count = max(self.count, atom.nested_count)

    def alternative(self) -> None:
        self.shortest = self.length_min if self.shortest is None else min(self.shortest, self.length_min)
        self.some_nullable = self.some_nullable or self.nullable
        self.length_min = 0
        self.nullable = True

    def closed(self) -> _Atom:
        self.alternative()
        assert self.shortest is not None
        return _Atom(self.start, self.shortest, self.some_nullable, self.count)


def as_re2(pattern: str) -> str:
    """The expression for RE2. Raises InvalidPattern for what RE2/J refuses and RE2 would take."""
    try:
        return _Translation(pattern).text()
    except _NotUnderstood:
        return pattern


class _Translation:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._pieces: list[str] = []
        self._length = 0
        self._groups = [_Group(0)]
        self._last: _Atom | None = None
        """What a repetition that comes next would repeat. It is in no group yet."""
        self._names: set[str] = set()

    def text(self) -> str:
        while self._position < len(self._pattern):
            self._step()
        if len(self._groups) != 1:
            raise _NotUnderstood
        return "".join(self._pieces)

    def _step(self) -> None:
        character = self._pattern[self._position]
        if character == "\\":
            self._escape()
        elif character == "[":
            self._class()
        elif character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif character == "|":
            self._settle()
            self._groups[-1].alternative()
            self._take(1)
        elif character in "*+?{":
            self._repetition(character)
        else:
            self._atom(character, 1, length_min=0 if character in "^$" else 1)

    def _take(self, size: int) -> str:
        """The next `size` characters, which become a piece of the text as they stand."""
        taken = self._pattern[self._position : self._position + size]
        self._position += size
        self._write(taken)
        return taken

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        if self._length > TEXT_LENGTH_MAX:
            raise InvalidPattern("the repetitions in it are too many")

    def _settle(self) -> None:
        """No repetition follows the last atom: it is a part of the open group."""
        if self._last is not None:
            self._groups[-1].add(self._last)
            self._last = None

    def _atom(self, text: str, size: int, *, length_min: int) -> None:
        """`size` characters of the expression that are one atom, and are written as `text`."""
        self._settle()
        self._last = _Atom(len(self._pieces), length_min, nullable=False, nested_count=1)
        self._position += size
        self._write(text)

    def _escape(self) -> None:
        if self._pattern.startswith("\\Q", self._position):
            self._quoted()
            return
        match = _ESCAPE.match(self._pattern, self._position)
        if match is None:
            raise _NotUnderstood
        text = self._checked_escape(match)
        if text == "\\E":
            raise _NotUnderstood
        self._atom(text, len(match[0]), length_min=0 if text in _OF_NO_WIDTH else 1)

    def _checked_escape(self, match: re.Match[str]) -> str:
        if match[0] == "\\C":
            raise InvalidPattern("invalid escape sequence: \\C")
        if match[1] is not None and match[1].removeprefix("^") in _NEWER_SCRIPTS:
            raise InvalidPattern(f"invalid character class range: {match[0]}")
        if match[1] is not None and match[1].removeprefix("^") == "Unknown":
            return match[0].replace("Unknown", "Co")  # which RE2 knows; neither has a character of a topic's name
        return match[0][1:] if match[0][1] > "\x7f" else match[0]

    def _quoted(self) -> None:
        """From \\Q to \\E or to the end, every character stands for itself."""
        begin = self._position + len("\\Q")
        end = self._pattern.find("\\E", begin)
        quoted = self._pattern[begin:] if end < 0 else self._pattern[begin:end]
        for character in quoted:
            self._atom(re.escape(character) if character.isascii() else character, 0, length_min=1)
        self._position = len(self._pattern) if end < 0 else end + len("\\E")

    def _class(self) -> None:
        start = position = self._position
        written = ["["]
        position += 1
        if self._pattern.startswith("^", position):
            written.append("^")
            position += 1
        first = True
        while first or not self._pattern.startswith("]", position):
            first = False
            part, size = self._class_part(position)
            written.append(part)
            position += size
        self._atom("".join(written) + "]", position + 1 - start, length_min=1)

    def _class_part(self, position: int) -> tuple[str, int]:
        """What is written for the next part of a class, and how long that part is."""
        match = _CLASS_NAME.match(self._pattern, position)
        if match is None:
            match = _ESCAPE.match(self._pattern, position)
            if match is not None:
                return self._checked_escape(match), len(match[0])
        if match is not None:
            return match[0], len(match[0])
        if position >= len(self._pattern):
            raise _NotUnderstood
        return self._pattern[position], 1

    def _open(self) -> None:
        if self._pattern.startswith("(?", self._position):
            self._open_special()
        else:
            self._settle()
            self._groups.append(_Group(len(self._pieces)))
            self._take(1)

    def _open_special(self) -> None:
        named = _GROUP.match(self._pattern, self._position)
        if named is not None:
            name = named[1]
            if not _GROUP_NAME.fullmatch(name):
                raise InvalidPattern(f"invalid named capture: {named[0]}")
            if name in self._names:
                raise InvalidPattern(f"duplicate capture group name: {name}")
            self._names.add(name)
        flags = _FLAGS.match(self._pattern, self._position)
        found = named or flags
        if found is None:
            raise _NotUnderstood
        if flags is None or flags[1] == ":":  # else a repetition behind the flags is of the atom before them
            self._settle()
            self._groups.append(_Group(len(self._pieces)))
        self._take(len(found[0]))

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise _NotUnderstood
        self._settle()
        self._take(1)
        self._last = self._groups.pop().closed()

    def _repetition(self, character: str) -> None:
        least, most, size = 0, None, 1
        if character == "{":
            match = _COUNT.match(self._pattern, self._position)
            if match is None:
                self._brace()
                return
            least, most = self._counts(match)
            size = len(match[0])
        elif character == "+":
            least = 1
        elif character == "?":
            most = 1
        if self._last is None:
            raise _NotUnderstood  # nothing to repeat
        atom, self._last = self._last, None
        self._position += size
        lazy = ""
        if self._pattern.startswith("?", self._position):
            lazy = "?"
            self._position += 1
        if self._pattern.startswith(("*", "+", "?"), self._position) or _COUNT.match(self._pattern, self._position):
            raise _NotUnderstood  # RE2 refuses one repetition right behind another
        self._repeat(atom, least, most, lazy)

    def _brace(self) -> None:
        """A `{` that begins no count stands for itself."""
        if self._pattern[self._position + 1 : self._position + 2] in ("*", "+", "?") or _COUNT.match(
            self._pattern, self._position + 1
        ):
            raise InvalidPattern("invalid nested repetition operator: {" + self._pattern[self._position + 1])
        self._atom("{", 1, length_min=1)

    def _counts(self, match: re.Match[str]) -> tuple[int, int | None]:
        if max(len(match[1]), len(match[3] or "")) > _COUNT_DIGITS_MAX:
            raise InvalidPattern(f"invalid repeat count: {match[0]}")
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if max(least, most or 0) > COUNT_MAX or (most is not None and most < least):
            raise _NotUnderstood
        return least, most

    def _repeat(self, atom: _Atom, least: int, most: int | None, lazy: str) -> None:
        """Write the repetition of the last atom, with counts that say the same about a topic's name."""
        length_min = min(atom.length_min * least, NAME_LENGTH_MAX + 1)
        nullable = least == 0 or atom.nullable
        if length_min > NAME_LENGTH_MAX:
            self._write(NEVER)  # behind the atom, which RE2 has still to check
            self._last = atom._replace(length_min=length_min, nullable=False)
            return
        # No text has more parts that are not empty, and parts that are empty can be left out or repeated.
        parts_max = NAME_LENGTH_MAX // atom.length_min if atom.length_min else NAME_LENGTH_MAX
        if atom.nullable:
            least = 0
        least = min(least, NAME_LENGTH_MAX + 1)
        if most is not None and most >= parts_max:
            most = None
        repeated = self._pieces[atom.start :]
        written: list[str] = []
        count = 0
        for part_least, part_most in _split(least, most, COUNT_MAX // atom.nested_count):
            written += [*repeated, _repetition_text(part_least, part_most) + lazy]
            count = max(count, atom.nested_count * max(part_most or part_least, 1))
        if len(written) > len(repeated) + 1:
            written = ["(?:", *written, ")"]
        self._replace(atom, written)
        self._last = _Atom(atom.start, length_min, nullable, count)

    def _replace(self, atom: _Atom, pieces: list[str]) -> None:
        self._length -= sum(map(len, self._pieces[atom.start :]))
        del self._pieces[atom.start :]
        for piece in pieces:
            self._write(piece)


def _split(least: int, most: int | None, count_max: int) -> list[tuple[int, int | None]]:
    """The counts as a sequence of counts of which none is larger than `count_max`."""
    parts: list[tuple[int, int | None]] = []
    while max(least, most or 0) > count_max:
        part_least = min(least, count_max)
        part_most = None if most is None else min(most, count_max)
        if most is not None and part_most is not None:
            most -= part_most
            parts.append((part_least, part_most))
        else:
            parts.append((part_least, part_least))
        least -= part_least
    return [*parts, (least, most)]


def _repetition_text(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"
