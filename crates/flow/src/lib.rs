//! rtit-flow
