"""Import into an interpreter other than the main one."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest


def test_import_in_subinterpreter_raises_import_error() -> None:
    names = ("_xxsubinterpreters", "_interpreters")  # before Python 3.13, and since
    module = next(filter(find_spec, names), None)
    if module is None:
        pytest.skip("this Python has no module for subinterpreters")
    code = f"""if True:
        import {module} as interpreters

        interpreters.run_string(interpreters.create(), '''if True:
            try:
                import rtit._core
            except ImportError as error:
                print(error)
        ''')
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "rtit does not support subinterpreters\n"
