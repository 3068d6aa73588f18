//! QEMU as a plugin sees it, and the registers, memory and signals of the program that it runs. Nothing here knows
//! about recording.

pub(crate) mod guest_state;
pub(crate) mod plugin_api;
pub(crate) mod signals;
