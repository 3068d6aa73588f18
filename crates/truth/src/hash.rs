//! Runs, and the hash over instruction addresses: a polynomial in [`K`] over mixed addresses, modulo 2^64.
//!
//! The hash of a path does not depend on where the path is cut into runs.

/// The base of the polynomial.
pub const K: u64 = 0x9E37_79B9_7F4A_7C15;

const MIX: u64 = 0xBF58_476D_1CE4_E5B9;

/// K^n for common run lengths.
const SMALL: [u64; 256] = small_powers();

const fn small_powers() -> [u64; 256] {
    let mut powers = [1u64; 256];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = powers[n - 1].wrapping_mul(K);
        n += 1;
    }
    powers
}

/// Spreads an address over 64 bits.
#[inline]
pub const fn mix_address(ip: u64) -> u64 {
    let x = (ip ^ (ip >> 29)).wrapping_mul(MIX);
    x ^ (x >> 32)
}

/// Returns the hash of a path followed by the instruction at `ip`.
#[inline]
pub const fn extend_hash(hash: u64, ip: u64) -> u64 {
    hash.wrapping_mul(K).wrapping_add(mix_address(ip))
}

/// Returns K^n.
#[inline]
pub fn power_of_k(n: u64) -> u64 {
    if let Some(&known) = usize::try_from(n).ok().and_then(|n| SMALL.get(n)) {
        return known;
    }
    let (mut result, mut base, mut n) = (1u64, K, n);
    while n != 0 {
        if n & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        n >>= 1;
    }
    result
}

/// Returns the hash of a path followed by `n` instructions with the hash `next`.
#[inline]
pub fn combine_hashes(hash: u64, n: u64, next: u64) -> u64 {
    hash.wrapping_mul(power_of_k(n)).wrapping_add(next)
}

/// Hash and length of a run that grows by single instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunHash {
    pub instructions: u32,
    pub hash: u64,
}

impl RunHash {
    #[inline]
    pub fn push_instruction(&mut self, ip: u64) {
        self.hash = extend_hash(self.hash, ip);
        self.instructions = self.instructions.wrapping_add(1);
    }
}

/// Hash and length of a thread's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathHash {
    pub instructions: u64,
    pub hash: u64,
}

impl PathHash {
    #[inline]
    pub fn push_run(&mut self, run: &PathRun) {
        let n = u64::from(run.instructions);
        self.hash = combine_hashes(self.hash, n, run.hash);
        self.instructions = self.instructions.wrapping_add(n);
    }
}

/// Consecutive instructions in memory order.
///
/// In a decoded path, a run without instructions and with `hash` n marks a loop: the instructions at the `start`s of
/// the next n runs, which have no instructions either, may have been executed there any number of additional times, all
/// of them in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathRun {
    /// Address of the first instruction.
    pub start: u64,
    /// Number of instructions; a REP instruction counts once.
    pub instructions: u32,
    /// [`RunHash`](crate::RunHash) of their addresses.
    pub hash: u64,
}
