//! rtit-tracer
