//! The packets of one stream, in order: what each does to the state of tracing.
//!
//! | state      | what is known                                  | left by                                             |
//! |------------|------------------------------------------------|-----------------------------------------------------|
//! | `Lost`     | nothing                                        | TIP.PGE, PSB+                                       |
//! | `Overflow` | OVF came                                       | FUP (also that of MODE.TSX), TIP.PGE, PSB+          |
//! | `Off`      | PacketEn is 0                                  | TIP.PGE, PSB+ with FUP                              |
//! | `PsbOn`    | a PSB+ gave the IP; nothing followed yet       | the next packet that moves the program              |
//! | `On`       | the walker is where the program is             | TIP.PGD, FUP, OVF, errors                           |
//! | `Async`    | an event struck at a FUP; its target is to come| TIP, TIP.PGD, TIP.PGE (INIT)                        |
//!
//! After an error decoding goes on at an IP that needs nothing of what went before: TIP.PGE, the FUP after OVF, or
//! that of a PSB+. A TIP is not enough: compressed returns after it may go to calls that were lost.

mod corrupt;
mod dispatch;
mod fast;
mod flow;
mod group;
mod mode;
mod scan;
mod state;

pub use state::Decoder;
