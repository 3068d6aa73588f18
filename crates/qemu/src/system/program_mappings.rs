//! The files that programs map, from the memory of the guest.
//!
//! The kernel calls `perf_event_mmap` for each new mapping, after exec with the new page table. The name of a page
//! table is its physical page. The kernel's structures have its address in the direct map of physical memory, which
//! starts at a random multiple of 1 GiB. The first mapping shows where: CR3 is then that of its page table.

use std::sync::atomic::{AtomicU64, Ordering};

use super::kernel_modules::{read_string, ReadMemory};
use crate::shared::config::ProgramLayout;

const EXECUTABLE: u64 = 4;
const PAGE_BITS: u32 = 12;
const DIRECT_MAP_ALIGNMENT: u64 = 1 << 30;
/// Directories and mounts above a file.
const MAX_DEPTH: u32 = 256;

/// Executable memory of a program.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ProgramMapping {
    pub(super) page_table: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// None: memory without a file.
    pub(super) file: Option<MappedFile>,
}

#[derive(PartialEq, Eq, Debug)]
pub(super) struct MappedFile {
    pub(super) path: Vec<u8>,
    /// The file offset of the start.
    pub(super) offset: u64,
    /// Whether it is in the initial file system (initramfs): the one that no other is mounted on.
    pub(super) is_initial: bool,
}

/// Where the direct map of physical memory starts; 0 while it is unknown.
#[derive(Default)]
pub(super) struct DirectMap(AtomicU64);

impl DirectMap {
    /// Returns the physical address of a page table, with the CR3 that it probably is; None if it is unknown.
    fn physical_address(&self, page_table: u64, cr3: u64) -> Option<u64> {
        // With page table isolation, the page after that of the kernel is the program's.
        let own = cr3 >> PAGE_BITS << PAGE_BITS;
        let start = page_table.wrapping_sub(own);
        if self.0.load(Ordering::Relaxed) == 0 && start % DIRECT_MAP_ALIGNMENT == 0 {
            self.0.store(start, Ordering::Relaxed);
        }
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            start => page_table.checked_sub(start),
        }
    }
}

/// Reads the structures of the kernel.
pub(super) struct ProgramReader<'a> {
    pub(super) layout: &'a ProgramLayout,
    pub(super) direct_map: &'a DirectMap,
    pub(super) cr3: u64,
    pub(super) read: ReadMemory<'a>,
}

impl ProgramReader<'_> {
    fn read_word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read)(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    fn field(&self, structure: u64, offset: u64) -> Option<u64> {
        self.read_word(structure.wrapping_add(offset))
    }

    /// Returns the physical address of the page table of a thread, a task_struct; None for threads of the kernel.
    pub(super) fn page_table_of_task(&self, task: u64) -> Option<u64> {
        match self.field(task, self.layout.task_memory)? {
            0 => None,
            memory => self.page_table_of_memory(memory),
        }
    }

    fn page_table_of_memory(&self, memory: u64) -> Option<u64> {
        let page_table = self.field(memory, self.layout.page_table)?;
        self.direct_map.physical_address(page_table, self.cr3)
    }

    /// Returns the mapping of a vm_area_struct if it is executable, and can be read.
    pub(super) fn read_mapping(&self, area: u64) -> Option<ProgramMapping> {
        let layout = self.layout;
        if self.field(area, layout.flags)? & EXECUTABLE == 0 {
            return None;
        }
        let file = match self.field(area, layout.file)? {
            0 => None,
            file => self.read_file(file, self.field(area, layout.file_page)? << PAGE_BITS),
        };
        Some(ProgramMapping {
            page_table: self.page_table_of_memory(self.field(area, layout.memory)?)?,
            start: self.field(area, layout.start)?,
            end: self.field(area, layout.end)?,
            file,
        })
    }

    /// Reads a struct file. None if it has no path, as shared memory.
    fn read_file(&self, file: u64, offset: u64) -> Option<MappedFile> {
        let layout = self.layout;
        let mut dentry = self.field(file, layout.file_dentry)?;
        let mut mount = self.field(file, layout.file_mount)?;
        let mut names = Vec::new();
        let mut is_initial = true;
        for _ in 0..MAX_DEPTH {
            if dentry != self.field(mount, layout.mount_root)? {
                let name = self.field(dentry, layout.name)?;
                names.push(read_string(name, self.read)?);
                let parent = self.field(dentry, layout.parent)?;
                if parent == dentry {
                    return None;
                }
                dentry = parent;
                continue;
            }
            let whole = mount.wrapping_sub(layout.mount);
            let parent = self.field(whole, layout.mount_parent)?;
            if parent == whole {
                names.push(Vec::new());
                names.reverse();
                return Some(MappedFile {
                    path: names.join(&b'/'),
                    offset,
                    is_initial,
                });
            }
            is_initial = false;
            dentry = self.field(whole, layout.mount_point)?;
            mount = parent.wrapping_add(layout.mount);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_8880_0000_0000;
    const CR3: u64 = 0x5000;

    fn layout() -> ProgramLayout {
        ProgramLayout {
            task_memory: 0x10,
            page_table: 0x18,
            start: 0,
            end: 8,
            file_page: 0x10,
            flags: 0x18,
            file: 0x20,
            memory: 0x28,
            file_mount: 0,
            file_dentry: 8,
            parent: 0,
            name: 8,
            mount: 0x20,
            mount_parent: 0,
            mount_point: 8,
            mount_root: 0x10,
            ..ProgramLayout::default()
        }
    }

    /// The file /mnt/run of two mounts, in an area at 0x100. The file at 0x700 is in the first mount.
    fn memory_of_a_program() -> Vec<u8> {
        let mut memory = vec![0; 4096];
        let mut write = |at: usize, words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            memory[at..at + bytes.len()].copy_from_slice(&bytes);
        };
        let root = BASE + 0x400;
        write(
            0x100,
            &[0x40_1000, 0x40_3000, 1, 5, BASE + 0x200, BASE + 0x300],
        );
        write(0x200, &[BASE + 0x620, BASE + 0x460]);
        write(0x300, &[0, 0, 0, BASE + CR3]);
        write(0x380, &[0, 0, BASE + 0x300]);
        // Dentries: the root, "mnt" in it, the root of the second mount, "run" in it.
        write(0x400, &[root, BASE + 0x500]);
        write(0x420, &[root, BASE + 0x510]);
        write(0x440, &[BASE + 0x440, BASE + 0x500]);
        write(0x460, &[BASE + 0x440, BASE + 0x520]);
        write(0x500, &[u64::from(b'/')]);
        write(0x510, &[u64::from_le_bytes(*b"mnt\0\0\0\0\0")]);
        write(0x520, &[u64::from_le_bytes(*b"run\0\0\0\0\0")]);
        // Mounts, which point at each other, and the struct vfsmount in them.
        write(0x580, &[BASE + 0x580, root]);
        write(0x5a0, &[0, 0, root]);
        write(0x600, &[BASE + 0x580, BASE + 0x420]);
        write(0x620, &[0, 0, BASE + 0x440]);
        write(0x700, &[BASE + 0x5a0, BASE + 0x420]);
        memory
    }

    fn read_in_program(memory: &[u8], area: u64, cr3: u64) -> Option<ProgramMapping> {
        let read = |address: u64, into: &mut [u8]| {
            let at = address.wrapping_sub(BASE) as usize;
            let found = memory.get(at..at.saturating_add(into.len()));
            found.map(|bytes| into.copy_from_slice(bytes)).is_some()
        };
        let reader = ProgramReader {
            layout: &layout(),
            direct_map: &DirectMap::default(),
            cr3,
            read: &read,
        };
        reader.read_mapping(area)
    }

    #[test]
    fn mapping_has_the_path_through_all_mounts() {
        let memory = memory_of_a_program();
        let file = |path: &[u8], is_initial| MappedFile {
            path: path.to_vec(),
            offset: 0x1000,
            is_initial,
        };
        let found = read_in_program(&memory, BASE + 0x100, CR3);
        let expected = ProgramMapping {
            page_table: CR3,
            start: 0x40_1000,
            end: 0x40_3000,
            file: Some(file(b"/mnt/run", false)),
        };
        assert_eq!(found, Some(expected));
        let mut in_first_mount = memory;
        in_first_mount[0x120..0x128].copy_from_slice(&(BASE + 0x700).to_le_bytes());
        let found = read_in_program(&in_first_mount, BASE + 0x100, CR3).and_then(|all| all.file);
        assert_eq!(found, Some(file(b"/mnt", true)));
    }

    #[test]
    fn mapping_that_is_not_executable_or_of_an_unknown_page_table_is_none() {
        let mut memory = memory_of_a_program();
        assert_eq!(read_in_program(&memory, BASE + 0x100, 0x7000), None);
        assert_eq!(read_in_program(&memory, 0, CR3), None);
        memory[0x118] = 1;
        assert_eq!(read_in_program(&memory, BASE + 0x100, CR3), None);
    }
}
