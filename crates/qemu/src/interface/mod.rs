//! QEMU as a plugin sees it, and the memory and signals of the program that it runs. Nothing here knows about
//! recording.

pub(crate) mod cpu_state;
pub(crate) mod guest_memory;
pub(crate) mod plugin_api;
pub(crate) mod signals;
