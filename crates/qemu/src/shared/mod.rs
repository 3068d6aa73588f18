//! What the threads of the process share, and the process with the recorder.
//!
//! * `state`: all of it, behind one lock where it changes; `threads`: which thread runs where;
//! * `config`, `environment`: what the recorder asked for; `window`, `ranges`: where is traced;
//! * `space`, `maps`: the code bytes that a decoder will have; `code`: blocks, and what is told of them;
//! * `ring`: blocks that a thread has run and that another is to follow;
//! * `tally`: how often blocks ran, where that is counted;
//! * `handlers`: signal handlers; `clock`, `link`: words and messages between the processes; `descriptor`: files that
//!   are not the program's.

pub(crate) mod clock;
pub(crate) mod code;
pub(crate) mod config;
pub(crate) mod descriptor;
pub(crate) mod environment;
pub(crate) mod handlers;
pub(crate) mod link;
pub(crate) mod maps;
pub(crate) mod ranges;
pub(crate) mod ring;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod tally;
pub(crate) mod threads;
pub(crate) mod window;
