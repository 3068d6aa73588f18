//! Reading the guest's memory, which is our own: addresses are the same, but nothing says that they are mapped.

/// Fills `into` from `address` on; how many bytes were readable.
pub(crate) fn read(address: u64, into: &mut [u8]) -> usize {
    if into.is_empty() {
        return 0;
    }
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the kernel checks both ranges; `local` is ours to write.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    usize::try_from(count).unwrap_or(0)
}

pub(crate) fn word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// A string that ends with NUL, at most `limit` bytes long.
pub(crate) fn string(address: u64, limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < limit {
        let at = address.wrapping_add(text.len() as u64);
        // Up to the end of a page, so that the next one need not be there.
        let room = (4096 - (at & 4095) as usize)
            .min(256)
            .min(limit - text.len());
        let mut piece = [0u8; 256];
        let count = read(at, &mut piece[..room]);
        let piece = &piece[..count];
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            text.extend_from_slice(&piece[..end]);
            return Some(text);
        }
        if count < room {
            return None;
        }
        text.extend_from_slice(piece);
    }
    None
}

/// An array of pointers to strings that a null pointer ends.
pub(crate) fn strings(mut address: u64) -> Option<Vec<Vec<u8>>> {
    const LIMIT: usize = 8 << 20;
    let mut all = Vec::new();
    if address == 0 {
        return Some(all);
    }
    let mut size = 0;
    loop {
        let pointer = word(address)?;
        if pointer == 0 {
            return Some(all);
        }
        let text = string(pointer, LIMIT)?;
        size += text.len() + 9;
        if size > LIMIT {
            return None;
        }
        all.push(text);
        address = address.wrapping_add(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_our_own_is_read_and_bad_addresses_are_not() {
        let text = *b"some text\0";
        let at = text.as_ptr() as u64;
        assert_eq!(string(at, 100).as_deref(), Some(&text[..9]));
        assert_eq!(string(at, 4), None);
        assert_eq!((string(8, 100), word(8)), (None, None));
        let array = [at, at + 5, 0];
        let both = strings(array.as_ptr() as u64).unwrap();
        assert_eq!(both, [b"some text".to_vec(), b"text".to_vec()]);
        assert_eq!(strings(0), Some(Vec::new()));
        assert_eq!(strings(16), None);
    }
}
