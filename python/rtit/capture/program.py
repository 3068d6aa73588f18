"""The program that a recording starts: arguments, environment, path of the executable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import ModuleType

from rtit.errors import RecordError, UsageError

StrPath = str | os.PathLike[str]


def check_program(
    argv: Sequence[StrPath],
    *,
    env: Mapping[str, str] | None = None,
    cwd: StrPath | None = None,
) -> None:
    """Raise the error that starting the program would raise, without starting it.

    UsageError for impossible arguments, RecordError if the program cannot be started: `exit_code`
    127 not found, 126 not executable, 125 anything else.
    """
    native_tracer_module().check_program(check_arguments(argv), env=check_environment(env), cwd=cwd)


def find_program(program: str, env: Mapping[str, str] | None) -> str:
    """Return the path of a program, searched in PATH; its name if it is not found."""
    path = (env or os.environ).get("PATH")
    found = program if "/" in program else find_executable(program, path)
    return found or program


def find_executable(name: str, path: str | None = None) -> str | None:
    """Return the executable file of this name in `path` (None: PATH); None if there is none.

    Like `shutil.which`, without its slow imports.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    for folder in path.split(os.pathsep) if path else ():
        found = os.path.join(folder, name)  # noqa: PTH118 - "" is the current folder
        if os.access(found, os.X_OK) and not os.path.isdir(found):  # noqa: PTH112
            return found
    return None


def check_arguments(argv: Sequence[StrPath]) -> list[str]:
    """Return `argv` as a list of strings. Raises UsageError for impossible arguments."""
    if isinstance(argv, str) or not argv:
        raise UsageError(f"argv must be a list of the program and its arguments, not {argv!r}")
    words = [os.fspath(argument) for argument in argv]
    for word in words:
        if "\0" in word:
            raise UsageError(f"an argument has a NUL byte: {word!r}")
    return words


def check_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return a copy of `env` (None: our environment). Raises UsageError for invalid entries."""
    if env is None:
        # Not the environment of the C library, which may differ from `os.environ`.
        env = os.environ
    for name, value in env.items():
        if "=" in name or "\0" in name + value:
            raise UsageError(f"not an environment variable: {name!r}={value!r}")
    return dict(env)


def native_tracer_module() -> ModuleType:
    """Return the native module. Raises RecordError if it has no tracer."""
    try:
        from rtit import _core
    except ImportError as error:
        raise RecordError(f"the native module does not load: {error}") from error
    if not hasattr(_core, "Tracer"):
        raise RecordError("recording by ptrace needs Linux on x86-64")
    return _core
