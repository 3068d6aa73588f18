"""A logical processor: every event of it, in the chapter's order.

Each is a function whose first parameter is the processor, in the module that its line names; the
section behind it is where the chapter has what its trace unit makes of it.
"""

from __future__ import annotations

from rtit.processor import (
    decode_settings,
    enclave,
    far_transfers,
    instrumentation,
    launch,
    near,
    power,
    registers,
    smm,
    startup,
    tsx,
    vmx,
)
from rtit.processor.core import Cpu


class Processor(Cpu):
    """One logical processor and its own trace unit: PT state is per logical processor (33.2.8.1).

    `memory` receives the trace; `fabric` does when FabricEn is set. `time` is the clock, by default
    that of the profile's CPUID.15H; if it has another ratio, CPUID.15H reports that. Feed events in
    program order: `at` first where time has passed, then the event. IPs are effective addresses;
    `ip` is the instruction itself. Keyword arguments named `changes` are what the
    event changes in `arch` besides what it does by itself (see `Changes`; TypeError for another).
    Events raise IllegalEvent where they cannot happen, and Shutdown where they end in shutdown;
    with `checked` False IP, target and CPL are taken as they come, as for what was measured. What a
    processor may do at any time, and the trace unit's own state, is in `unit`.
    """

    __slots__ = ()

    # Branches
    retire = near.retire  # 33.2.1
    conditional = near.conditional  # 33.2.1.1
    jump = near.jump  # 33.2.1.1
    call = near.call  # 33.2.1.1
    indirect_jump = near.indirect_jump  # 33.2.1.2
    indirect_call = near.indirect_call  # 33.2.1.2
    ret = near.ret  # 33.2.1.2
    far = far_transfers.far  # 33.2.1.3
    syscall = far_transfers.syscall  # 33.2.1.3
    resume = far_transfers.resume  # 33.2.1.3
    iret = far_transfers.iret  # 33.2.1.3
    interrupt = far_transfers.interrupt  # 33.2.1.3
    exception = far_transfers.exception  # 33.2.1.3
    software_interrupt = far_transfers.software_interrupt  # 33.2.1.3
    task_switch_fault = far_transfers.task_switch_fault  # 33.2.1.3

    # What else a program and its operating system do
    ptwrite = instrumentation.ptwrite  # 33.2.2
    mwait = power.mwait  # 33.2.3
    umwait = power.umwait  # 33.2.3
    halt = power.halt  # 33.2.3
    duty_cycle = power.duty_cycle  # 33.2.3
    resolve_deeper = power.resolve_deeper  # 33.2.3
    wake = power.wake  # 33.2.3
    stop_clocks = power.stop_clocks  # 33.2.3
    change_frequency = power.change_frequency  # 33.2.3
    init = startup.init  # 33.2.4
    sipi = startup.sipi  # 33.2.4
    shutdown = startup.shutdown  # 33.2.4
    user_interrupt = far_transfers.user_interrupt  # 33.2.4
    uiret = far_transfers.uiret  # 33.2.4
    change_mode = far_transfers.change_mode  # 33.2.4
    mov_cr3 = far_transfers.mov_cr3  # 33.2.5.2

    # Registers
    rdmsr = registers.rdmsr  # 33.2.8
    wrmsr = registers.wrmsr  # 33.2.8
    get_msr = registers.get_msr  # 33.2.8
    set_msr = registers.set_msr  # 33.2.8
    msrs = registers.msrs  # 33.2.8

    # Other features of the processor
    begin_transaction = tsx.begin_transaction  # 33.2.9.1
    end_transaction = tsx.end_transaction  # 33.2.9.1
    abort_transaction = tsx.abort_transaction  # 33.2.9.1
    smi = smm.smi  # 33.2.9.3
    rsm = smm.rsm  # 33.2.9.3
    vmxon = vmx.vmxon  # 33.2.9.4
    vmxoff = vmx.vmxoff  # 33.2.9.4
    eenter = enclave.eenter  # 33.2.9.5
    eresume = enclave.eresume  # 33.2.9.5
    eexit = enclave.eexit  # 33.2.9.5
    aex = enclave.aex  # 33.2.9.5
    getsec = launch.getsec  # 33.2.9.6
    senter_sleep = launch.senter_sleep  # 33.2.9.6
    acm_begin = launch.acm_begin  # 33.2.9.6
    acm_end = launch.acm_end  # 33.2.9.6

    # What software asks, saves and measures
    cpuid = registers.cpuid  # 33.3.1
    last_branch = registers.last_branch  # 33.3.1.2
    last_exception = registers.last_exception  # 33.3.1.2
    reset = startup.reset  # 33.3.4
    xsaves = registers.xsaves  # 33.3.5.2
    xrstors = registers.xrstors  # 33.3.5.2
    at = registers.at  # 33.3.6
    pebs = instrumentation.pebs  # 33.4.2.26

    # Virtual machines and the SMM-transfer monitor
    vmptrld = vmx.vmptrld  # 33.5.1
    vmclear = vmx.vmclear  # 33.5.1
    vm_entry = vmx.vm_entry  # 33.5.2
    vm_exit = vmx.vm_exit  # 33.5.2
    smm_vm_exit = smm.smm_vm_exit  # 33.6
    smm_vm_entry = smm.smm_vm_entry  # 33.6

    # What a decoder needs besides the packets
    decode_settings = decode_settings.decode_settings  # 33.8.3.1
