"""The trace unit of one logical processor: a list of all events, in the chapter's order.

Each line names the function that implements the event, and the section that defines it.
"""

from __future__ import annotations

from rtit.unit import packet_commit, snapshots
from rtit.unit.core import Unit
from rtit.unit.events import (
    branches,
    enclave,
    far_transfers,
    inserted_packets,
    measured_launch,
    msr_access,
    power,
    reset_and_init,
    smm,
    transactions,
    vmx,
    xsave,
)


class TraceUnit(Unit):
    """Registers, output and state of a trace unit, with all events as methods.

    TraceUnit(profile, memory, time, parameters, fabric=None): the output goes to `memory`, or with
    FabricEn=1 to the function `fabric`. After each event all its packets are in the output; only
    TNT results, and TIPs deferred by Parameters.deferred_tips, stay pending.
    """

    __slots__ = ()

    # Branches
    retire = branches.retire  # 33.2.1
    conditional = branches.conditional  # 33.2.1.1
    jump = branches.jump  # 33.2.1.1
    call = branches.call  # 33.2.1.1
    indirect_jump = branches.indirect_jump  # 33.2.1.2
    indirect_call = branches.indirect_call  # 33.2.1.2
    ret = branches.ret  # 33.2.1.2
    transfer = far_transfers.transfer  # 33.2.1.3

    # Other instructions and events of programs and operating systems
    ptwrite = inserted_packets.ptwrite  # 33.2.2
    sleep = power.sleep  # 33.2.3
    wake = power.wake  # 33.2.3
    stop_clocks = power.stop_clocks  # 33.2.3
    change_frequency = power.change_frequency  # 33.2.3
    init_wait = reset_and_init.init_wait  # 33.2.4
    sipi = reset_and_init.sipi  # 33.2.4
    shutdown = reset_and_init.shutdown  # 33.2.4
    user_interrupt = far_transfers.user_interrupt  # 33.2.4
    uiret = far_transfers.uiret  # 33.2.4
    change_mode = far_transfers.change_mode  # 33.2.4
    mov_cr3 = far_transfers.mov_cr3  # 33.2.5.2

    # Registers, TraceEn among them
    rdmsr = msr_access.rdmsr  # 33.2.8
    wrmsr = msr_access.wrmsr  # 33.2.8
    msrs = msr_access.msrs  # 33.2.8

    # Other features of the processor
    begin_transaction = transactions.begin_transaction  # 33.2.9.1
    commit_transaction = transactions.commit_transaction  # 33.2.9.1
    abort_transaction = transactions.abort_transaction  # 33.2.9.1
    smi = smm.smi  # 33.2.9.3
    rsm = smm.rsm  # 33.2.9.3
    vmxon = vmx.vmxon  # 33.2.9.4
    vmxoff = vmx.vmxoff  # 33.2.9.4
    enclave_enter = enclave.enclave_enter  # 33.2.9.5
    enclave_resume = enclave.enclave_resume  # 33.2.9.5
    enclave_exit = enclave.enclave_exit  # 33.2.9.5
    enclave_event = enclave.enclave_event  # 33.2.9.5
    getsec = measured_launch.getsec  # 33.2.9.6
    senter_sleep = measured_launch.senter_sleep  # 33.2.9.6
    acm_begin = measured_launch.acm_begin  # 33.2.9.6
    acm_end = measured_launch.acm_end  # 33.2.9.6
    last_branch = msr_access.last_branch  # 33.3.1.2
    last_exception = msr_access.last_exception  # 33.3.1.2

    # Flush, reset, snapshots, XSAVES
    flush = packet_commit.flush  # 33.3.3
    reset = reset_and_init.reset  # 33.3.4
    snapshot = snapshots.snapshot  # 33.3.5
    restore = snapshots.restore  # 33.3.5
    xsaves = xsave.xsaves  # 33.3.5.2
    xrstors = xsave.xrstors  # 33.3.5.2

    # Time and overflow
    at = packet_commit.at  # 33.3.6
    begin_overflow = inserted_packets.begin_overflow  # 33.3.8
    end_overflow = inserted_packets.end_overflow  # 33.3.8

    # Packets on request, and of other units
    drop_mtc = inserted_packets.drop_mtc  # 33.4.2.12
    insert_cyc = inserted_packets.insert_cyc  # 33.4.2.14
    insert_psb = inserted_packets.insert_psb  # 33.4.2.17
    mnt = inserted_packets.mnt  # 33.4.2.19
    pad = inserted_packets.pad  # 33.4.2.20
    pebs = inserted_packets.pebs  # 33.4.2.26

    # Virtual machines and the SMM-transfer monitor
    vmptrld = vmx.vmptrld  # 33.5.1
    vmclear = vmx.vmclear  # 33.5.1
    vm_entry = vmx.vm_entry  # 33.5.2
    vm_exit = vmx.vm_exit  # 33.5.2
    smm_vm_exit = smm.smm_vm_exit  # 33.6
    smm_vm_entry = smm.smm_vm_entry  # 33.6

    @property
    def counters_frozen(self) -> bool:
        """True while a PMI has frozen the performance counters (section 33.2.7.2)."""
        return msr_access.are_counters_frozen(self)
