//! Constants of the file format, shared by readers and writers.

pub const MAGIC: [u8; 12] = *b"rtit-truth\0\0";
pub const VERSION: u32 = 1;
pub const HEADER_SIZE: u64 = 16;
pub const RECORD_HEADER_SIZE: u64 = 8;
/// Bytes before the runs of a RUNS record: tid, count.
pub const RUNS_HEADER_SIZE: u32 = 8;
pub const RUN_SIZE: u32 = 24;

pub const THREAD: u32 = 1;
pub const RUNS: u32 = 2;
pub const CHECK: u32 = 3;
pub const END: u32 = 4;
pub const COMPLETE: u32 = 5;
pub const RANGE: u32 = 6;
pub const TRACING: u32 = 7;

/// The highest n of IA32_RTIT_ADDRn_A and _B; CPUID.(14H,1):EAX[2:0] is at most 4.
pub const MOST_RANGE: u32 = 3;
