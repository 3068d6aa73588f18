"""Starting a program under QEMU: what it is told, and in which environment it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rtit.capture.clocks import describe
from rtit.capture.file import open_writer, output_file
from rtit.capture.program import check_program, find_program
from rtit.capture.qemu.find import Found, find_qemu
from rtit.capture.qemu.interpreter import resolve
from rtit.capture.qemu.session import QemuSession
from rtit.capture.qemu.settings import plugin_settings
from rtit.capture.qemu.sink import Sink
from rtit.capture.request import TRUTH_FORMS, Plan, Request
from rtit.errors import RecordError, UsageError

_STEERING = ("LD_", "GLIBC_", "GCONV_PATH", "MALLOC_", "G_", "QEMU_", "RTIT_", "LOCPATH")
"""Variables that QEMU or its libraries would heed; the plugin gives the guest their names back."""

_HASHES_WHEN_CUT = 2048
"""Instructions between two hashes of the truth where the trace may end before the program does."""
# What the trace unit in the plugin does not do: event tracing.
_UNSUPPORTED = 1 << 31


def start_qemu(
    request: Request, *, found: Found | None = None, truth_by_instruction: bool = False
) -> QemuSession:
    """Start a program under QEMU and return the recording under way.

    `found` is the QEMU to take (None: it is looked for). With `truth_by_instruction` the truth is
    what a callback of its own at each instruction tells, which is slow. Raises UsageError for what
    this back end cannot do, RecordError if the program cannot be started (exit codes 125, 126,
    127).
    """
    if request.pids:
        raise UsageError("the QEMU back end attaches to no program that runs already")
    if found is None:
        answer = find_qemu()
        if isinstance(answer, str):
            raise RecordError(answer)
        found = answer
    plan = request.plan()
    if plan.options.rtit_ctl & _UNSUPPORTED:
        raise UsageError("event tracing (the term event) needs the ptrace back end")
    if plan.window and truth_by_instruction:
        raise UsageError("a start or stop needs a truth by blocks")
    environment = dict(os.environ if request.env is None else request.env)
    check_program(request.argv, env=environment, cwd=request.cwd)
    program, arguments, name = resolve(
        find_program(request.argv[0], environment), request.argv, request.cwd
    )
    mode = "none" if request.truth is None else "instructions" if truth_by_instruction else "blocks"
    settings = plugin_settings(
        plan.options, mode, _joined(plan), plan.filters, plan.window, plan.extent, plan.time
    )
    with output_file(plan.path):
        writer = open_writer(
            plan,
            time=f"{describe(plan.time)}, a clock a thread",
            backend=f"qemu-user {found.version}",
        )
        session = QemuSession(plan, Sink(writer, request.truth, plan.extent, plan.time))
        try:
            env = _environment(
                environment, session.folder, str(Path(request.cwd or ".") / program), name
            )
            session.launch(found, settings, program, arguments, env)
        except BaseException:
            session.abandon()
            raise
    return session


def _joined(plan: Plan) -> int:
    """Instructions that the truth joins into one run, at least."""
    joined = 1 if plan.filters else TRUTH_FORMS[plan.request.truth_form or "hashes"]
    return joined if plan.extent.max_size is None else min(joined, _HASHES_WHEN_CUT)


def _environment(env: Mapping[str, str], folder: str, program: str, name: str) -> dict[str, str]:
    hidden = {
        f"RTIT_GUEST_{key}" if key.startswith(_STEERING) else key: value
        for key, value in env.items()
    }
    return hidden | {
        "RTIT_QEMU_FOLDER": folder,
        "RTIT_QEMU_PROGRAM": program,
        "RTIT_QEMU_COMM": os.fsdecode(os.fsencode(name)[:15]),
        "RTIT_QEMU_UNBLOCK": "1",
        "LD_PRELOAD": f"{folder}/plugin.so",
    }
