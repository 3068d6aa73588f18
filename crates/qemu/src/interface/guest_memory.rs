//! Reads the memory of the program. The plugin shares its address space, but an address may be unmapped: the kernel
//! copies and reports how far it got.

/// Fills `into` from `address` on and returns how many bytes were readable.
pub(crate) fn read_bytes(address: u64, into: &mut [u8]) -> usize {
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

pub(crate) fn read_u64(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read_bytes(address, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// Reads a string up to its NUL; None if it is unreadable or longer than `limit` bytes.
pub(crate) fn read_c_string(address: u64, limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < limit {
        let at = address.wrapping_add(text.len() as u64);
        // Up to the end of a page: the next page may be unmapped.
        let room = (4096 - (at & 4095) as usize)
            .min(256)
            .min(limit - text.len());
        let mut piece = [0u8; 256];
        let count = read_bytes(at, &mut piece[..room]);
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

/// Reads an array of pointers to strings, up to its null pointer (argv, envp).
pub(crate) fn read_string_array(mut address: u64) -> Option<Vec<Vec<u8>>> {
    const LIMIT: usize = 8 << 20;
    let mut all = Vec::new();
    if address == 0 {
        return Some(all);
    }
    let mut size = 0;
    loop {
        let pointer = read_u64(address)?;
        if pointer == 0 {
            return Some(all);
        }
        let text = read_c_string(pointer, LIMIT)?;
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
    fn unmapped_addresses_read_as_none() {
        let text = *b"some text\0";
        let at = text.as_ptr() as u64;
        assert_eq!(read_c_string(at, 100).as_deref(), Some(&text[..9]));
        assert_eq!(read_c_string(at, 4), None);
        assert_eq!((read_c_string(8, 100), read_u64(8)), (None, None));
        let array = [at, at + 5, 0];
        let both = read_string_array(array.as_ptr() as u64).unwrap();
        assert_eq!(both, [b"some text".to_vec(), b"text".to_vec()]);
        assert_eq!(read_string_array(0), Some(Vec::new()));
        assert_eq!(read_string_array(16), None);
    }
}
