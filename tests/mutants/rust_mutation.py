"""Small changes to Rust code in rustfmt's style; some test should notice each.

The kinds are those of `mutation.py`. Expressions are found by spaces and brackets, so that a
few changes do not compile; the caller skips these.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from mutants.mutation import Mutation

_TWINS = (
    *(("==", "!="), ("<", "<="), (">", ">="), ("&&", "||"), ("+", "-"), ("<<", ">>")),
    *(("&", "|"), ("+=", "-=")),
)
_SWAPS = {one: other for pair in _TWINS for one, other in (pair, pair[::-1])}
_HIDDEN = re.compile(r'//[^\n]*|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|[^\'\\])\'|#\[[^\]\n]*\]')
"""Comments, strings, characters and attributes."""
_FUNCTION = re.compile(r"\bfn (\w+)")
_OPERATOR = re.compile(r"(?<=\s)(" + "|".join(map(re.escape, _SWAPS)) + r")(?=\s)")
_NUMBER = re.compile(r"(?<![\w.])(?:0x[\da-fA-F_]+|\d[\d_]*)(?:[ui]\d+|[ui]size)?(?!\w|\.\d)")
_BOOLEAN = re.compile(r"\b(?:true|false)\b")
_NOT = re.compile(r"(?<=[\s(])!(?=[\w(])")
_IF = re.compile(r"\bif (?!let\b)")
_STATEMENT = re.compile(r"^ +((?!let |return |use |const )[\w*].*);$")
_ASSIGNMENT = re.compile(r" [-+*/&|^]?(?:<<|>>)?= ")
_FIELD = re.compile(r"\.(\w+)\b(?!\()")
_BEFORE = re.compile(r"(?:[(\[{};,]|[\w)]\| |(?<![=!<>])=>? |\b(?:if|while|match|return) )\Z")
"""Text that may precede a condition."""
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Edit:
    """A mutation, as replacement of the source from `start` to `end` by `new`."""

    mutation: Mutation
    start: int
    end: int
    new: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]


def edits(module: str, source: str) -> Iterator[Edit]:
    """Yield every mutation of the function bodies in `source`, without its unit tests."""
    occurrences: Counter[str] = Counter()
    for edit in _Finder(module, source).found():
        occurrences[edit.mutation.name] += 1
        yield replace(edit, mutation=replace(edit.mutation, number=occurrences[edit.mutation.name]))


class _Finder:
    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._source = source.split("#[cfg(test)]", maxsplit=1)[0]
        self._code = _HIDDEN.sub(lambda match: " " * len(match[0]), self._source)
        self._functions = list(self._bodies())

    def _bodies(self) -> Iterator[tuple[str, int, int]]:
        for match in _FUNCTION.finditer(self._code):
            start = self._find_end(match.end(), "{;")
            if self._code[start] == "{":
                yield match[1], start + 1, self._find_end(start + 1, "}")

    def found(self) -> Iterator[Edit]:
        seen: set[str] = set()
        for name, start, end in self._functions:
            for kind, first, last, new in self._edits_in(start, end):
                edit = Edit(self._mutation(name, kind, first), first, last, new)
                changed = edit.applied(self._source)
                if changed != self._source and changed not in seen:
                    seen.add(changed)
                    yield edit

    def _mutation(self, name: str, kind: str, start: int) -> Mutation:
        begin = self._source.rfind("\n", 0, start) + 1
        line = self._source.count("\n", 0, start) + 1
        text = self._source[begin:].split("\n", 1)[0].strip()
        return Mutation(self._module, name, kind, text, line, start - begin)

    def _edits_in(self, start: int, end: int) -> Iterator[tuple[str, int, int, str]]:
        code = self._code
        for match in _OPERATOR.finditer(code, start, end):
            yield "swap", match.start(), match.end(), _SWAPS[match[1]]
            if match[1] in ("&&", "||"):
                yield from self._operands(match[1], match.start(), match.end())
        for match in _NUMBER.finditer(code, start, end):
            yield "add one", match.start(), match.end(), f"({match[0]} + 1)"
        for match in _BOOLEAN.finditer(code, start, end):
            new = "false" if match[0] == "true" else "true"
            yield "flip", match.start(), match.end(), new
        for match in _NOT.finditer(code, start, end):
            yield "drop not", match.start(), match.end(), ""
        for match in _IF.finditer(code, start, end):
            last = self._find_end(match.end(), "{", ("=>",))
            if code[last] == "{":
                condition = self._source[match.end() : last].rstrip()
                yield "negate", match.end(), match.end() + len(condition), f"!({condition})"
        yield from self._statements(start, end)

    def _operands(self, operator: str, start: int, end: int) -> Iterator[tuple[str, int, int, str]]:
        """Yield the edits that drop an operand of `||` or `&&`.

        An operand of `||` ends at another `||`, one of `&&` at either operator.
        """
        code, stops = self._code, ("||",) if operator == "||" else ("||", "&&")
        after = self._find_end(end, "{;,", stops)
        yield "drop operand 2", len(code[:start].rstrip()), len(code[:after].rstrip()), ""
        depth, at = 0, start
        while at > 0:
            if code[at - 1] in ")]}":
                depth += 1
            elif depth and code[at - 1] in "([{":
                depth -= 1
            elif not depth and (
                _BEFORE.search(code, max(0, at - 8), at) or code.endswith(stops, 0, at)
            ):
                break
            at -= 1
        left = at + len(code[at:]) - len(code[at:].lstrip())
        yield "drop operand 1", left, end + 1, ""

    def _find_end(self, at: int, stops: str, words: tuple[str, ...] = ()) -> int:
        """Return the offset of the next of `stops` or `words`, or of the closing bracket."""
        code = self._code
        expected: list[str] = []
        while at < len(code):
            each = code[at]
            if not expected and (each in stops or code.startswith(words, at)):
                break
            if each in _PAIRS:
                expected.append(_PAIRS[each])
            elif each in ")]}":
                if not expected:
                    break
                expected.pop()
            at += 1
        return at

    def _statements(self, start: int, end: int) -> Iterator[tuple[str, int, int, str]]:
        """Yield the edits of statements of one line, which begin after the end of the one
        before.
        """
        at = start
        lines: list[tuple[int, str, bool]] = []
        ended = True
        for line in self._code[start:end].split("\n"):
            match = _STATEMENT.match(line) if ended else None
            call = match is not None and re.search(r"\)\??$", match[1])
            simple = match is not None and bool(call or _ASSIGNMENT.search(match[1]))
            lines.append((at, line, simple))
            if line.strip():
                ended = line.rstrip()[-1] in ";{}"
            at += len(line) + 1
        for at, line, simple in lines:
            if simple:
                kind = "drop assignment" if _ASSIGNMENT.search(line) else "drop call"
                yield kind, at + len(line) - len(line.lstrip()), at + len(line), ""
        for (at, first, one), (next_at, second, other) in pairwise(lines):
            if one and other and _is_swap_relevant(first, second):
                texts = [
                    self._source[start : start + len(text)]
                    for start, text, _ in ((at, first, one), (next_at, second, other))
                ]
                indent = len(first) - len(first.lstrip())
                new = "\n".join(reversed(texts))[indent:]
                yield "swap statements", at + indent, next_at + len(second), new


def _is_swap_relevant(first: str, second: str) -> bool:
    """Return whether two statements are of one block, and their order may matter."""
    if len(first) - len(first.lstrip()) != len(second) - len(second.lstrip()):
        return False
    if "(" in first or "(" in second:
        return True
    (to, *_), (into, *_) = (_ASSIGNMENT.split(each) for each in (first, second))
    return bool(
        set(_FIELD.findall(to)) & set(_FIELD.findall(second))
        or set(_FIELD.findall(into)) & set(_FIELD.findall(first))
    )
