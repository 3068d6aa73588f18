//! The program that makes the lines of a unit (DWARF 5, 6.2).

use gimli::{constants, DebugLineOffset, Dwarf, Format, Reader, Section};

use super::files::Files;
use super::unit::Unit;
use super::work::{Slice, Stop, Told, Work};

/// Addresses from `start` up to `end` were made from a line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub start: u64,
    pub end: u64,
    /// As the program numbers its files.
    pub file: u64,
    pub line: u32,
}

pub(crate) struct Program<'a> {
    version: u16,
    address_size: u8,
    format: Format,
    shortest: u64,
    /// Operations of an instruction.
    operations: u64,
    line_base: i64,
    line_range: u8,
    opcode_base: u8,
    /// How many operands each standard opcode has, from 1 on.
    operands: Slice<'a>,
    tables: Slice<'a>,
    code: Slice<'a>,
}

impl<'a> Program<'a> {
    pub fn read(
        dwarf: &Dwarf<Slice<'a>>,
        at: DebugLineOffset,
        unit: &Unit<'_>,
    ) -> Told<Program<'a>> {
        let mut input = *dwarf.debug_line.reader();
        input.skip(at.0)?;
        let (length, format) = input.read_initial_length()?;
        let mut input = input.split(length)?;
        let version = input.read_u16()?;
        let mut address_size = unit.address_size();
        match version {
            2..=4 => {}
            5 => {
                address_size = input.read_u8()?;
                input.skip(1)?;
            }
            _ => return Err(Stop::Broken),
        }
        let size = input.read_length(format)?;
        let mut header = input.split(size)?;
        let shortest = u64::from(header.read_u8()?);
        let operations = match version {
            4.. => u64::from(header.read_u8()?),
            _ => 1,
        };
        header.skip(1)?;
        let line_base = i64::from(header.read_i8()?);
        let (line_range, opcode_base) = (header.read_u8()?, header.read_u8()?);
        if operations == 0 || line_range == 0 || opcode_base == 0 {
            return Err(Stop::Broken);
        }
        Ok(Program {
            version,
            address_size,
            format,
            shortest,
            operations,
            line_base,
            line_range,
            opcode_base,
            operands: header.split(usize::from(opcode_base - 1))?,
            tables: header,
            code: input,
        })
    }

    /// The rows in their order: each reaches to the next of its sequence that has another address.
    pub fn rows(
        &self,
        work: &mut Work<'_>,
        mut each: impl FnMut(Row, &mut Work<'_>) -> Told<()>,
    ) -> Told<()> {
        let (mut input, mut state) = (self.code, State::default());
        let mut last: Option<Row> = None;
        while !input.is_empty() {
            let before = input.len();
            let told = state.step(&mut input, self)?;
            work.take((before - input.len()) as u64)?;
            if told == Step::Nothing {
                continue;
            }
            let row = Row {
                start: state.address,
                end: state.address,
                file: state.file,
                line: state.line as u32,
            };
            if !state.is_dead {
                if let Some(last) = last.filter(|last| last.start < row.start) {
                    let end = row.start;
                    each(Row { end, ..last }, work)?;
                }
                last = Some(row);
            }
            if told == Step::End {
                (last, state) = (None, State::default());
            }
        }
        Ok(())
    }

    /// Its tables of folders and files.
    pub fn files(&self) -> Files<'a> {
        Files::new(self.version, self.format, self.tables)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Nothing,
    Row,
    End,
}

/// The registers that lines are made of (6.2.2).
struct State {
    address: u64,
    operation: u64,
    file: u64,
    line: u64,
    /// The linker has left the code out: it has no address, or one that is lower than that before it.
    is_dead: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            address: 0,
            operation: 0,
            file: 1,
            line: 1,
            is_dead: false,
        }
    }
}

impl State {
    fn step(&mut self, input: &mut Slice<'_>, program: &Program<'_>) -> Told<Step> {
        let opcode = input.read_u8()?;
        if opcode >= program.opcode_base {
            let adjusted = opcode - program.opcode_base;
            let line = program.line_base + i64::from(adjusted % program.line_range);
            self.line = self.line.wrapping_add_signed(line);
            self.advance(u64::from(adjusted / program.line_range), program)?;
            return Ok(Step::Row);
        }
        match gimli::DwLns(opcode) {
            gimli::DwLns(0) => return self.extended(input, program),
            constants::DW_LNS_copy => return Ok(Step::Row),
            constants::DW_LNS_advance_pc => self.advance(input.read_uleb128()?, program)?,
            constants::DW_LNS_advance_line => {
                self.line = self.line.wrapping_add_signed(input.read_sleb128()?);
            }
            constants::DW_LNS_set_file => self.file = input.read_uleb128()?,
            constants::DW_LNS_const_add_pc => {
                let adjusted = 255 - program.opcode_base;
                self.advance(u64::from(adjusted / program.line_range), program)?;
            }
            constants::DW_LNS_fixed_advance_pc => {
                let more = u64::from(input.read_u16()?);
                self.moves(more, program)?;
                self.operation = 0;
            }
            constants::DW_LNS_set_column | constants::DW_LNS_set_isa => {
                input.read_uleb128()?;
            }
            constants::DW_LNS_negate_stmt
            | constants::DW_LNS_set_basic_block
            | constants::DW_LNS_set_prologue_end
            | constants::DW_LNS_set_epilogue_begin => {}
            _ => {
                let count = program.operands.slice().get(usize::from(opcode) - 1);
                for _ in 0..count.copied().unwrap_or(0) {
                    input.read_uleb128()?;
                }
            }
        }
        Ok(Step::Nothing)
    }

    fn extended(&mut self, input: &mut Slice<'_>, program: &Program<'_>) -> Told<Step> {
        let length = input.read_uleb128()?;
        let mut rest = input.split(usize::try_from(length).map_err(|_| Stop::Broken)?)?;
        match gimli::DwLne(rest.read_u8()?) {
            constants::DW_LNE_end_sequence => return Ok(Step::End),
            constants::DW_LNE_set_address => {
                let size = program.address_size;
                let address = rest.read_address(size)?;
                self.is_dead = address < self.address || address == largest(size);
                if !self.is_dead {
                    (self.address, self.operation) = (address, 0);
                }
            }
            _ => {}
        }
        Ok(Step::Nothing)
    }

    fn advance(&mut self, operations: u64, program: &Program<'_>) -> Told<()> {
        if program.operations == 1 {
            return self.moves(operations.wrapping_mul(program.shortest), program);
        }
        let operation = self.operation.wrapping_add(operations);
        self.operation = operation % program.operations;
        let whole = operation / program.operations;
        self.moves(whole.wrapping_mul(program.shortest), program)
    }

    fn moves(&mut self, bytes: u64, program: &Program<'_>) -> Told<()> {
        if !self.is_dead {
            let address = self.address.checked_add(bytes);
            let address = address.filter(|address| *address <= largest(program.address_size));
            self.address = address.ok_or(Stop::Broken)?;
        }
        Ok(())
    }
}

/// The last address of so many bytes.
fn largest(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}
