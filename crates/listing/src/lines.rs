//! The lines of a listing: one for each instruction, with the columns of a [`LineFormat`].
//!
//! [`ListingSink`] is a sink. It keeps which ranges of code ran, not their text, so that a packet that stands for
//! millions of instructions takes little memory. The text of a range is rendered once, and cached until memory or names
//! change.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

use rtit_flow::{AddressMap, Event, RunEnd, RunFragment, Sink};
use rtit_image::{ChangedCode, SpaceView};

use crate::names::{NameCursor, NameFormatter};

/// Bytes of cached text; the cache is emptied when it has more.
const MAX_CACHED: usize = 1 << 25;
/// Stands in a rendered line for the time; no name has it.
const TIME_MARK: char = '\0';
/// Symbol names are padded to this many characters, except at the end of a line.
const NAME_WIDTH: usize = 32;

/// A column of the listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListingColumn {
    Tid,
    Time,
    Ip,
    Sym,
    Asm,
}

impl ListingColumn {
    pub const ALL: [ListingColumn; 5] = [
        ListingColumn::Ip,
        ListingColumn::Tid,
        ListingColumn::Time,
        ListingColumn::Sym,
        ListingColumn::Asm,
    ];

    pub const fn column_name(self) -> &'static str {
        match self {
            ListingColumn::Tid => "tid",
            ListingColumn::Time => "time",
            ListingColumn::Ip => "ip",
            ListingColumn::Sym => "sym",
            ListingColumn::Asm => "asm",
        }
    }
}

/// TSC to nanoseconds: zero + (tsc * mult >> shift), modulo 2^64, as in perf's TIME_CONV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeScale {
    pub shift: u16,
    pub mult: u32,
    pub zero: u64,
}

impl TimeScale {
    pub fn tsc_to_nanoseconds(self, tsc: u64) -> u64 {
        let scaled = u128::from(tsc) * u128::from(self.mult);
        let scaled = scaled.checked_shr(self.shift.into()).unwrap_or(0);
        self.zero.wrapping_add(scaled as u64)
    }
}

/// Addresses from `start` to before `end`, from time `since` to before `until` (TSC).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressPeriod {
    pub start: u64,
    pub end: u64,
    pub since: u64,
    pub until: u64,
}

/// Which instructions are listed.
#[derive(Clone, Debug)]
pub struct InstructionFilter {
    /// Those in any of these, for each address space by its number; `None`: all.
    pub periods: Option<Vec<Vec<AddressPeriod>>>,
    /// Those whose run began within: the first and the last TSC value.
    pub times: (u64, u64),
    /// Those from the first number up to, but not including, the second; the instructions of the stream count from 0.
    pub indexes: (u64, u64),
    /// Of these only so many, the last ones.
    pub tail: Option<u64>,
}

impl InstructionFilter {
    /// Returns the first time after `time` at which a period begins or ends.
    fn next_period_change(&self, time: u64) -> u64 {
        let periods = self.periods.iter().flatten().flatten();
        let changes = periods.flat_map(|period| [period.since, period.until]);
        let later = changes.filter(|&change| change > time);
        later.min().unwrap_or(u64::MAX)
    }

    /// Whether an instruction is in one of the periods.
    fn includes_instruction(&self, space: u32, ip: u64, time: u64) -> bool {
        let includes = |period: &AddressPeriod| {
            (period.start..period.end).contains(&ip) && (period.since..period.until).contains(&time)
        };
        self.periods.as_ref().is_none_or(|spaces| {
            let mut periods = spaces.get(space as usize).into_iter().flatten();
            periods.any(includes)
        })
    }
}

/// The columns of a line, and which instructions have one.
#[derive(Clone, Debug)]
pub struct LineFormat {
    pub fields: Vec<ListingColumn>,
    pub tid: i64,
    pub scale: Option<TimeScale>,
    pub filter: InstructionFilter,
}

impl LineFormat {
    fn has_column(&self, field: ListingColumn) -> bool {
        self.fields.contains(&field)
    }

    /// Appends the line of the instruction with these bytes.
    fn write_line(
        &self,
        text: &mut String,
        fragment: &RunFragment<'_>,
        ip: u64,
        bytes: &[u8],
        names: &NameCursor,
        formatter: &mut NameFormatter,
    ) {
        let last = self.fields.len().saturating_sub(1);
        for (index, field) in self.fields.iter().enumerate() {
            if index > 0 {
                text.push(' ');
            }
            // writing to a string does not fail
            let _ = match field {
                ListingColumn::Ip => write!(text, "{ip:16x}"),
                ListingColumn::Tid => write!(text, "{:7}", self.tid),
                ListingColumn::Time => text.write_char(TIME_MARK),
                ListingColumn::Sym => {
                    let start = text.len();
                    formatter.write_address(text, names.find_name_of_address(ip), ip);
                    let written = text.get(start..).map_or(0, |name| name.chars().count());
                    let width = if index == last { 0 } else { NAME_WIDTH };
                    write!(text, "{:1$}", "", width.saturating_sub(written))
                }
                ListingColumn::Asm => {
                    text.write_str(&rtit_x86::format_instruction(bytes, ip, fragment.mode))
                }
            };
        }
        text.push('\n');
    }
}

/// The lines of instructions that follow each other in memory.
struct RenderedRange {
    start: u64,
    lengths: Box<[u8]>,
    /// The bytes of the instructions, if the text depends on them.
    code: Box<[u8]>,
    text: Box<str>,
    /// For each instruction, bytes and lines of the text up to its end.
    ends: Box<[(u32, u32)]>,
}

impl RenderedRange {
    fn new(
        fragment: &RunFragment<'_>,
        format: &LineFormat,
        view: &SpaceView,
        names: &NameCursor,
        formatter: &mut NameFormatter,
    ) -> RenderedRange {
        let code = match format.has_column(ListingColumn::Asm) {
            true => read_code(view, fragment.start, fragment.lengths),
            false => Box::default(),
        };
        let mut text = String::new();
        let mut ends = Vec::new();
        let (mut ip, mut at, mut lines) = (fragment.start, 0, 0);
        for &length in fragment.lengths {
            let bytes = code.get(at..).unwrap_or(&[]);
            let bytes = bytes.get(..usize::from(length)).unwrap_or(bytes);
            if format
                .filter
                .includes_instruction(fragment.space, ip, names.current_time())
            {
                format.write_line(&mut text, fragment, ip, bytes, names, formatter);
                lines += 1;
            }
            ends.push((text.len() as u32, lines));
            at += usize::from(length);
            ip = ip.wrapping_add(length.into());
        }
        RenderedRange {
            start: fragment.start,
            lengths: fragment.lengths.into(),
            code,
            text: text.into(),
            ends: ends.into(),
        }
    }

    /// Whether memory still has these instructions, and those of the fragment are among them.
    fn is_current(&self, fragment: &RunFragment<'_>, view: &SpaceView) -> bool {
        self.lengths.starts_with(fragment.lengths)
            && (self.code.is_empty() || self.code == read_code(view, self.start, &self.lengths))
    }

    /// Returns about how many bytes of memory this takes.
    fn size_in_bytes(&self) -> usize {
        self.text.len() + self.code.len() + self.lengths.len() * 9 + 128
    }

    /// Returns bytes and lines of the first `count` instructions.
    fn text_size_of_first(&self, count: usize) -> (usize, u64) {
        let last = count.checked_sub(1).and_then(|last| self.ends.get(last));
        last.map_or((0, 0), |&(end, lines)| (end as usize, lines.into()))
    }

    /// Appends the lines of the first `count` instructions, without the first `skip` lines and at most `max_lines`.
    /// Returns the number of lines.
    fn write_first_lines(
        &self,
        out: &mut Vec<u8>,
        count: usize,
        skip: u64,
        max_lines: u64,
        time: Option<u64>,
    ) -> u64 {
        let (end, lines) = self.text_size_of_first(count);
        let written = max_lines.min(lines.saturating_sub(skip));
        let mut text = self.text.get(..end).unwrap_or("");
        if skip > 0 || written < lines {
            text = text.get(offset_after_lines(text, skip)..).unwrap_or("");
            text = text.get(..offset_after_lines(text, written)).unwrap_or("");
        }
        match time {
            None => out.extend_from_slice(text.as_bytes()),
            Some(time) => {
                let time = format!("{time:15}");
                for (index, part) in text.split(TIME_MARK).enumerate() {
                    if index > 0 {
                        out.extend_from_slice(time.as_bytes());
                    }
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
        written
    }
}

/// Returns the offset in the text after so many lines.
fn offset_after_lines(text: &str, lines: u64) -> usize {
    let count = usize::try_from(lines).unwrap_or(usize::MAX);
    let Some(last) = count.checked_sub(1) else {
        return 0;
    };
    let mut ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
    ends.nth(last).map_or(text.len(), |(at, _)| at + 1)
}

/// Returns the bytes of instructions, fewer if they are not all known.
fn read_code(view: &SpaceView, start: u64, lengths: &[u8]) -> Box<[u8]> {
    let size = lengths.iter().map(|&length| usize::from(length)).sum();
    let mut bytes = vec![0; size];
    let known = view.read_bytes_into(start, &mut bytes);
    bytes.truncate(known);
    bytes.into()
}

/// The first `count` instructions of a range, which ran and are not yet written.
struct PendingRange {
    range: Arc<RenderedRange>,
    count: u32,
    /// TSC estimate at the start of its run.
    time: u64,
    lines: u64,
}

struct CachedRange {
    range: Arc<RenderedRange>,
    /// The generation of the code in which the range is known to be current.
    generation: u64,
}

/// An address space: its code, and the names in it.
struct ListedSpace {
    view: SpaceView,
    names: NameCursor,
    /// By address, for each mode.
    cache: [AddressMap<CachedRange>; 3],
}

/// The sink of a listing, which returns text in parts of bounded size.
pub struct ListingSink {
    format: LineFormat,
    /// By their numbers.
    spaces: Vec<ListedSpace>,
    formatter: NameFormatter,
    cached_bytes: usize,
    /// Counts changes of the code.
    generation: u64,
    /// When a period of the filter begins or ends.
    filter_change: u64,
    pending: VecDeque<PendingRange>,
    /// Lines of the first pending range that are already written.
    skip: u64,
    /// Of all pending ranges.
    bytes: usize,
    lines: u64,
    /// Bytes and lines at which decoding pauses.
    limits: (usize, u64),
    /// Instructions of the stream so far.
    executed: u64,
    /// TSC estimate at the start of the current run.
    run: Option<u64>,
    /// The rest of the stream has no line.
    is_done: bool,
}

/// Text, and how many lines it is.
pub struct TextPart {
    pub text: Vec<u8>,
    pub lines: u64,
}

impl ListingSink {
    /// `spaces` are those that the flow is decoded with, in their order, with the names of each; one at least.
    pub fn new(format: LineFormat, spaces: Vec<(SpaceView, NameCursor)>) -> ListingSink {
        let space = |(view, names)| ListedSpace {
            view,
            names,
            cache: Default::default(),
        };
        ListingSink {
            spaces: spaces.into_iter().map(space).collect(),
            formatter: NameFormatter::default(),
            cached_bytes: 0,
            generation: 0,
            filter_change: format.filter.next_period_change(0),
            pending: VecDeque::new(),
            skip: 0,
            bytes: 0,
            lines: 0,
            limits: (1, 1),
            executed: 0,
            run: None,
            is_done: false,
            format,
        }
    }

    /// Decoding pauses when so many bytes or lines of text are pending. With `InstructionFilter::tail` it does not.
    pub fn set_pending_text_limits(&mut self, bytes: usize, lines: u64) {
        self.limits = (bytes.max(1), lines.max(1));
    }

    /// Whether no more line can follow, though the stream may go on.
    pub fn is_listing_complete(&self) -> bool {
        self.is_done
    }

    /// Returns the TSC estimate of the next pending line.
    pub fn next_line_time(&self) -> Option<u64> {
        self.pending.front().map(|first| first.time)
    }

    /// Returns pending text: about `bytes`, at most `lines`, and nothing later than `until`.
    pub fn take_text(&mut self, bytes: usize, lines: u64, until: u64) -> TextPart {
        let mut part = TextPart {
            text: Vec::with_capacity(self.bytes.min(bytes) + (1 << 12)),
            lines: 0,
        };
        while part.text.len() < bytes && part.lines < lines {
            let Some(first) = self.pending.front().filter(|first| first.time <= until) else {
                break;
            };
            let scale = self.format.scale;
            let time = scale.map_or(first.time, |scale| scale.tsc_to_nanoseconds(first.time));
            let time = self.format.has_column(ListingColumn::Time).then_some(time);
            let (count, max_lines) = (first.count as usize, lines - part.lines);
            let range = &first.range;
            let written =
                range.write_first_lines(&mut part.text, count, self.skip, max_lines, time);
            part.lines += written;
            self.lines -= written;
            self.skip += written;
            if self.skip >= first.lines {
                self.drop_first_range();
            }
        }
        part
    }

    fn drop_first_range(&mut self) {
        if let Some(first) = self.pending.pop_front() {
            self.bytes -= first.range.text_size_of_first(first.count as usize).0;
            self.skip = 0;
        }
    }

    /// Drops all but the last `count` lines.
    fn keep_last_lines(&mut self, count: u64) {
        while let Some(first) = self.pending.front() {
            let rest = first.lines - self.skip;
            if self.lines - rest < count {
                break;
            }
            self.lines -= rest;
            self.drop_first_range();
        }
        let excess = self.lines.saturating_sub(count);
        self.skip += excess;
        self.lines -= excess;
    }

    /// Returns the text of a fragment, from the cache if it is current; `None` if the space is unknown.
    fn render_fragment(&mut self, fragment: &RunFragment<'_>) -> Option<Arc<RenderedRange>> {
        let space = self.spaces.get_mut(fragment.space as usize)?;
        let cache = &mut space.cache[fragment.mode as usize];
        if let Some(found) = cache.get_mut(&fragment.start) {
            let is_current = match found.generation == self.generation {
                true => fragment.lengths.len() <= found.range.lengths.len(),
                false => found.range.is_current(fragment, &space.view),
            };
            if is_current {
                found.generation = self.generation;
                return Some(Arc::clone(&found.range));
            }
        }
        self.render_new_range(fragment)
    }

    #[cold]
    fn render_new_range(&mut self, fragment: &RunFragment<'_>) -> Option<Arc<RenderedRange>> {
        if self.cached_bytes > MAX_CACHED {
            self.clear_cache();
        }
        let space = self.spaces.get_mut(fragment.space as usize)?;
        let (view, names) = (&space.view, &space.names);
        let range = RenderedRange::new(fragment, &self.format, view, names, &mut self.formatter);
        let range = Arc::new(range);
        let cached = CachedRange {
            range: Arc::clone(&range),
            generation: self.generation,
        };
        let before = space.cache[fragment.mode as usize].insert(fragment.start, cached);
        self.cached_bytes += range.size_in_bytes();
        self.cached_bytes -= before.map_or(0, |before| before.range.size_in_bytes());
        Some(range)
    }

    fn clear_cache(&mut self) {
        for space in &mut self.spaces {
            space.cache = Default::default();
        }
        self.cached_bytes = 0;
    }
}

impl Sink for ListingSink {
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        let time = *self.run.get_or_insert(time);
        let index = self.executed;
        self.executed += fragment.lengths.len() as u64;
        let filter = &self.format.filter;
        let (first_time, last_time) = filter.times;
        let (first, stop) = filter.indexes;
        self.is_done |= time > last_time || index >= stop;
        if self.is_done || time < first_time || self.executed <= first {
            return;
        }
        let count = fragment.lengths.len().min((stop - index) as usize);
        let skipped = first.saturating_sub(index) as usize;
        let Some(range) = self.render_fragment(fragment) else {
            return;
        };
        let (bytes, lines) = range.text_size_of_first(count);
        // Only the first selected fragment skips instructions: nothing is pending then.
        let (_, skipped) = range.text_size_of_first(skipped);
        if lines == skipped {
            return;
        }
        self.bytes += bytes;
        self.lines += lines - skipped;
        self.skip += skipped;
        self.pending.push_back(PendingRange {
            range,
            count: count as u32,
            time,
            lines,
        });
        if let Some(count) = self.format.filter.tail {
            self.keep_last_lines(count);
        }
    }

    fn end_run(&mut self, _end: RunEnd, _offset: u64) {
        self.run = None;
    }

    fn add_event(&mut self, _event: &Event) {}

    fn set_code_time(&mut self, time: u64) {
        let mut has_changed = time >= self.filter_change;
        for space in &mut self.spaces {
            has_changed |= space.names.advance_to_time(time);
            if space.view.advance_to_time(time) != ChangedCode::None {
                self.generation += 1;
            }
        }
        if has_changed {
            self.filter_change = self.format.filter.next_period_change(time);
            self.clear_cache();
        }
    }

    fn is_full(&self) -> bool {
        let (bytes, lines) = self.limits;
        let is_enough = self.bytes >= bytes || self.lines >= lines;
        self.is_done || is_enough && self.format.filter.tail.is_none()
    }
}
