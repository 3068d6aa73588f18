"""`rtit branches FILE`: one line a branch: from where to where."""

from __future__ import annotations

import argparse

from rtit.cli.tabular import add_table, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_table(parser, ordered=True)


def run(arguments: argparse.Namespace) -> int:
    """Print them; 3 if something could not be decoded."""
    from rtit.views import rows

    return show("branches", rows.branches, arguments)
