//! A thread's path and its trace unit: blocks in, packets and the truth's runs out.
//!
//! Nothing here asks QEMU, the recorder or another thread: `Thread::look` is where others come in.
//!
//! * `block`: what is known of a translation block; `state`: the thread;
//! * `quiet`: the way of nearly all blocks; `blocks`: of those that make packets;
//! * `path`, `steps`: the truth; `watch`: where the next edge of the recording is;
//! * `traced`: how much of it all is traced.

pub(crate) mod block;
pub(crate) mod blocks;
pub(crate) mod path;
mod quiet;
pub(crate) mod state;
pub(crate) mod steps;
mod traced;
pub(crate) mod watch;
