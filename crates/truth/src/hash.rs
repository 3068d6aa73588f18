//! The hash over instruction addresses: a polynomial in [`K`] over mixed addresses, modulo 2^64.
//!
//! Being a polynomial it does not depend on where a path is cut into runs: the chain hash after n instructions is the
//! same for every way to split them.

use crate::Run;

/// The base of the polynomial.
pub const K: u64 = 0x9E37_79B9_7F4A_7C15;

const MIX: u64 = 0xBF58_476D_1CE4_E5B9;

/// K^n for the run lengths that nearly all programs have.
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

/// One address, spread over 64 bits.
#[inline]
pub const fn mix(ip: u64) -> u64 {
    let x = (ip ^ (ip >> 29)).wrapping_mul(MIX);
    x ^ (x >> 32)
}

/// The hash of a path followed by the instruction at `ip`.
#[inline]
pub const fn extend(hash: u64, ip: u64) -> u64 {
    hash.wrapping_mul(K).wrapping_add(mix(ip))
}

/// K^n.
#[inline]
pub fn power(n: u64) -> u64 {
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

/// The hash of a path followed by `n` instructions whose own hash is `next`.
#[inline]
pub fn combine(hash: u64, n: u64, next: u64) -> u64 {
    hash.wrapping_mul(power(n)).wrapping_add(next)
}

/// Hash and length of a run that grows by one instruction at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunHash {
    pub instructions: u32,
    pub hash: u64,
}

impl RunHash {
    #[inline]
    pub fn push(&mut self, ip: u64) {
        self.hash = extend(self.hash, ip);
        self.instructions = self.instructions.wrapping_add(1);
    }
}

/// Hash and length of a thread's path so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    pub instructions: u64,
    pub hash: u64,
}

impl Chain {
    #[inline]
    pub fn push(&mut self, run: &Run) {
        let n = u64::from(run.instructions);
        self.hash = combine(self.hash, n, run.hash);
        self.instructions = self.instructions.wrapping_add(n);
    }
}
