"""The QEMU process of a recording. It starts while the recorder prepares its output."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from rtit.capture.qemu.guest_program import GuestProgram
from rtit.capture.qemu.installation import QemuInstallation, QemuStartError
from rtit.capture.qemu.processes import OpenFileLimit
from rtit.capture.qemu.recording_folder import RecordingFolder, folder_error


class QemuProcess:
    """A QEMU process with the plugin, the recording folder, and the socket to the plugin."""

    def __init__(self, installation: QemuInstallation, settings: str, guest: GuestProgram) -> None:
        """Start QEMU; `settings` is the plugin's settings file. Raises QemuStartError."""
        self.qemu = installation.qemu
        self.folder = RecordingFolder()
        self.open_files = OpenFileLimit()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._prepare_folder(installation.plugin, settings, guest)
            self.process = self._start(guest)
        except BaseException:
            self._close()
            raise
        self.open_files.restore_in_child(self.process.pid)

    def abandon(self) -> None:
        """Kill the process and remove its files. May be called again."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _prepare_folder(self, plugin: Path, settings: str, guest: GuestProgram) -> None:
        folder = Path(self.folder.name)
        try:
            (folder / "plugin.so").symlink_to(plugin.resolve())
            (folder / "settings").write_text(settings)
            (folder / "clock").write_bytes(bytes(4096))
            variables = b"".join(os.fsencode(entry) + b"\0" for entry in guest.qemu_variables)
            (folder / "qemu-env").write_bytes(variables)
            self.listener.bind(str(folder / "socket"))
        except OSError as error:
            raise folder_error(error) from error
        self.listener.listen(256)
        self.listener.setblocking(False)

    def _start(self, guest: GuestProgram) -> subprocess.Popen[bytes]:
        program, folder = guest.program, self.folder.name
        path = program if not program.startswith("-") else f"./{program}"
        command = [str(self.qemu), "-plugin", f"{folder}/plugin.so", "-0", guest.arguments[0], path]
        try:
            return subprocess.Popen(
                [*command, *guest.arguments[1:]],
                env=guest.qemu_environment(folder),
                cwd=guest.cwd,
                close_fds=False,
            )
        except OSError as error:
            raise QemuStartError(f"{self.qemu}: {error.strerror}") from error

    def _close(self) -> None:
        self.listener.close()
        self.open_files.close()
        self.folder.cleanup()
