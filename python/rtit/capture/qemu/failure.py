"""The error by which `--backend auto` knows that single steps may do what QEMU cannot."""

from rtit.errors import RecordError


class QemuStartError(RecordError):
    """QEMU cannot start, or not with this program; nothing of it has run."""
