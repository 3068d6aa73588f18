//! Kinds and flags of records. Generated: `python -m rtit.capture.rust_events`.

macro_rules! kinds {
    ($name:ident { $($kind:ident = $number:literal,)* }) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($kind = $number,)*
        }

        impl From<$name> for u8 {
            fn from(kind: $name) -> u8 {
                kind as u8
            }
        }

        impl $name {
            /// Returns the kind with this number.
            pub fn from_u8(number: u8) -> Option<$name> {
                match number {
                    $($number => Some($name::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! { EventKind {
    Conditional = 1,
    Jump = 2,
    Call = 3,
    IndirectJump = 4,
    IndirectCall = 5,
    Return = 6,
    Far = 7,
    Syscall = 8,
    Interrupt = 9,
    Fault = 10,
    SoftInt = 11,
    Resume = 12,
    Switch = 13,
    Thread = 14,
    Exit = 15,
    Exec = 16,
    Comm = 17,
    Mmap = 18,
    Code = 19,
    Warning = 20,
    End = 21,
}}

kinds! { ResumeReason {
    SystemCall = 0,
    Handler = 1,
    Exec = 2,
    Thread = 3,
    Other = 4,
}}

kinds! { MessageKind {
    Hello = 40,
    Packets = 41,
    Truth = 42,
    Traced = 43,
    Counts = 44,
    Module = 45,
    Mapping = 46,
    NewProcess = 47,
    ThreadName = 48,
    Compared = 49,
}}

/// Bits of a record's flags. Each name begins with the kind of the record.
pub mod flag {
    pub const CONDITIONAL_TAKEN: u8 = 1;
    pub const FAR_TO_32_BIT: u8 = 1;
    pub const RESUME_32_BIT: u8 = 128;
    pub const SWITCH_IN_USER: u8 = 1;
    pub const SWITCH_TURNS_ON: u8 = 2;
    pub const SWITCH_TURNS_OFF: u8 = 4;
    pub const THREAD_SHARES_MEMORY: u8 = 1;
    pub const THREAD_UNTRACED: u8 = 2;
    pub const EXIT_DETACHED: u8 = 1;
    pub const EXIT_TOOK_SIGNAL: u8 = 2;
    pub const EXIT_WHOLE_PROCESS: u8 = 4;
    pub const COMM_BY_EXEC: u8 = 1;
    pub const MMAP_WITH_CONTENTS: u8 = 1;
    pub const CODE_OF_MAPPING: u8 = 1;
    pub const WARNING_LEAVES: u8 = 2;
    pub const WARNING_STAYS: u8 = 4;
    pub const WARNING_UNCOUNTED: u8 = 8;
    pub const END_KILLED: u8 = 1;
    pub const PACKETS_CONTINUE: u8 = 1;
}
