//! Which line of source an instruction was made from, by DWARF.

use addr2line::gimli::{Dwarf, EndianSlice, Error, RunTimeEndian};
use addr2line::Context;
use object::{Object, ObjectSection};

/// Source file and line of the instruction at `address`, as the file numbers addresses; `data` is the whole ELF file.
/// `None` if it does not say, or has it in compressed sections: these are not read.
pub fn source_line(data: &[u8], address: u64) -> Option<(String, u32)> {
    let file = object::File::parse(data).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let dwarf = Dwarf::load(|id| -> Result<_, Error> {
        let section = file.section_by_name(id.name());
        let plain = section.and_then(|section| section.uncompressed_data().ok());
        let bytes = match plain {
            Some(std::borrow::Cow::Borrowed(bytes)) => bytes,
            _ => &[],
        };
        Ok(EndianSlice::new(bytes, endian))
    });
    let context = Context::from_dwarf(dwarf.ok()?).ok()?;
    let place = context.find_location(address).ok()??;
    Some((place.file?.to_owned(), place.line?))
}
