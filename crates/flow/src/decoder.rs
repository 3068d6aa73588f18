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
//! If code is missing, the packets are whole. Decoding resumes at the next IP, at that of a TIP with exceptions (module
//! `deferral`). A compressed RET to a call that was lost is then an error. If packets contradict the code or each other,
//! bytes may be missing: the next packets may be parsed at the wrong places or with a wrong LastIP. Decoding resumes at a
//! PSB or a TIP.PGE. In the kernel, which patches its code, and where threads share a CPU, the code is more likely to be
//! wrong than the packets: decoding resumes at the next IP. After bad bytes it resumes at a PSB. Between OVF and its FUP
//! there are only timing packets (section 33.3.8): a FUP after any other packet does not belong to the OVF.

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
