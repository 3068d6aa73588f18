//! rtit-truth
