"""`EmulatorDriver` derives outcomes of near branches, and refuses impossible ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.errors import IllegalEvent
from rtit.packets import iterate_packets
from rtit.processor import Processor
from rtit.registers import CTL, Msr
from rtit.unit.memory import Memory
from support.properties import examples

pytest.importorskip("rtit._core", reason="the native module is not built")

from rtit.emulator_driver import EmulatorDriver

CODE, STACK, BUFFER, SIZE = 0x40_0000, 0x80_0000, 0x1000_0000, 1 << 16
KERNEL = 0xFFFF_FFFF_8100_0000
SLOT, SLOTS = 16, 24

JNZ, JMP, CALL = b"\x0f\x85", b"\xe9", b"\xe8"
LOAD = b"\x48\x8d\x05"  # lea rax, [rip + ...]
FLAGS = b"\xff\xc1\xf6\xc1"  # inc ecx; test cl, ...
STORE = b"\xb9\x03\x00\x00\x00\x48\x8d\x7c\x24\xc0\xf3\xaa"
# mov ecx, 3; lea rdi, [rsp - 64]; rep stosb


def start() -> tuple[EmulatorDriver, bytearray]:
    out = bytearray()
    cpu = Processor(memory=Memory(observer=lambda _, data: out.extend(data)))
    cpu.set_msr(Msr.OUTPUT_BASE, BUFFER)
    cpu.set_msr(Msr.OUTPUT_MASK_PTRS, SIZE - 1)
    ctl = CTL.encode(TraceEn=1, BranchEn=1, User=1, TSCEn=1)
    cpu.set_msr(Msr.CTL, ctl, next_ip=CODE)
    out.clear()
    return EmulatorDriver(cpu), out


@st.composite
def slots(draw: st.DrawFn) -> bytes:
    """Draw SLOTS code blocks that lead to each other; every loop emits packets."""
    code = bytearray()
    for number in range(SLOTS):
        here = CODE + SLOT * number
        kind = draw(st.sampled_from(("jnz", "jmp", "call", "register", "ret", "store")))
        first = number + 1 if kind in ("jmp", "call") else 0
        target = CODE + SLOT * draw(st.integers(first, SLOTS))
        piece = {
            "jnz": FLAGS + bytes((draw(st.sampled_from((1, 3, 8))),)),
            "register": LOAD + rel(target, here + 7),
            "store": STORE,
        }.get(kind, b"")
        if kind in ("jnz", "jmp", "call"):
            opcode = {"jnz": JNZ, "jmp": JMP, "call": CALL}[kind]
            piece += opcode + rel(target, here + len(piece) + len(opcode) + 4)
        elif kind == "register":
            piece += draw(st.sampled_from((b"\xff\xe0", b"\xff\xd0")))
        elif kind == "ret":
            piece += b"\xc3"
        code += piece.ljust(SLOT, b"\x90")
    return bytes(code) + LOAD + rel(CODE, CODE + SLOT * SLOTS + 7) + b"\xff\xe0"


def rel(target: int, following: int) -> bytes:
    return (target - following).to_bytes(4, "little", signed=True)


@examples(30)
@given(slots(), st.integers(1, 400))
def test_execution_in_unicorn_emulator_is_decoded(code: bytes, count: int) -> None:
    unicorn = pytest.importorskip("unicorn", reason="unicorn is not installed")
    driver, _ = start()
    executed: list[int] = []

    def instruction(machine: Any, ip: int, size: int, _: object) -> None:
        driver.execute(ip, bytes(machine.mem_read(ip, size)))
        if driver.instructions > len(executed):  # not for each iteration of a REP instruction
            executed.append(ip)

    machine = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    for address, data in ((CODE, code), (STACK, CODE.to_bytes(8, "little") * 0x200)):
        machine.mem_map(address, 0x4000)
        machine.mem_write(address + (0x1000 if address == STACK else 0), data)
    machine.reg_write(unicorn.x86_const.UC_X86_REG_RSP, STACK + 0x1000)
    machine.hook_add(unicorn.UC_HOOK_CODE, instruction)
    machine.emu_start(CODE, 0, count=count)
    end = machine.reg_read(unicorn.x86_const.UC_X86_REG_RIP)
    last = code[executed[-1] - CODE :][:2]
    if last != b"\xf3\xaa" or end != executed[-1]:
        driver.advance_to(end)
    else:
        executed.pop()  # a REP instruction that is not over is not traced
    driver.cpu.set_msr(Msr.CTL, 0, ip=end)
    written = driver.cpu.get_msr(Msr.OUTPUT_MASK_PTRS) >> 32
    pt = driver.cpu.unit.output.memory.read(BUFFER, written)
    stream = rtit.decode(pt, rtit.Image().add(CODE, code)).streams[0]
    assert [int(ip) for part in stream.instructions() for ip in part.ip] == executed


def names(out: bytearray) -> list[str]:
    return [packet.name for packet in iterate_packets(bytes(out))]


@pytest.mark.parametrize(
    ("code", "leads_to"),
    [
        (b"\x90", CODE + 2),
        (b"\xeb\x10", CODE + 2),
        (b"\x75\x10", CODE + 3),
        (b"\xe8\x00\x10\x00\x00", CODE + 5),
        (b"\xf3\xaa", CODE + 1),
    ],
)
def test_impossible_successor_is_refused(code: bytes, leads_to: int) -> None:
    driver, _ = start()
    driver.execute(CODE, code)
    with pytest.raises(IllegalEvent, match=f"does not lead to {leads_to:#x}"):
        driver.execute(leads_to, b"\x90")


@pytest.mark.parametrize("code", ["0f05", "cd80", "48cf", "0f22d8", "f30faee0", "c7f810000000"])
def test_instruction_without_its_event_is_refused(code: str) -> None:
    driver, _ = start()
    driver.execute(CODE, bytes.fromhex(code))
    with pytest.raises(IllegalEvent, match="no event of the processor reported it"):
        driver.execute(CODE + len(code) // 2, b"\x90")


def test_event_must_lead_to_the_next_instruction() -> None:
    driver, _ = start()
    driver.execute(CODE, b"\x0f\x05")
    driver.cpu.syscall(CODE, KERNEL)
    with pytest.raises(IllegalEvent, match=f"lead to {KERNEL:#x}, but .* at {CODE + 2:#x}"):
        driver.execute(CODE + 2, b"\x90")


def test_interrupt_and_exception_events_make_packets() -> None:
    driver, out = start()
    cpu = driver.cpu
    driver.execute(CODE, b"\x75\x10")
    driver.advance_to(CODE + 0x12)
    cpu.interrupt(CODE + 0x12, KERNEL)
    driver.execute(KERNEL, b"\x48\xcf")
    cpu.iret(KERNEL, CODE + 0x12, cpl=3)
    driver.execute(CODE + 0x12, b"\x0f\x0b")
    cpu.exception(CODE + 0x12, KERNEL, vector=6)
    driver.execute(KERNEL, b"\x90")
    assert names(out) == ["TNT", "FUP", "TIP.PGD", "TIP.PGE", "FUP", "TIP.PGD"]
    assert driver.instructions == 4
    assert cpu.unit.state.cycle == 4 * cpu.unit.time.cpi


def test_rep_instruction_counts_once() -> None:
    driver, _ = start()
    for _ in range(3):
        driver.execute(CODE, b"\xf3\xaa")
    driver.execute(CODE + 2, b"\x90")
    assert driver.instructions == 2
