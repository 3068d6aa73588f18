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
    """Raise what starting the program would raise, before anything is started.

    UsageError for arguments that no program can get, RecordError if it cannot be started:
    `exit_code` 127 not found, 126 not executable, 125 anything else.
    """
    native_tracer_module().check_program(check_arguments(argv), env=check_environment(env), cwd=cwd)


def find_program(program: str, env: Mapping[str, str] | None) -> str:
    """The path of a program as the shell finds it; the name itself if it is nowhere."""
    path = (env or os.environ).get("PATH")
    found = program if "/" in program else find_executable(program, path)
    return found or program


def find_executable(name: str, path: str | None = None) -> str | None:
    """The executable file of this name in `path`, folders with colons between (None: PATH), as
    `shutil.which`, which would load compressors.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    for folder in path.split(os.pathsep) if path else ():
        found = os.path.join(folder, name)  # noqa: PTH118 - "" is the current folder
        if os.access(found, os.X_OK) and not os.path.isdir(found):  # noqa: PTH112
            return found
    return None


def check_arguments(argv: Sequence[StrPath]) -> list[str]:
    """`argv` as a list of texts. Raises UsageError for what no program can get."""
    if isinstance(argv, str) or not argv:
        raise UsageError(f"a list of the program and its arguments is needed, not {argv!r}")
    words = [os.fspath(argument) for argument in argv]
    for word in words:
        if "\0" in word:
            raise UsageError(f"an argument has a NUL byte: {word!r}")
    return words


def check_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """`env`, or ours for None. Raises UsageError for what is no environment."""
    if env is None:
        # Python's own copy: `os.environ` may have changed what the C library has.
        env = os.environ
    for name, value in env.items():
        if "=" in name or "\0" in name + value:
            raise UsageError(f"no environment variable: {name!r}={value!r}")
    return dict(env)


def native_tracer_module() -> ModuleType:
    """The native module. Raises RecordError where it has no tracer."""
    try:
        from rtit import _core
    except ImportError as error:
        raise RecordError(f"the native module does not load: {error}") from error
    if not hasattr(_core, "Tracer"):
        raise RecordError("recording by ptrace needs Linux on x86-64")
    return _core
