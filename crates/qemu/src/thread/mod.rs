//! A thread's path and its trace unit: blocks in, packets and the truth's runs out.
//!
//! Nothing here asks QEMU, the recorder or another thread: `Thread::look` is where others come in.
//!
//! * `block`: what is known of a translation block, `arena`: by a number; `state`: the thread;
//! * `quiet`: the way of nearly all blocks, `windows`: of those that have come before; `blocks`: of those that make
//!   packets;
//! * `path`, `steps`: the truth; `watch`: where the next edge of the recording is;
//! * `traced`: how much of it all is traced;
//! * `tally`, `counted`: how often each block ran, where that is all that is wanted.

pub(crate) mod arena;
pub(crate) mod block;
pub(crate) mod blocks;
mod counted;
pub(crate) mod path;
mod quiet;
pub(crate) mod state;
pub(crate) mod steps;
pub(crate) mod tally;
mod traced;
pub(crate) mod watch;
pub(crate) mod windows;
