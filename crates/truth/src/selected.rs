//! The part of a truth file that address filters let through.

use std::io::Read;

use crate::{Error, Item, Range, Reader, Run, Selector};

/// The runs of one thread that were traced, as a file tells them: what it says of ranges and of TraceEn counts.
pub struct Selected<R: Read> {
    reader: Reader<R>,
    tid: u32,
    selector: Selector,
    /// What the recording's filters give: a file that says otherwise is wrong.
    filters: Vec<(u64, u64)>,
    stops: Vec<(u64, u64)>,
}

impl<R: Read> Selected<R> {
    /// `filters` and `stops` hold from the beginning, unless the file has ranges of the thread.
    pub fn new(
        reader: Reader<R>,
        tid: u32,
        filters: Vec<(u64, u64)>,
        stops: Vec<(u64, u64)>,
    ) -> Self {
        Selected {
            reader,
            tid,
            selector: Selector::new(filters.clone(), stops.clone()),
            filters,
            stops,
        }
    }

    /// Each end must be that of a part of a mapping that a filter selects: neighbours are joined.
    fn gives(&self, range: &Range) -> bool {
        let known = match range.stop {
            true => &self.stops,
            false => &self.filters,
        };
        (range.first, range.last) == (0, 0)
            || known.iter().any(|&(first, _)| first == range.first)
                && known.iter().any(|&(_, last)| last == range.last)
    }
}

impl<R: Read> Iterator for Selected<R> {
    type Item = Result<Run, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.reader.next_item() {
                Ok(Some(Item::Run { tid, run })) if tid == self.tid => {
                    if self.selector.keeps(&run) {
                        return Some(Ok(run));
                    }
                }
                Ok(Some(Item::Range { tid, range })) if tid == self.tid => {
                    if !self.gives(&range) {
                        let (first, last) = (range.first, range.last);
                        return Some(Err(Error::Range { tid, first, last }));
                    }
                    self.selector.set(range);
                }
                Ok(Some(Item::Tracing { tid, on })) if tid == self.tid => self.selector.turn(on),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
