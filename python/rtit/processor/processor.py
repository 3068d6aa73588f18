"""A logical processor: a list of all events, in the chapter's order.

Each line names the function that implements the event, and the section that defines the packets.
"""

from __future__ import annotations

from rtit.processor import far_transfers, power_and_reset, register_access, system_modes, user_code
from rtit.processor.core import Cpu


class Processor(Cpu):
    """One logical processor and its trace unit: PT state is per logical processor (33.2.8.1).

    `memory` receives the trace, or `fabric` with FabricEn=1. `time` is the clock, by default that
    of the profile's CPUID.15H; CPUID.15H reports the ratio of the clock. Events must come in
    program order; call `at` before an event if time has passed. IPs are effective addresses; `ip`
    is the address of the instruction itself.

    Keyword arguments `changes` are fields of `arch` that an event changes in addition to its own
    effects (see `ArchStateChanges`; TypeError for another name). Events raise IllegalEvent where
    they cannot happen, and Shutdown where they end in shutdown. With `checked` False the IP, target
    and CPL of events are not checked, as for measured executions. `unit` has the events that a
    processor may produce at any time, and the state of the trace unit.
    """

    __slots__ = ()

    # Branches
    retire = user_code.retire  # 33.2.1
    conditional = user_code.conditional  # 33.2.1.1
    jump = user_code.jump  # 33.2.1.1
    call = user_code.call  # 33.2.1.1
    indirect_jump = user_code.indirect_jump  # 33.2.1.2
    indirect_call = user_code.indirect_call  # 33.2.1.2
    ret = user_code.ret  # 33.2.1.2
    far = far_transfers.far  # 33.2.1.3
    syscall = far_transfers.syscall  # 33.2.1.3
    resume = far_transfers.resume  # 33.2.1.3
    iret = far_transfers.iret  # 33.2.1.3
    interrupt = far_transfers.interrupt  # 33.2.1.3
    exception = far_transfers.exception  # 33.2.1.3
    software_interrupt = far_transfers.software_interrupt  # 33.2.1.3
    task_switch_fault = far_transfers.task_switch_fault  # 33.2.1.3

    # Other instructions and events of programs and operating systems
    ptwrite = user_code.ptwrite  # 33.2.2
    mwait = power_and_reset.mwait  # 33.2.3
    umwait = power_and_reset.umwait  # 33.2.3
    halt = power_and_reset.halt  # 33.2.3
    duty_cycle = power_and_reset.duty_cycle  # 33.2.3
    resolve_deeper = power_and_reset.resolve_deeper  # 33.2.3
    wake = power_and_reset.wake  # 33.2.3
    stop_clocks = power_and_reset.stop_clocks  # 33.2.3
    change_frequency = power_and_reset.change_frequency  # 33.2.3
    init = power_and_reset.init  # 33.2.4
    sipi = power_and_reset.sipi  # 33.2.4
    shutdown = power_and_reset.shutdown  # 33.2.4
    user_interrupt = far_transfers.user_interrupt  # 33.2.4
    uiret = far_transfers.uiret  # 33.2.4
    change_mode = far_transfers.change_mode  # 33.2.4
    mov_cr3 = far_transfers.mov_cr3  # 33.2.5.2

    # Registers
    rdmsr = register_access.rdmsr  # 33.2.8
    wrmsr = register_access.wrmsr  # 33.2.8
    get_msr = register_access.get_msr  # 33.2.8
    set_msr = register_access.set_msr  # 33.2.8
    msrs = register_access.msrs  # 33.2.8

    # Other features of the processor
    begin_transaction = user_code.begin_transaction  # 33.2.9.1
    end_transaction = user_code.end_transaction  # 33.2.9.1
    abort_transaction = user_code.abort_transaction  # 33.2.9.1
    smi = system_modes.smi  # 33.2.9.3
    rsm = system_modes.rsm  # 33.2.9.3
    vmxon = system_modes.vmxon  # 33.2.9.4
    vmxoff = system_modes.vmxoff  # 33.2.9.4
    eenter = system_modes.eenter  # 33.2.9.5
    eresume = system_modes.eresume  # 33.2.9.5
    eexit = system_modes.eexit  # 33.2.9.5
    aex = system_modes.aex  # 33.2.9.5
    getsec = system_modes.getsec  # 33.2.9.6
    senter_sleep = system_modes.senter_sleep  # 33.2.9.6
    acm_begin = system_modes.acm_begin  # 33.2.9.6
    acm_end = system_modes.acm_end  # 33.2.9.6

    # CPUID, last branches, reset, XSAVES, time, PEBS
    cpuid = register_access.cpuid  # 33.3.1
    last_branch = register_access.last_branch  # 33.3.1.2
    last_exception = register_access.last_exception  # 33.3.1.2
    reset = power_and_reset.reset  # 33.3.4
    xsaves = register_access.xsaves  # 33.3.5.2
    xrstors = register_access.xrstors  # 33.3.5.2
    at = register_access.at  # 33.3.6
    pebs = user_code.pebs  # 33.4.2.26

    # Virtual machines and the SMM-transfer monitor
    vmptrld = system_modes.vmptrld  # 33.5.1
    vmclear = system_modes.vmclear  # 33.5.1
    vm_entry = system_modes.vm_entry  # 33.5.2
    vm_exit = system_modes.vm_exit  # 33.5.2
    smm_vm_exit = system_modes.smm_vm_exit  # 33.6
    smm_vm_entry = system_modes.smm_vm_entry  # 33.6

    # Settings that a decoder needs
    decode_settings = register_access.decode_settings  # 33.8.3.1
