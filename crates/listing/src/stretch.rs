//! The text of a stretch of code, made once.

use std::fmt::Write;

use rtit_flow::RunFragment;
use rtit_image::View;

use crate::layout::{Field, Layout};
use crate::names::{Cursor, Found, Readable};

/// Stands in a line where its time goes; no name has it.
const TIME: char = '\0';

/// Instructions that follow each other in memory, as lines.
pub(crate) struct Stretch {
    lengths: Box<[u8]>,
    /// The bytes that the text was made from, if it tells of them.
    code: Box<[u8]>,
    start: u64,
    text: Box<str>,
    /// Where the lines of the instructions up to each end, and how many lines these are.
    ends: Box<[(u32, u32)]>,
}

impl Stretch {
    pub(crate) fn new(
        fragment: &RunFragment<'_>,
        layout: &Layout,
        view: &View,
        names: &Cursor,
        readable: &mut Readable,
    ) -> Stretch {
        let code = match layout.has(Field::Asm) {
            true => code(view, fragment.start, fragment.lengths),
            false => Box::default(),
        };
        let mut text = String::new();
        let mut ends = Vec::new();
        let mut ip = fragment.start;
        let (mut at, mut lines) = (0, 0);
        for &length in fragment.lengths {
            let bytes = code.get(at..).unwrap_or(&[]);
            let bytes = bytes.get(..usize::from(length)).unwrap_or(bytes);
            let found = names.find(ip);
            if layout.wanted.takes(fragment.space, ip, names.now()) {
                line(&mut text, layout, ip, found, readable, || {
                    rtit_x86::format(bytes, ip, fragment.mode)
                });
                lines += 1;
            }
            ends.push((text.len() as u32, lines));
            at += usize::from(length);
            ip = ip.wrapping_add(length.into());
        }
        Stretch {
            lengths: fragment.lengths.into(),
            code,
            start: fragment.start,
            text: text.into(),
            ends: ends.into(),
        }
    }

    /// Whether it is still what memory holds.
    pub(crate) fn holds(&self, fragment: &RunFragment<'_>, view: &View) -> bool {
        self.lengths.starts_with(fragment.lengths)
            && (self.code.is_empty() || self.code == code(view, self.start, &self.lengths))
    }

    /// Instructions.
    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Memory that it takes, about.
    pub(crate) fn cost(&self) -> usize {
        self.text.len() + self.code.len() + self.lengths.len() * 9 + 128
    }

    /// Bytes and lines of the first `count` instructions.
    pub(crate) fn extent(&self, count: usize) -> (usize, u64) {
        let last = count.checked_sub(1).and_then(|last| self.ends.get(last));
        last.map_or((0, 0), |&(end, lines)| (end as usize, lines.into()))
    }

    /// Appends the lines of the first `count` instructions, without the first `skip` and no more than `most`; how many.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        count: usize,
        skip: u64,
        most: u64,
        time: Option<u64>,
    ) -> u64 {
        let (end, lines) = self.extent(count);
        let most = most.min(lines.saturating_sub(skip));
        let text = self.text.get(..end).unwrap_or("");
        let text = if skip == 0 && most == lines {
            text
        } else {
            let first = after_line(text, skip);
            let rest = text.get(first..).unwrap_or("");
            rest.get(..after_line(rest, most)).unwrap_or("")
        };
        match time {
            None => out.extend_from_slice(text.as_bytes()),
            Some(time) => {
                let time = format!("{time:15}");
                let mut parts = text.split(TIME);
                out.extend_from_slice(parts.next().unwrap_or("").as_bytes());
                for part in parts {
                    out.extend_from_slice(time.as_bytes());
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
        most
    }
}

/// Where the text goes on after so many lines.
fn after_line(text: &str, lines: u64) -> usize {
    let count = usize::try_from(lines).unwrap_or(usize::MAX);
    let Some(last) = count.checked_sub(1) else {
        return 0;
    };
    let mut ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
    ends.nth(last).map_or(text.len(), |(at, _)| at + 1)
}

/// The bytes of a stretch, fewer if they are not all known.
fn code(view: &View, start: u64, lengths: &[u8]) -> Box<[u8]> {
    let size = lengths.iter().map(|&length| usize::from(length)).sum();
    let mut bytes = vec![0; size];
    let known = view.read_into(start, &mut bytes);
    bytes.truncate(known);
    bytes.into()
}

fn line(
    text: &mut String,
    layout: &Layout,
    ip: u64,
    found: Option<Found<'_>>,
    readable: &mut Readable,
    assembly: impl Fn() -> String,
) {
    let last = layout.fields.len().saturating_sub(1);
    for (index, field) in layout.fields.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        // writing to a string does not fail
        let _ = match field {
            Field::Ip => write!(text, "{ip:16x}"),
            Field::Tid => write!(text, "{:7}", layout.tid),
            Field::Time => {
                text.push(TIME);
                Ok(())
            }
            Field::Sym => {
                let from = text.len();
                readable.place(text, found, ip);
                let written = text.get(from..).map_or(0, |name| name.chars().count());
                let padding = if index == last { 0 } else { 32 };
                write!(text, "{:1$}", "", usize::saturating_sub(padding, written))
            }
            Field::Asm => {
                text.push_str(&assembly());
                Ok(())
            }
        };
    }
    text.push('\n');
}
