//! Fast hash maps for addresses. Many programs choose their addresses freely, but none of them can choose the keys of
//! these maps without being recorded; a slow map only slows its own recording.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

#[derive(Clone, Copy, Default, Debug)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(29) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

pub type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;
pub type AddressSet = HashSet<u64, BuildHasherDefault<AddressHasher>>;
pub type PairMap<V> = HashMap<(u32, u32), V, BuildHasherDefault<AddressHasher>>;
