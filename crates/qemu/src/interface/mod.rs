//! QEMU as it is to a plugin, and the program's memory and signals beneath it. Knows nothing of what is recorded.

pub(crate) mod api;
pub(crate) mod cpu;
pub(crate) mod defaults;
pub(crate) mod ignored;
pub(crate) mod memory;
mod real_time;
pub(crate) mod taken;
pub(crate) mod turn;
