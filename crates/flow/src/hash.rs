//! The hash over instruction pointers by which a path is compared with the truth, and a fast hasher for the code cache.

use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A sequence of IPs has h = h*K + mix(ip), wrapping; two sequences join as h1*K^n2 + h2.
pub const K: u64 = 0x9E37_79B9_7F4A_7C15;

#[inline]
pub const fn mix_address(ip: u64) -> u64 {
    let x = (ip ^ (ip >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

/// Hash and factor of the instructions from `start` whose lengths are given.
pub fn hash_fragment(start: u64, lengths: &[u8]) -> (u64, u64) {
    let (mut ip, mut hash, mut factor) = (start, 0u64, 1u64);
    for &length in lengths {
        hash = hash.wrapping_mul(K).wrapping_add(mix_address(ip));
        factor = factor.wrapping_mul(K);
        ip = ip.wrapping_add(u64::from(length));
    }
    (hash, factor)
}

/// For keys that are one address: a multiplication and a shift.
#[derive(Clone, Copy, Default, Debug)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix_address(self.0 ^ value);
    }
}

/// A set of addresses.
pub type AddressSet = std::collections::HashSet<u64, BuildHasherDefault<AddressHasher>>;

/// Anything by an address.
pub type AddressMap<V> = std::collections::HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// Counts by a key of a few numbers.
pub type CountsBy<K> = std::collections::HashMap<K, u64, BuildHasherDefault<AddressHasher>>;

pub(crate) fn add_to_count<K: Eq + Hash>(counts: &mut CountsBy<K>, key: K, count: u64) {
    *counts.entry(key).or_default() += count;
}
