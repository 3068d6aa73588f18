"""The parser of a command: help in groups, rare options only in --help-all, errors in two lines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rtit.cli import output

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_WIDEST = 100
_HELP_COLUMN = 27


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps each line of an option's help at the width of the terminal, or at 100 columns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        import shutil

        width = min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)
        layout = {"width": width, "max_help_position": _HELP_COLUMN}
        super().__init__(*args, **{**layout, **kwargs})

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        wrapper = textwrap.TextWrapper(width, break_on_hyphens=False)
        return [part for line in text.splitlines() for part in wrapper.wrap(line)]


class CommandParser(argparse.ArgumentParser):
    """The options of one command.

    Groups made by `add_rare_group` appear only in --help-all.
    """

    def __init__(self, prog: str, **kwargs: Any) -> None:
        layout = {"add_help": False, "formatter_class": HelpFormatter}
        super().__init__(prog, **{**kwargs, **layout})
        self._rare: list[argparse._ArgumentGroup] = []
        self.has_intermixed_arguments = False
        """Whether options can be between two arguments of which one may be left out."""

    def add_rare_group(self, title: str) -> argparse._ArgumentGroup:
        """Add a group that only --help-all shows."""
        group = self.add_argument_group(title)
        self._rare.append(group)
        return group

    def add_general_options(self, *, jobs: str = "", dask: bool = False, rare: str = "") -> None:
        """Add -j if `jobs` (its default in words), --dask if `dask`, -h, and --help-all, which also
        shows `rare`.
        """
        group = self.add_argument_group()
        if jobs:
            group.add_argument(
                "-j",
                "--jobs",
                type=int,
                default=0,
                metavar="N",
                help=f"Decode with N threads (default: {jobs})",
            )
        if dask:
            group.add_argument(
                "--dask",
                metavar="ADDRESS",
                help="Decode several recordings on the Dask cluster whose scheduler is at ADDRESS, "
                "such as tcp://host:8786 (requires the extra rtit[dask])",
            )
        group.add_argument("-h", "--help", action=_ShowHelp, const=False, help="Show this help")
        group.add_argument(
            "--help-all",
            action=_ShowHelp,
            const=True,
            help=f"Also show {rare}" if rare else argparse.SUPPRESS,
        )

    def hide_rare_options(self) -> None:
        """Leave the rare groups out of the help."""
        for group in self._rare:
            for action in group._group_actions:
                action.help = argparse.SUPPRESS

    def option_names(self) -> list[str]:
        """Return all option strings, rare ones too."""
        return [option for action in self._actions for option in action.option_strings]

    @property
    def usage_hint(self) -> str:
        """One line of usage, and how to get the help."""
        usage = self.format_usage().splitlines()[0]
        return f"{usage}      ({self.prog} --help)"

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help. Raises OSError where argparse ignores that it cannot be written."""
        if file is not None:
            super().print_help(file)
            return
        for line in self.format_help().splitlines():
            output.print_line(line)
        output.flush_output()

    def parse_args(  # type: ignore[override]  # its overloads return other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the words; end with exit code 2 for those that are unknown."""
        parse = (
            self.parse_known_intermixed_args
            if self.has_intermixed_arguments
            else self.parse_known_args
        )
        arguments, unknown = parse(args, namespace)
        if unknown:
            self._reject_words(unknown)
        return arguments

    def _reject_words(self, words: Sequence[str]) -> NoReturn:
        word = next((word for word in words if word.startswith("-")), words[0])
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        name = word.partition("=")[0]
        self.error(f"unknown option {name}{suggest_similar_word(name, self.option_names())}")

    def error(self, message: str) -> NoReturn:
        """Print the error, one line of usage and a pointer to --help; end with exit code 2."""
        command = self.prog.removeprefix("rtit").strip()
        output.print_error(command, message.removeprefix("argument "), self.usage_hint)
        sys.exit(2)


class ProgramParser(CommandParser):
    """The options of a command that reads a recording or runs a program: `stat`.

    The words after `--`, or from the first executable word on, are a program: `program`, which is
    None for a recording.
    """

    def parse_known_args(  # type: ignore[override]  # its overloads return other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the options before the program."""
        words = list(args or ())
        end = words.index("--") if "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:end], namespace)
        found.program = words[end + 1 :] if end < len(words) else None
        found.file, found.files = None, []
        if not (positional := found.words):
            return found, unknown
        if _names_a_program(positional[0]):
            found.program = [*positional, *words[end:]]
            return found, unknown
        # Recordings: options may follow each.
        while found.words:
            found.files.append(found.words[0])
            found, more = super().parse_known_args(found.words[1:], found)
            unknown += more
        found.file = found.files[0]
        return found, unknown


def _names_a_program(word: str) -> bool:
    """Return whether a word names a program; an existing file that is not executable is a
    recording, even if PATH has a program of its name.
    """
    import shutil

    return not (Path(word).is_file() and not os.access(word, os.X_OK)) and bool(shutil.which(word))


class _ShowHelp(argparse.Action):
    """Shows the help: of all options if `const`, without the rare ones if not."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if not self.const and isinstance(parser, CommandParser):
            parser.hide_rare_options()
        parser.print_help()
        parser.exit()


def suggest_similar_word(word: str, known: Iterable[str], quote: str = "") -> str:
    """Return `; did you mean X?` if one of the known words is like this one, else nothing."""
    from difflib import get_close_matches

    bare = word.lstrip("-").lower()
    by_name = {each.lstrip("-").lower(): each for each in known if len(each) > 2}
    near = [each for each in by_name if len(bare) > 2 and each.startswith(bare)][:1]
    near = near or get_close_matches(bare, by_name, n=1, cutoff=0.65)
    return f"; did you mean {quote}{by_name[near[0]]}{quote}?" if near else ""
