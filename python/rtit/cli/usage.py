"""Wrong words on the command line: what was meant, perhaps, and the usage of the verb."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from rtit.cli import out
from rtit.readable import readable

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class Help(RawDescriptionHelpFormatter):
    """As argparse's, which is made once an option and loads all compressors to learn the width."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"width": _width(), **kwargs})


@cache
def _width() -> int:
    """Of a line, in characters, by COLUMNS or the terminal; as argparse has it."""
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if given.isascii() and given.isdecimal() else 0
    if not columns:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 0
    return (columns or 80) - 2


class Parser(ArgumentParser):
    """As argparse's, and the words that its errors repeat do nothing to a terminal.

    If `takes_program`, what follows the first `--` is a program with its arguments, in `program`.
    """

    takes_program = False

    def parse_known_args(  # type: ignore[override]  # of its overloads we are called by one
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """The options, and the words that nothing is known of."""
        words = list(args or ())
        end = words.index("--") if self.takes_program and "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:end], namespace)
        if self.takes_program:
            found.program = words[end + 1 :] if end < len(words) else None
        return found, unknown

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Raises OSError where argparse keeps silent: nobody has the help then."""
        if file is not None:
            super().print_help(file)
            return
        for line in self.format_help().splitlines():
            out.line(line)
        out.flush()

    def error(self, message: str) -> NoReturn:
        """End with exit code 2."""
        super().error(readable(message))


def unknown_verb(top: ArgumentParser, verb: str, verbs: Iterable[str]) -> NoReturn:
    """End with exit code 2."""
    top.error(f"there is no verb {verb!r}{_meant(verb, verbs)}; rtit --help lists them")


def unknown_words(parser: ArgumentParser, words: Sequence[str]) -> NoReturn:
    """End with exit code 2 because of words that `parser`, a verb's, has no option or place for."""
    options = [option for action in parser._actions for option in action.option_strings]
    word = next((word for word in words if word.startswith("-")), words[0])
    name = word.partition("=")[0]
    if word.startswith("-"):
        parser.error(f"there is no option {name}{_meant(name, options)}")
    parser.error(f"unexpected argument {word!r}")


def _meant(word: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, [each for each in known if len(each) > 2], n=1)
    return f" (did you mean {near[0]}?)" if near else ""
