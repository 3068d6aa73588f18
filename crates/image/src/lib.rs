//! rtit-image
