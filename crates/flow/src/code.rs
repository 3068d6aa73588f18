//! Decoded code: nodes, their pieces and the links between them.
//!
//! A node is a superblock: direct jumps and calls are folded in, and it ends where a packet is needed (`Stop`). Its
//! pieces are the stretches of memory it runs through. Links are filled on first use. When code changes, the nodes that
//! overlap it become `Stop::Dead`; links to them stay, and whoever arrives at a dead node looks its address up again.

mod build;
mod cache;
mod learned;
mod link;
mod node;
mod pages;
mod tell;

pub(crate) use cache::Code;
pub use learned::Learned;
pub(crate) use node::{Node, Place, Stop, NO_NODE};
