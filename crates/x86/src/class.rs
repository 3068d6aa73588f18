//! The class of an instruction (Table 33-1 and the sections that add to it).

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

/// The class of an instruction in PT.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum InstructionClass {
    /// No packet binds to it.
    Other = 0,
    /// Jcc, JCXZ and its kin, LOOP and its kin: one TNT bit.
    Conditional,
    /// JMP rel: no packet.
    Jump,
    /// CALL rel: no packet.
    Call,
    /// JMP r/m and JMPABS: a TIP.
    IndirectJump,
    /// CALL r/m: a TIP.
    IndirectCall,
    /// Near RET: a TIP, or a TNT bit when compressed.
    Return,
    /// Far JMP, CALL and RET, IRET, SYSRET, SYSEXIT, UIRET, ERETS, ERETU: a TIP.
    FarTransfer,
    /// SYSCALL, SYSENTER: a TIP, or TIP.PGD when the kernel is not traced.
    Syscall,
    /// INT n, INT3, INT1, INTO: FUP and TIP.
    SoftwareInterrupt,
    /// VMLAUNCH, VMRESUME.
    VmEntry,
    /// MOV to CR3: a PIP.
    MovCr3,
    /// PTWRITE: a PTW.
    PtWrite,
    /// VMPTRLD: a VMCS packet.
    VmPtrLd,
    /// XBEGIN; its target is the abort handler.
    XBegin,
    /// XEND.
    XEnd,
    /// XABORT.
    XAbort,
}

impl InstructionClass {
    pub(crate) fn from_iced(decoded: &Instruction) -> InstructionClass {
        let code = decoded.code();
        if code.is_jcc_short_or_near() || code.is_jcx_short() || code.is_loop() || code.is_loopcc()
        {
            return InstructionClass::Conditional;
        }
        if code.is_jmp_short_or_near() {
            return InstructionClass::Jump;
        }
        if code.is_call_near() {
            return InstructionClass::Call;
        }
        if code.is_jmp_near_indirect() {
            return InstructionClass::IndirectJump;
        }
        if code.is_call_near_indirect() {
            return InstructionClass::IndirectCall;
        }
        if code.is_jmp_far()
            || code.is_call_far()
            || code.is_jmp_far_indirect()
            || code.is_call_far_indirect()
        {
            return InstructionClass::FarTransfer;
        }
        match decoded.mnemonic() {
            Mnemonic::Ret => InstructionClass::Return,
            Mnemonic::Retf
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Sysret
            | Mnemonic::Sysretq
            | Mnemonic::Sysexit
            | Mnemonic::Sysexitq
            | Mnemonic::Uiret
            | Mnemonic::Erets
            | Mnemonic::Eretu => InstructionClass::FarTransfer,
            Mnemonic::Syscall | Mnemonic::Sysenter => InstructionClass::Syscall,
            Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Into => {
                InstructionClass::SoftwareInterrupt
            }
            Mnemonic::Vmlaunch | Mnemonic::Vmresume => InstructionClass::VmEntry,
            Mnemonic::Ptwrite => InstructionClass::PtWrite,
            Mnemonic::Vmptrld => InstructionClass::VmPtrLd,
            Mnemonic::Xbegin => InstructionClass::XBegin,
            Mnemonic::Xend => InstructionClass::XEnd,
            Mnemonic::Xabort => InstructionClass::XAbort,
            Mnemonic::Mov if decoded.op0_register() == Register::CR3 => InstructionClass::MovCr3,
            _ => InstructionClass::Other,
        }
    }

    /// A control transfer whose target is in the instruction itself and that always happens.
    pub const fn is_direct_transfer(self) -> bool {
        matches!(self, InstructionClass::Jump | InstructionClass::Call)
    }

    /// Anything that can go on elsewhere than at the next instruction.
    pub const fn is_branch(self) -> bool {
        matches!(
            self,
            InstructionClass::Conditional
                | InstructionClass::Jump
                | InstructionClass::Call
                | InstructionClass::IndirectJump
                | InstructionClass::IndirectCall
                | InstructionClass::Return
                | InstructionClass::FarTransfer
                | InstructionClass::Syscall
                | InstructionClass::SoftwareInterrupt
                | InstructionClass::VmEntry
        )
    }
}

pub(crate) fn direct_target(decoded: &Instruction, class: InstructionClass) -> u64 {
    match class {
        InstructionClass::Conditional
        | InstructionClass::Jump
        | InstructionClass::Call
        | InstructionClass::XBegin => decoded.near_branch_target(),
        _ => 0,
    }
}

pub(crate) fn is_repeated_string_instruction(decoded: &Instruction) -> bool {
    (decoded.has_rep_prefix() || decoded.has_repne_prefix()) && decoded.is_string_instruction()
}

pub(crate) fn inhibits_interrupts_after_it(decoded: &Instruction) -> bool {
    let to_ss = decoded.op0_kind() == OpKind::Register && decoded.op0_register() == Register::SS;
    to_ss && matches!(decoded.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
}

pub(crate) fn pushes_flags(decoded: &Instruction) -> bool {
    matches!(decoded.code(), Code::Pushfw | Code::Pushfd | Code::Pushfq)
}

pub(crate) fn pops_flags(decoded: &Instruction) -> bool {
    matches!(
        decoded.mnemonic(),
        Mnemonic::Popf
            | Mnemonic::Popfd
            | Mnemonic::Popfq
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
    )
}

pub(crate) fn pops_16_bit_flags(decoded: &Instruction) -> bool {
    matches!(decoded.code(), Code::Retnw | Code::Retnw_imm16)
}
