//! Steps: whole packets looked up instead of walked.
//!
//! A step takes the program from the start of a node to the start of another by one packet: (node, short TNT) or
//! (node, TIP). It is made by `path`, once, over the nodes and links of the walker; the next time the packet comes there,
//! a kernel looks it up. A compressed RET whose call came in an earlier packet is a step of its own, (node, call site),
//! which the kernel takes in the midst of a TNT: `rest` is then what is left of the byte.
//!
//! Where the same packets come again and again, several of them are a step together, a phrase, looked up by their bytes.
//!
//! What must hold:
//!
//! 1. A step exists only if its whole path can be followed. Whatever is an error or an event, or waits for another packet,
//!    has no step: the walker takes the packet, and errors, ledger and events have one author.
//! 2. The kernel stops before a packet, or within a TNT before a RET whose step is missing; then the walker gets that RET
//!    and the rest of the byte. Return stack, LastIP, offset and node are at every stop what the walker would have.
//! 3. A step holds as long as no node on its path is dead. `forget` drops the steps of nodes that died; the node after a
//!    step may be dead, but no step begins there, and what fills a step refuses a dead node.
//! 4. Hits are added up before a step is replaced and before numbers of nodes become invalid.
//! 5. A return stack of 64 entries loses the oldest when calls go deeper, also those that return within a step: a step says
//!    how deep its calls go (`Deed::peak`), and none of a phrase's own calls falls off.
//! 6. A phrase is what its steps are one after the other: it is made of steps, at the place where the kernel would take
//!    them, and dropped with the nodes that it visits.
//!
//! Sinks that count have their hits in the entries of the tables; for those that want the order the kernel writes a log
//! of step numbers instead, and for those that want hits alone, stream after stream, it counts by number (`hits`). All are
//! expanded by the list of visits that a step keeps.

mod act;
mod add_up;
mod compose;
mod fill;
mod follow;
mod forget;
mod hits;
mod how;
mod kernel;
mod nodes;
mod path;
mod phrase;
mod store;
mod table;
mod visit;
mod weight;
mod wire;

pub(crate) use kernel::{Exit, Lane, Mark, AHEAD};
pub(crate) use path::results;
pub(crate) use store::Steps;
pub(crate) use table::{base_of, node_of};
pub(crate) use visit::Taken;
pub(crate) use weight::{Weights, MOST_SUMMED};
