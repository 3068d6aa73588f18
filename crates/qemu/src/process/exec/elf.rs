//! Whether the kernel would execute an ELF file: the loader that it names has to be there.

use std::fs::File;
use std::os::unix::fs::FileExt;

const EM_X86_64: [u8; 2] = [62, 0];
const ELFCLASS64: u8 = 2;
const PT_INTERP: u32 = 3;
const HEADER: usize = 64;
const SEGMENT: usize = 56;
/// The kernel takes no more than 64 KiB of program headers.
const MOST: usize = 65536 / SEGMENT;
const LONGEST: u64 = 4096;

/// What an ELF file is to us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Elf {
    /// A 64-bit x86-64 program, with the path of its loader if it has one.
    Program(Option<Vec<u8>>),
    /// A program of another kind.
    Foreign,
    /// The kernel will refuse it.
    Broken,
}

/// Looks at a file that begins as an ELF file does.
pub(crate) fn look_at(file: &File) -> Elf {
    let mut head = [0; HEADER];
    let whole = file.read_exact_at(&mut head, 0).is_ok();
    if head[4] != ELFCLASS64 || head[18..20] != EM_X86_64 {
        return Elf::Foreign;
    }
    match loader(file, &head) {
        Some(loader) if whole => Elf::Program(loader),
        _ => Elf::Broken,
    }
}

fn loader(file: &File, head: &[u8; HEADER]) -> Option<Option<Vec<u8>>> {
    let half = |at: usize| {
        Some(usize::from(u16::from_le_bytes(
            head.get(at..at + 2)?.try_into().ok()?,
        )))
    };
    let (size, count) = (half(54)?, half(56)?);
    if size != SEGMENT || !(1..=MOST).contains(&count) {
        return None;
    }
    let mut segments = vec![0; count * SEGMENT];
    file.read_exact_at(&mut segments, word(head, 32)?).ok()?;
    let is_loader = |segment: &&[u8]| segment.starts_with(&PT_INTERP.to_le_bytes());
    let Some(segment) = segments.chunks_exact(SEGMENT).find(is_loader) else {
        return Some(None);
    };
    let mut path = vec![0; word(segment, 32)?.min(LONGEST) as usize];
    file.read_exact_at(&mut path, word(segment, 8)?).ok()?;
    path.truncate(path.iter().position(|&byte| byte == 0)?);
    Some(Some(path))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_program_has_a_loader_that_exists() {
        let file = File::open("/proc/self/exe").unwrap();
        let Elf::Program(Some(loader)) = look_at(&file) else {
            panic!("{:?}", look_at(&file));
        };
        let path = String::from_utf8(loader).unwrap();
        assert!(std::path::Path::new(&path).is_file(), "{path}");
    }

    #[test]
    fn what_is_cut_off_is_broken() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let path = std::env::temp_dir().join(format!("rtit-elf-{}", std::process::id()));
        for (size, wanted) in [(18, Elf::Foreign), (63, Elf::Broken), (100, Elf::Broken)] {
            std::fs::write(&path, &whole[..size]).unwrap();
            assert_eq!(look_at(&File::open(&path).unwrap()), wanted, "{size}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
