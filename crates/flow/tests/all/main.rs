//! Decoding of whole streams; one binary, since each compiles the decoders anew.

mod spaces;
mod streams;
mod support;
mod transitions;
