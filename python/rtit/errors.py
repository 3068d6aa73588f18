"""The errors that rtit raises.

RtitError
 +-- InputError             a file or stream is bad: names the source, the offset and the bad value
 |    +-- MissingFileError  a file that does not exist; also a FileNotFoundError
 |    +-- PacketError       bytes that are no legal packet
 |    +-- PerfDataError     a perf.data file that cannot be read
 |    |    +-- MissingRecordingError   a recording that does not exist; also a MissingFileError
 |    |    +-- NotPerfDataError        a file of another format
 |    +-- ImageError        an ELF file that is missing, changed or malformed
 |    |    +-- MissingImageError       a file of code or symbols that does not exist; also a
 |    |                                MissingFileError
 |    +-- TruthError        a truth file that cannot be read
 |    +-- ScenarioError     a scenario file that cannot be read, or with an impossible event
 +-- UsageError             an option or argument is wrong; lists what is valid
 |    +-- IllegalEvent      an event that cannot happen on the modelled processor
 +-- ClosedError            a trace is asked for what is in its file after it was closed
 +-- ConcurrentUseError     a second thread uses a trace or decoder that is busy in the first
 +-- RecordError            a program cannot be recorded; carries the exit code
 +-- UnsupportedError       a legal thing that this version does not do
 +-- WorkerDiedError        the work on an item kills one process after the other

GeneralProtection and UndefinedOpcode are not errors of the library: they are answers of the
modelled processor (`rtit.registers` raises the first, `rtit.processor` the second).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RtitError(Exception):
    """Base of every error that rtit raises on purpose.

    `hint` is what to do about it, for the command line, which prints it below the message.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes: constructors of subclasses take other arguments than `args`."""
        state = {**vars(self)}
        if isinstance(self, OSError):
            state |= {"errno": self.errno, "filename": self.filename}
        return _restore_error, (type(self), self.args, state)


def _restore_error(kind: type[RtitError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class InputError(RtitError):
    """Bad input.

    `source` names the file or stream, `offset` is in bytes from its start, `value` the bad value;
    any may be None.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str | None = None,
        offset: int | None = None,
        value: object = None,
    ) -> None:
        self.message = message
        self.source = source
        self.offset = offset
        self.value = value
        where = f"{source}: " if source else ""
        at = f" at offset {offset:#x}" if offset is not None else ""
        what = ""
        if value is not None:
            what = f" ({value:#x})" if isinstance(value, int) else f" ({value})"
        super().__init__(f"{where}{message}{at}{what}")


class MissingFileError(InputError, FileNotFoundError):
    """A file that does not exist. `filename` and `errno` are those of FileNotFoundError."""

    def __init__(self, message: str, *, source: str) -> None:
        super().__init__(message, source=source)
        self.errno = 2  # ENOENT
        self.filename = source

    def __str__(self) -> str:
        return str(self.args[0])


class PacketError(InputError):
    """Bytes that are no legal packet."""


class PerfDataError(InputError):
    """A perf.data file that cannot be read."""


class MissingRecordingError(PerfDataError, MissingFileError):
    """A recording that does not exist."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no recording at {path}", source=path)

    def __str__(self) -> str:
        return self.message


class NotPerfDataError(PerfDataError):
    """A file that does not begin as a perf.data file; `value` is how it begins."""

    def __init__(self, source: str, begin: bytes) -> None:
        super().__init__("not a perf.data file", source=source, offset=0, value=repr(begin))

    def __str__(self) -> str:
        begin = str(self.value).removeprefix("b")
        return f"{self.source} is not a perf.data file: it begins with {begin} (offset 0)"


class ImageError(InputError):
    """An ELF file that is missing, changed or malformed."""


class MissingImageError(ImageError, MissingFileError):
    """A file of code or symbols that does not exist."""


def unreadable_image(error: Exception, source: str) -> ImageError:
    """Return the error for a file of code or symbols that could not be read."""
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, FileNotFoundError):
        return MissingImageError(f"cannot be read: {text}", source=source)
    return ImageError(f"cannot be read: {text}", source=source)


class TruthError(InputError):
    """A truth file that cannot be read."""


class ScenarioError(InputError):
    """A scenario file that cannot be read, or an event in it that cannot happen.

    `line` counts from 1.
    """

    def __init__(self, message: str, *, source: str, line: int) -> None:
        super().__init__(message, source=f"{source}:{line}")
        self.line = line


class UsageError(RtitError):
    """A wrong option or argument; the message lists what is valid."""

    exit_code = 2


class IllegalEvent(UsageError, ValueError):  # noqa: N818 - it is what its name says
    """An event that cannot happen on the modelled processor as it is now: RSM outside SMM, VM entry
    outside VMX, a clock that goes back, an operand that no instruction has.

    The message is one sentence that says what is missing or wrong.
    """


class ClosedError(RtitError, ValueError):
    """A trace, or a stream of it, is asked for what is in its file after the trace was closed."""


class ConcurrentUseError(RtitError, RuntimeError):
    """A second thread uses a trace or decoder while the first is decoding with it.

    Open one in each thread, or hold a lock around each use.
    """


class RecordError(RtitError):
    """A program cannot be recorded. `exit_code`: 125 our failure, 126 not executable, 127 not
    found.
    """

    def __init__(self, message: str, exit_code: int = 125) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnsupportedError(RtitError):
    """A legal thing that this version does not do."""


class WorkerDiedError(RtitError):
    """The work on an item, such as a recording, kills one process after the other."""


class GeneralProtection(Exception):  # noqa: N818 - the architecture's name for it
    """#GP(0): the modelled processor refuses an MSR access. `reason` says why in one sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UndefinedOpcode(Exception):  # noqa: N818 - the architecture's name for it
    """#UD: the modelled processor does not know the instruction."""
