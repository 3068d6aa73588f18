//! The packets of one stream, in order: what each does to the state of tracing.
//!
//! | state      | what is known                                  | left by                                             |
//! |------------|------------------------------------------------|-----------------------------------------------------|
//! | `Lost`     | nothing                                        | TIP.PGE, PSB+; if the packets are whole, any IP     |
//! | `Overflow` | OVF came, and nothing but timing since         | FUP (also that of MODE.TSX), TIP.PGE, PSB+          |
//! | `Off`      | PacketEn is 0                                  | TIP.PGE, PSB+ with FUP                              |
//! | `PsbOn`    | a PSB+ gave the IP; nothing followed yet       | the next packet that moves the program              |
//! | `On`       | the walker is where the program is             | TIP.PGD, FUP, OVF, errors                           |
//! | `Async`    | an event struck at a FUP; its target is to come| TIP, TIP.PGD, TIP.PGE (INIT)                        |
//! | `Elsewhere`| the turn is another thread's (module `turns`)  | TIP.PGD, OVF; in a turn that is followed any IP     |
//!
//! Where the code is not there or contradicts the packets, these are whole, and the next IP says where the program is: a
//! compressed RET to a call that was lost is then an error again. Not so where TIPs are deferred: results before the
//! TIP may be of branches after it. After bad bytes LastIP is not known, so that only a PSB helps. Between OVF and its
//! FUP come only timing packets (section 33.3.8): a FUP after anything else is none of the OVF's.

mod carry;
mod corrupt;
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
