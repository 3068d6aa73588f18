"""Invalid scenarios are rejected with one message that names the line and the word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtit.errors import ScenarioError
from rtit.scenario import load, parse, run

HEAD = "ctl User BranchEn\nenable 0x1000\n"

MALFORMED = [
    ("jmup 0x1000 0x2000", 1, "no event or setting 'jmup'; did you mean jump?"),
    ("paramters tnt_form=long", 1, "no event or setting 'paramters'; did you mean parameters"),
    ("parameters tnt_from=long", 1, "parameters has no 'tnt_from'; did you mean tnt_form"),
    ("parameters tnt_form=wide", 1, "tnt_form: 'wide' is none of short, long, mixed"),
    ("parameters cyc_max_bytes=1", 1, "cyc_max_bytes lies between 2 and 9, not 1"),
    ("profile skylak", 1, "no profile 'skylak'; did you mean skylake"),
    ("profile full ranges=9", 1, "9 address ranges"),
    ("profile", 1, "there is no profile"),
    ("arch cpl=4", 1, "CPL is 0 to 3, not 4"),
    ("time cpi=0", 1, "cpi must be positive"),
    ("ctl Usr BranchEn", 1, "ctl has no 'Usr'; did you mean User"),
    ("ctl User=2", 1, "User has 1 bits: 0x2 does not fit"),
    ("ctl User User", 1, "User is given twice"),
    ("ctl User\nctl OS\n", 2, "ctl is given twice"),
    ("fabric yes", 1, "fabric takes no arguments"),
    ("section 34.1", 1, "write section 33.4.2.6"),
    ("table 33-55 rows 2", 1, "write table 33-55 row 2 3"),
    ("code 0x1000", 1, "code has an address and bytes"),
    ("code 0x1000 xy", 1, "'xy' are no hexadecimal bytes"),
    ("code 0x1000 90\ncode 0x1000 90", 2, "code at 0x1000 is given twice"),
    ("code 0xffffffffffffffff 90 90", 1, "goes beyond 2^64"),
    ("code 0x1001 90\ncode 0x1000 90 90\nfabric", 2, "code at 0x1001 overlaps that at 0x1000"),
    ("code 0x1000 90 90\ncode 0x1001 90", 2, "code at 0x1001 overlaps that at 0x1000"),
    ("    TIP 0x1000", 1, "there is no event above this indented line"),
    (HEAD + "parameters tnt_form=long", 3, "parameters is a setting: it comes before all events"),
    (HEAD + "jump 0x1000", 3, "TARGET is missing: write jump IP TARGET"),
    (HEAD + "jump 1 2 3", 3, "'3' is one argument too many: write jump IP TARGET"),
    (HEAD + "pad 1 2", 3, "'2' is one argument too many: write pad [COUNT]"),
    (HEAD + "jump 0x1000 0x20g0", 3, "TARGET: '0x20g0' is no number"),
    (HEAD + "jump 0x1000 -1", 3, "TARGET: -1 is negative"),
    (HEAD + "jump 0x1000 0x10000000000000000", 3, "does not fit in 64 bits"),
    (HEAD + "conditional 1 2 3 yes", 3, "TAKEN: 'yes' is no truth value"),
    (HEAD + "jump 1 2 ip=3", 3, "jump: ip is given twice"),
    (HEAD + "interrupt 1 2 vektor=3", 3, "interrupt has no 'vektor'; did you mean vector"),
    (
        HEAD + "interrupt 1 2 vector",
        3,
        "'vector' is one argument too many: write interrupt IP HANDLER",
    ),
    (HEAD + "wake last=0", 3, "DEEPEST is missing: write wake last= deepest= [reason=]"),
    (HEAD + "write CTRL 0", 3, "there is no MSR 'CTRL'; did you mean CTL"),
    (HEAD + "read STATUS Stoped=1", 3, "read has no 'Stoped'; did you mean Stopped"),
    (HEAD + "state packeten=1", 3, "state has no 'packeten'; did you mean packet_en"),
    (HEAD + "vmcs entry_loads=CTL", 3, "'CTL' is no list of MSR:VALUE"),
    (HEAD + "    TIPP 0x1000", 3, "there is no packet 'TIPP'; did you mean TIP"),
    (HEAD + "    TIP 1 2", 3, "TIP has one address or none, not 2 words"),
    (HEAD + "    CBR", 3, "CBR has 1 fields: ratio; 0 are given"),
    (HEAD + "    TNT TXN", 3, "the results of a TNT are T and N: 'TXN'"),
    (HEAD + "    MODE.Exec 65", 3, "MODE.Exec has 16, 32 or 64"),
    (HEAD + "    = 0", 3, "'0' are no hexadecimal bytes"),
    (HEAD + "    ...\n    PSB", 4, "no line can follow ...: 'PSB'"),
    (HEAD + "    PSB\n    = 02", 4, "packets or exact bytes, not both"),
    (HEAD + "    PAD * 0", 3, "write PAD * N, with N from 1 to 65536: 'PAD * 0'"),
    (HEAD + "    PAD *", 3, "write PAD * N, with N from 1 to 65536: 'PAD *'"),
    (HEAD + "    PAD * 60000\n    PAD * 9000", 4, "a scenario has at most 65536 PADs"),
    (HEAD + "    #GP 1", 3, "#GP has no fields, not '1'"),
]


@pytest.mark.parametrize(("text", "line", "sentence"), MALFORMED)
def test_malformed_line_is_reported_with_its_number(text: str, line: int, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "x.scenario")
    assert str(caught.value).startswith(f"x.scenario:{line}: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.line == line


IMPOSSIBLE = [
    ("end_transaction 0x1000 0x1003", "no transaction is under way"),
    ("end_transaction 0x1000 0x1003 outermost=False", "no transaction is under way"),
    ("abort_transaction 0x1000 0x1003", "no transaction is under way"),
    ("vm_entry 0x1000 0x2000", "VM entry is executed outside VMX root operation"),
    ("vm_exit 0x1000 0x2000", "no VM exit outside VMX non-root operation"),
    ("rsm", "no SMI has saved a state"),
    ("eresume 0x1000", "no asynchronous exit has saved a state"),
    ("eexit 0x1000 0x2000", "EEXIT happens outside an enclave"),
    ("acm_end 0x1000", "none has started"),
    ("wake last=0 deepest=0", "does not sleep"),
    ("resolve_deeper 2", "does not sleep"),
    ("at 10\nat 9", "the clock went back to 9"),
    ("iret 0x1000 0x2000 cpl=0", "IRET leads from CPL 3 to CPL 0"),
    ("sipi 0x10", "waits for none"),
    ("ptwrite 0x1000 0x1004 7 5", "4 or 8 bytes"),
    ("umwait 0x1000 0x1004 0\njump 0x1004 0x2000", "the processor sleeps"),
    ("umwait 0x1000 0x1004 1\nconditional 0x1004 0x1006 0x2000 True", "the processor sleeps"),
    ("init 0x1000 bsp=False\nindirect_jump 0x1004 0x2000", "the processor waits for SIPI"),
    ("smi 0x1000\nwrite CTL 0x2009\nrsm\n    shutdown\njump 1 2", "the processor has shut down"),
    ("ret 0x1000 0x2000 99", "16, 32 or 64 bits, not 99"),
    ("at 16777217", "too far ahead"),
    ("at 99999999999", "too far ahead"),
    ("pad 99999999", "at most"),
    ("read 0x1d9 TR=1", "read has no 'TR'"),
    ("read STATUS OS=1", "IA32_RTIT_STATUS has no field OS"),
    ("pebs 0x1000 7:0=1", "a block of type 0x7 has no item 0x0"),
]


@pytest.mark.parametrize(("events", "sentence"), IMPOSSIBLE)
def test_impossible_event_is_reported_with_its_line(events: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(parse(f"ctl User BranchEn\nenable 0x1000\n    ...\n{events}\n", "x.scenario"))
    line = 3 + len(events.split("\n"))
    assert str(caught.value).startswith(f"x.scenario:{line}: ")
    assert sentence in str(caught.value)


def test_conflicting_settings_are_rejected() -> None:
    text = "parameters ip_compression=bdw\nprofile full linear_width=64\n"
    with pytest.raises(ScenarioError, match=r"^x:2: linear addresses have 32, 48 or 57 bits"):
        parse(text, "x")


def test_binary_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.scenario"
    path.write_bytes(b"# fine\nenable \xff\n")
    with pytest.raises(ScenarioError, match=r"a.scenario:2: byte 0xff is no UTF-8 text"):
        load(path)
    path.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ScenarioError, match="larger than"):
        load(path)
