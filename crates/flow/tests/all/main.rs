//! Tests that decode whole streams. They are one binary, because each binary compiles the decoders again.

mod spaces;
mod streams;
mod support;
mod transitions;
