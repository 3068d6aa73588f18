"""`rtit completion SHELL`: the completion script of a shell, made by shtab."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rtit.cli import output
from rtit.cli.parser import CommandParser

_SHELLS = ("bash", "zsh", "fish")
_EPILOG = """Examples:
  rtit completion bash > ~/.local/share/bash-completion/completions/rtit
  rtit completion zsh  > ~/.zfunc/_rtit        # with ~/.zfunc in fpath, before compinit
  rtit completion fish > ~/.config/fish/completions/rtit.fish
"""


def completion_parser() -> CommandParser:
    """Return the parser of this command."""
    parser = CommandParser("rtit completion")
    parser.usage = f"rtit completion [options] {{{','.join(_SHELLS)}}}"
    parser.description = (
        "Print the completion script of a shell (requires the extra rtit[completion])."
    )
    parser.epilog = _EPILOG
    parser.add_argument_group().add_argument("shell", choices=_SHELLS, help="The shell")
    parser.add_general_options()
    return parser


def print_script(words: Sequence[str]) -> int:
    """Print the script; return 1 if shtab is not installed."""
    arguments = completion_parser().parse_args(words)
    try:
        import shtab
    except ImportError:
        next_step = "install it:  pip install 'rtit[completion]'"
        output.print_error("completion", "shtab is not installed", next_step)
        return 1
    from rtit.cli.commands import COMMANDS, add_all_commands
    from rtit.cli.help_pages import PAGES

    parser = argparse.ArgumentParser("rtit")
    parser.add_argument("-V", "--version", action="store_true", help="Show the version")
    commands = add_all_commands(parser)
    topics = [*COMMANDS, *filter(None, PAGES)]
    commands.add_parser("help", help="Show a help page").add_argument("topic", choices=topics)
    commands.add_parser("completion", help="Print this script").add_argument(
        "shell", choices=_SHELLS
    )
    for command in COMMANDS:
        _complete_files(commands.choices[command])
    script = shtab.complete(parser, shell=arguments.shell)
    output.write_bytes([f"{script}\n".encode()])
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Complete arguments FILE and DIR with files and directories."""
    import shtab

    kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for action in parser._actions:
        if action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
