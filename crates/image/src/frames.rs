//! Bounds of functions from `.eh_frame`, which exceptions need: a stripped program has it, too.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice,
    RunTimeEndian, UnwindSection,
};
use object::read::elf::{FileHeader, SectionHeader};
use object::read::ReadRef;
use object::Endianness;

use crate::elf::{read_header, read_sections, section_by_name, ElfError};
use crate::symbols::LINKAGE_SECTIONS;

/// Bytes of a section that is read.
const MAX_SECTION: u64 = 1 << 28;
/// Descriptions that are read; a browser has half a million.
const MAX_FRAMES: usize = 1 << 21;

/// The addresses that a frame description is about, as in the file: a function, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRange {
    pub address: u64,
    pub size: u64,
}

type Reader<'data> = EndianSlice<'data, RunTimeEndian>;

/// Returns the ranges in the order of the section, except those of a procedure linkage table; all up to the first
/// entry that is malformed.
pub(crate) fn read_frames<'data, E, R>(data: R) -> Result<Vec<FrameRange>, ElfError>
where
    E: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let (header, endian) = read_header::<E, R>(data)?;
    let sections = read_sections(header, endian, data)?;
    let range_of_section = |name| {
        let section = section_by_name(&sections, endian, name)?;
        let address: u64 = section.sh_addr(endian).into();
        Some((
            address,
            address.checked_add(section.sh_size(endian).into())?,
        ))
    };
    let frames = section_by_name(&sections, endian, b".eh_frame");
    let frames = frames.filter(|frames| frames.sh_size(endian).into() <= MAX_SECTION);
    let bytes = frames.and_then(|frames| frames.data(endian, data).ok());
    let byte_order = match endian {
        Endianness::Little => RunTimeEndian::Little,
        Endianness::Big => RunTimeEndian::Big,
    };
    let mut section = EhFrame::new(bytes.unwrap_or(&[]), byte_order);
    section.set_address_size(if header.is_type_64() { 8 } else { 4 });
    let mut bases = BaseAddresses::default();
    for (name, set) in [
        (
            &b".eh_frame"[..],
            BaseAddresses::set_eh_frame as fn(_, _) -> _,
        ),
        (b".text", BaseAddresses::set_text),
        (b".got", BaseAddresses::set_got),
    ] {
        if let Some((address, _)) = range_of_section(name) {
            bases = set(bases, address);
        }
    }
    let stubs: Vec<_> = LINKAGE_SECTIONS
        .into_iter()
        .filter_map(range_of_section)
        .collect();
    let mut ranges = read_ranges(&section, &bases);
    ranges.retain(|range| {
        let is_stub = |&(start, end): &(u64, u64)| start <= range.address && range.address < end;
        !stubs.iter().any(is_stub)
    });
    Ok(ranges)
}

fn read_ranges(section: &EhFrame<Reader<'_>>, bases: &BaseAddresses) -> Vec<FrameRange> {
    // Many descriptions share a CIE, which can be as long as the section.
    let mut known: HashMap<EhFrameOffset, gimli::Result<CommonInformationEntry<Reader<'_>>>> =
        HashMap::new();
    let mut ranges = Vec::new();
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let frame = partial.parse(|section, bases, offset| {
            let cie = known.entry(offset);
            cie.or_insert_with(|| section.cie_from_offset(bases, offset))
                .clone()
        });
        if let Ok(frame) = frame {
            ranges.push(FrameRange {
                address: frame.initial_address(),
                size: frame.len(),
            });
        }
        if ranges.len() >= MAX_FRAMES {
            break;
        }
    }
    ranges
}
