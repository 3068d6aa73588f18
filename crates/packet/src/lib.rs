//! rtit-packet
