//! The packets of one stream, in order: what each does to the state of tracing.
//!
//! | state      | what is known                                  | left by                                             |
//! |------------|------------------------------------------------|-----------------------------------------------------|
//! | `Lost`     | nothing                                        | TIP.PGE, PSB+; if the packets are whole, other IPs  |
//! | `Overflow` | OVF came, and nothing but timing since         | FUP (also that of MODE.TSX), TIP.PGE, PSB+          |
//! | `Off`      | PacketEn is 0                                  | TIP.PGE, PSB+ with FUP                              |
//! | `PsbOn`    | a PSB+ gave the IP; nothing followed yet       | the next packet that moves the program              |
//! | `On`       | the walker is where the program is             | TIP.PGD, FUP, OVF, errors                           |
//! | `Async`    | an event struck at a FUP; its target is to come| TIP, TIP.PGD, TIP.PGE (INIT)                        |
//! | `Elsewhere`| the turn is another thread's (module `turns`)  | TIP.PGD, OVF; in a turn that is followed any IP     |
//!
//! Where the code is not there, the packets are whole, and the next IP says where the program is, a TIP's not always
//! (module `deferral`): a compressed RET to a call that was lost is then an error. Where packets contradict the code or
//! each other, bytes may be missing: what follows may be read in the wrong places or with a wrong LastIP, so that only
//! a PSB helps, or that tracing goes off and on. Not so in the kernel, which patches its code, and where threads take
//! turns, so that it may be the code of another. After bad bytes it is a PSB alone. Between OVF and its FUP come only
//! timing packets (section 33.3.8): a FUP after anything else is none of the OVF's.

mod carry;
mod corrupt;
mod deferral;
mod dispatch;
mod doubt;
mod fast;
mod flow;
mod group;
mod held;
mod later;
mod mode;
mod note;
mod scan;
mod state;
mod turns;

pub(crate) use carry::Carry;
pub use state::Decoder;
