"""`rtit blocks FILE`: one line a run of instructions that follow each other in memory."""

from __future__ import annotations

import argparse

from rtit.cli.tabular import add_table, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_table(parser, ordered=True)


def run(arguments: argparse.Namespace) -> int:
    """Print them; 3 if something could not be decoded."""
    from rtit.views import rows

    return show("blocks", rows.blocks, arguments)
