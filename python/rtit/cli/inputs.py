"""Options that the reading verbs share."""

from __future__ import annotations

import argparse


def add_file(parser: argparse.ArgumentParser) -> None:
    """The recording."""
    parser.add_argument(
        "file", nargs="?", default="perf.data", metavar="FILE", help="default: perf.data"
    )


def add_symfs(parser: argparse.ArgumentParser) -> None:
    """Where the recorded files are now."""
    parser.add_argument(
        "--symfs", metavar="DIR", help="look for the recorded files below this folder"
    )
