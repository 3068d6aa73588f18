//! Builds nodes from instruction bytes.
//!
//! Most instructions are plain: their length follows from tables, and nothing else matters. They are appended in a loop
//! of their own; only the others are decoded in full. Bytes come from one section at a time; an instruction at the end
//! of a section is read from several, or from pages that the view loads on demand.

use super::{CodeCache, CodeNode, CodeRange, NearCall, NodeEnd, NO_NODE};
use crate::error::ErrorCause;
use crate::hash::{mix_address, K};
use crate::sink::RunEnd;
use rtit_image::SpaceView;
use rtit_x86::{
    decode, plain_length, CodeMode, Instruction, InstructionClass, UndecodableReason, MAX_LENGTH,
};

/// A node has at most this many instructions, so that no packet makes a node of unbounded size.
const MAX_INSTRUCTIONS: u32 = 512;

/// A node under construction: what has been appended to the arenas since it was begun.
struct NodeBuilder {
    mode: CodeMode,
    first_code_range: usize,
    first_call: usize,
    instructions: u32,
    /// The code range that is still growing.
    code_range: CodeRange,
}

impl CodeCache {
    /// Decodes a node. An address without a single instruction is an error and adds nothing.
    pub(super) fn build_node(
        &mut self,
        view: &SpaceView,
        ip: u64,
        mode: CodeMode,
    ) -> Result<u32, ErrorCause> {
        let mut draft = NodeBuilder {
            mode,
            first_code_range: self.code_ranges.len(),
            first_call: self.calls.len(),
            instructions: 0,
            code_range: self.new_code_range(ip),
        };
        let (end, target, next) = self.decode_until_end(view, &mut draft, ip)?;
        if draft.code_range.count != 0 {
            self.code_ranges.push(draft.code_range);
        }
        let index = self.nodes.len() as u32;
        self.nodes.push(CodeNode {
            start: ip,
            target,
            next,
            taken: NO_NODE,
            fall: NO_NODE,
            instructions: draft.instructions,
            first_code_range: draft.first_code_range as u32,
            first_call: draft.first_call as u32,
            code_ranges: (self.code_ranges.len() - draft.first_code_range) as u16,
            calls: (self.calls.len() - draft.first_call) as u16,
            end,
            run_end: end.run_end_kind(),
            mode,
        });
        self.nodes_by_start[mode as usize].insert(ip, index);
        self.add_node_to_page_index(index);
        Ok(index)
    }

    /// Decodes up to the end of the node. Returns its kind, the branch target, and the address at which execution
    /// continues.
    fn decode_until_end(
        &mut self,
        view: &SpaceView,
        draft: &mut NodeBuilder,
        ip: u64,
    ) -> Result<(NodeEnd, u64, u64), ErrorCause> {
        let mut reader = InstructionReader {
            view,
            bytes: &[],
            start: 0,
        };
        let mut at = ip;
        loop {
            if draft.mode == CodeMode::Bits64 {
                at = self.append_plain_instructions(draft, reader.remaining_bytes(at), at);
            }
            if draft.instructions >= MAX_INSTRUCTIONS {
                return Ok((NodeEnd::Full, 0, at));
            }
            let instruction = match reader.decode_instruction(at, draft.mode) {
                Ok(instruction) => instruction,
                Err(cause) if draft.instructions == 0 => return Err(cause),
                Err(_) => return Ok((NodeEnd::Unknown, 0, at)),
            };
            self.append_instruction(draft, instruction.ip, instruction.length);
            let next = instruction.next_address();
            let end = match instruction.class {
                InstructionClass::Jump | InstructionClass::Call => {
                    self.end_code_range(draft, &instruction);
                    at = draft.mode.truncate_ip(instruction.target);
                    draft.code_range = self.new_code_range(at);
                    let own = &self.code_ranges[draft.first_code_range..];
                    if own.iter().any(|code_range| code_range.start == at) {
                        return Ok((NodeEnd::Loop, 0, at));
                    }
                    continue;
                }
                InstructionClass::Conditional => NodeEnd::Conditional,
                InstructionClass::IndirectJump => NodeEnd::IndirectJump,
                InstructionClass::IndirectCall => {
                    self.add_near_call(draft, &instruction);
                    NodeEnd::IndirectCall
                }
                InstructionClass::Return if instruction.narrow => NodeEnd::NarrowReturn,
                InstructionClass::Return => NodeEnd::Return,
                InstructionClass::FarTransfer => NodeEnd::Far,
                InstructionClass::Syscall => NodeEnd::Syscall,
                InstructionClass::SoftwareInterrupt => NodeEnd::SoftwareInterrupt,
                InstructionClass::VmEntry => NodeEnd::VmEntry,
                InstructionClass::MovCr3 => NodeEnd::MovCr3,
                InstructionClass::PtWrite => NodeEnd::PtWrite,
                InstructionClass::Other
                | InstructionClass::VmPtrLd
                | InstructionClass::XBegin
                | InstructionClass::XEnd
                | InstructionClass::XAbort => {
                    // the end of the address space: the next instruction is not in memory order
                    if next < at {
                        return Ok((NodeEnd::Full, 0, next));
                    }
                    at = next;
                    continue;
                }
            };
            return Ok((end, draft.mode.truncate_ip(instruction.target), next));
        }
    }

    fn new_code_range(&self, start: u64) -> CodeRange {
        let first_length = self.lengths.len() as u32;
        CodeRange {
            start,
            last: start,
            hash: 0,
            factor: 1,
            first_length,
            count: 0,
            run_end: RunEnd::Cut,
        }
    }

    /// Appends the plain instructions at the start of `bytes`. Returns the address after them.
    fn append_plain_instructions(
        &mut self,
        draft: &mut NodeBuilder,
        mut bytes: &[u8],
        mut at: u64,
    ) -> u64 {
        while let Some(first) = bytes.first_chunk() {
            let length = plain_length(first);
            let next = at.wrapping_add(length as u64);
            // not plain, or the end of the address space
            if next <= at || draft.instructions >= MAX_INSTRUCTIONS {
                break;
            }
            self.append_instruction(draft, at, length as u8);
            at = next;
            bytes = bytes.get(length..).unwrap_or(&[]);
        }
        at
    }

    #[inline(always)]
    fn append_instruction(&mut self, draft: &mut NodeBuilder, ip: u64, length: u8) {
        self.lengths.push(length);
        let code_range = &mut draft.code_range;
        code_range.last = ip;
        code_range.count += 1;
        code_range.hash = code_range
            .hash
            .wrapping_mul(K)
            .wrapping_add(mix_address(ip));
        code_range.factor = code_range.factor.wrapping_mul(K);
        draft.instructions += 1;
    }

    /// Ends a code range with a direct jump or call.
    fn end_code_range(&mut self, draft: &mut NodeBuilder, instruction: &Instruction) {
        let calls = instruction.class == InstructionClass::Call;
        if calls && !instruction.is_call_to_next_instruction() {
            self.add_near_call(draft, instruction);
        }
        self.code_ranges.push(CodeRange {
            run_end: if calls { RunEnd::Call } else { RunEnd::Jump },
            ..draft.code_range.clone()
        });
    }

    /// Adds the call that ends the code range under construction.
    fn add_near_call(&mut self, draft: &NodeBuilder, instruction: &Instruction) {
        let code_range = (self.code_ranges.len() - draft.first_code_range) as u16;
        self.calls.push(NearCall {
            return_ip: instruction.next_address(),
            node: NO_NODE,
            code_range,
        });
    }
}

/// Reads instruction bytes, mostly from one section.
struct InstructionReader<'a> {
    view: &'a SpaceView,
    bytes: &'a [u8],
    start: u64,
}

impl InstructionReader<'_> {
    #[inline(always)]
    fn decode_instruction(&mut self, ip: u64, mode: CodeMode) -> Result<Instruction, ErrorCause> {
        let rest = self.remaining_bytes(ip);
        if rest.len() >= MAX_LENGTH {
            return decode(rest, ip, mode).map_err(|error| decode_error_cause(error, ip));
        }
        self.decode_across_sections(ip, mode)
    }

    #[cold]
    fn decode_across_sections(
        &mut self,
        ip: u64,
        mode: CodeMode,
    ) -> Result<Instruction, ErrorCause> {
        // the end of a section: the rest may be in the next one, or in a page that is not loaded yet
        let mut bytes = [0; 16];
        loop {
            let count = self.view.read_instruction_bytes(ip, &mut bytes);
            let known = bytes.get(..count).unwrap_or(&[]);
            let decoded = match known {
                [] => Err(UndecodableReason::Truncated),
                _ => decode(known, ip, mode),
            };
            let more = matches!(decoded, Err(UndecodableReason::Truncated)) && count < MAX_LENGTH;
            let missing = ip.checked_add(count as u64).filter(|_| more);
            if !missing.is_some_and(|address| self.view.request_page(address)) {
                return decoded.map_err(|error| decode_error_cause(error, ip));
            }
        }
    }

    /// Returns the bytes of its section from `ip` on.
    #[inline(always)]
    fn remaining_bytes(&mut self, ip: u64) -> &[u8] {
        let at = |start: u64| usize::try_from(ip.wrapping_sub(start)).unwrap_or(usize::MAX);
        match self.bytes.get(at(self.start)..) {
            Some(rest) if rest.len() >= MAX_LENGTH => {}
            _ => {
                self.bytes = self.view.section_bytes(ip).unwrap_or(&[]);
                self.start = ip;
            }
        }
        self.bytes.get(at(self.start)..).unwrap_or(&[])
    }
}

fn decode_error_cause(error: UndecodableReason, ip: u64) -> ErrorCause {
    match error {
        UndecodableReason::Truncated => ErrorCause::Unmapped { ip },
        UndecodableReason::Invalid => ErrorCause::Undecodable { ip },
    }
}

#[cfg(test)]
mod tests {
    use rtit_image::Space;

    use super::*;

    /// None is a branch in any mode; some are plain and some are not.
    const CODE: &[u8] = &[
        0x90, 0x48, 0x89, 0xe5, 0x0f, 0xb6, 0x84, 0x24, 1, 2, 3, 4, 0x9c, 0x66, 0x81, 0x04, 0x25,
        1, 2, 3, 4, 5, 6, 0xf0, 0x0f, 0xb1, 0x0a, 0x50, 0x90, 0xc5, 0xf8, 0x77, 0xf3, 0xa4, 0x48,
        0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0x67, 0x8b, 0x00, 0xf6, 0x05, 1, 2, 3, 4, 5, 0xd9, 0xe8,
    ];

    /// The lengths of its instructions, why it ends and where.
    type NodeSummary = (Vec<u8>, NodeEnd, u64);

    fn built_node(start: u64, sections: &[&[u8]], mode: CodeMode) -> NodeSummary {
        let (mut space, mut at) = (Space::new(), start);
        for &bytes in sections {
            space.map_bytes(0, at, bytes.into());
            at = at.wrapping_add(bytes.len() as u64);
        }
        let mut code = CodeCache::new(1 << 20, 0);
        let node = code
            .find_or_decode_node(&space.view_at_start(), start, mode)
            .expect("is mapped");
        let node = code.node_at(node);
        let code_ranges = code.code_ranges(node).iter();
        let lengths = code_ranges
            .flat_map(|code_range| code.instruction_lengths(code_range))
            .copied();
        (lengths.collect(), node.end, node.next)
    }

    /// One after the other, by the full decoder.
    fn expected_node(start: u64, bytes: &[u8], mode: CodeMode) -> NodeSummary {
        let (mut lengths, mut at) = (Vec::new(), 0);
        let end = loop {
            if lengths.len() == MAX_INSTRUCTIONS as usize {
                break NodeEnd::Full;
            }
            let ip = start.wrapping_add(at as u64);
            let rest = &bytes[at..bytes.len().min(at + MAX_LENGTH - 1)];
            let Ok(instruction) = decode(rest, ip, mode) else {
                break NodeEnd::Unknown;
            };
            assert_eq!(instruction.class, InstructionClass::Other, "{mode:?} {at}");
            lengths.push(instruction.length);
            at += usize::from(instruction.length);
        };
        (lengths, end, start.wrapping_add(at as u64))
    }

    #[test]
    fn node_does_not_depend_on_sections() {
        for mode in [CodeMode::Bits64, CodeMode::Bits32, CodeMode::Bits16] {
            let code = CODE.repeat(2);
            for cut in 1..code.len() {
                let (first, second) = code.split_at(cut);
                let third = second.split_at(second.len().min(3));
                for start in [0x1000, 0xffff_f000] {
                    let whole = expected_node(start, &code, mode);
                    assert_eq!(built_node(start, &[first, second], mode), whole, "{cut}");
                    let three = [first, third.0, third.1];
                    assert_eq!(built_node(start, &three, mode), whole, "{cut}");
                    let part = expected_node(start, first, mode);
                    assert_eq!(built_node(start, &[first], mode), part, "{cut}");
                }
            }
        }
    }

    #[test]
    fn node_has_at_most_512_instructions() {
        for plain in 500..530 {
            let mut code = vec![0x90; plain];
            code.extend(CODE.repeat(10));
            let start = 0x1000;
            let found = built_node(start, &[&code], CodeMode::Bits64);
            assert_eq!(found, expected_node(start, &code, CodeMode::Bits64));
            assert_eq!((found.0.len(), found.1), (512, NodeEnd::Full));
        }
    }

    /// The last byte of the address space is never known.
    #[test]
    fn node_ends_at_the_last_address() {
        for last in 1..40 {
            let code = [&CODE.repeat(2)[..], &vec![0x90; last]].concat();
            let start = (code.len() as u64).wrapping_neg();
            let (_, known) = code.split_last().expect("has bytes");
            let found = built_node(start, &[&code, CODE], CodeMode::Bits64);
            assert_eq!(
                found,
                expected_node(start, known, CodeMode::Bits64),
                "{last}"
            );
        }
    }
}
