//! An independent reader of the events: walks the code from event to event and compares with the truth file.
//!
//! Between two events of a thread execution is sequential. The walker decodes every instruction on that way from the
//! mapped files and the reported bytes, checks that no branch is passed and that each event fits its instruction, and
//! collects the runs. They must equal those that the tracer wrote from the stops it saw.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;

use rtit_tracer::event::flag;
use rtit_tracer::{Batch, EventKind, Record};
use rtit_truth::{compare, summarize, Outcome, Run, RunHash, ThreadRuns, TruthReader};
use rtit_x86::{decode, Class, Instruction, Mode};

const PAGE: u64 = 4096;

type Memory = Rc<RefCell<HashMap<u64, Rc<Vec<u8>>>>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Outside,
    At(u64),
}

struct Thread {
    pid: u64,
    place: Place,
    runs: Vec<Run>,
    start: u64,
    open: RunHash,
    total: u64,
}

#[derive(Default)]
pub struct Walker {
    threads: HashMap<u32, Thread>,
    memories: HashMap<u64, Memory>,
    files: HashMap<Vec<u8>, Rc<Vec<u8>>>,
    finished: BTreeMap<u32, Vec<Run>>,
    pub counts: BTreeMap<EventKind, u64>,
    pub warnings: Vec<String>,
    pub errors: Vec<String>,
    pub status: u64,
    pub killed: bool,
    pub clock: u64,
}

impl Walker {
    pub fn batch(&mut self, batch: &Batch) {
        for record in batch.iter() {
            let with_blob = matches!(
                record.kind,
                EventKind::Exec
                    | EventKind::Comm
                    | EventKind::Mmap
                    | EventKind::Code
                    | EventKind::Warning
            );
            let blob = if with_blob {
                &batch.blobs[record.extra as usize][..]
            } else {
                &[]
            };
            // Whether a program has changed so lately that its code is sent depends on the time of the day.
            if record.kind != EventKind::Code || record.flags & flag::CODE_OF_MAPPING == 0 {
                *self.counts.entry(record.kind).or_default() += 1;
            }
            if let Err(text) = self.record(&record, blob) {
                if self.errors.len() < 20 {
                    self.errors.push(format!("{text}: {record:x?}"));
                }
            }
        }
    }

    fn record(&mut self, record: &Record, blob: &[u8]) -> Result<(), String> {
        if record.clock < self.clock {
            return Err(format!("the clock was {:#x}", self.clock));
        }
        self.clock = record.clock;
        match record.kind {
            EventKind::Thread => return self.begin(record),
            EventKind::Exit => return self.finish(record),
            EventKind::Exec => {
                self.memories.insert(record.ip, Memory::default());
                return Ok(());
            }
            EventKind::Mmap => return self.map(record, blob),
            EventKind::Code => return self.poke(record, blob),
            EventKind::Warning => {
                self.warnings
                    .push(String::from_utf8_lossy(blob).into_owned());
                return Ok(());
            }
            EventKind::End => {
                self.status = record.ip;
                self.killed = record.flags & 1 == 1;
                return Ok(());
            }
            EventKind::Comm => return Ok(()),
            _ => {}
        }
        let mut thread = self.threads.remove(&record.tid).ok_or("no such thread")?;
        let memory = self.memories.get(&thread.pid).cloned().unwrap_or_default();
        let result = thread.step(record, &memory);
        self.threads.insert(record.tid, thread);
        result
    }

    fn begin(&mut self, record: &Record) -> Result<(), String> {
        let pid = record.ip;
        if !self.memories.contains_key(&pid) {
            let parent = self
                .memories
                .get(&record.extra)
                .cloned()
                .unwrap_or_default();
            let shares = record.flags & 1 == 1;
            let memory = if shares {
                parent
            } else {
                Rc::new(RefCell::new(parent.borrow().clone()))
            };
            self.memories.insert(pid, memory);
        }
        let thread = Thread {
            pid,
            place: Place::Outside,
            runs: Vec::new(),
            start: 0,
            open: RunHash::default(),
            total: 0,
        };
        match self.threads.insert(record.tid, thread) {
            Some(_) => Err("the thread is there already".to_owned()),
            None => Ok(()),
        }
    }

    fn finish(&mut self, record: &Record) -> Result<(), String> {
        let mut thread = self.threads.remove(&record.tid).ok_or("no such thread")?;
        thread.cut();
        self.finished
            .entry(record.tid)
            .or_default()
            .append(&mut thread.runs);
        if thread.pid == u64::from(record.tid) {
            self.memories.remove(&thread.pid);
        }
        match thread.place {
            Place::Outside => Ok(()),
            Place::At(at) => Err(format!("it ended in context at {at:#x}")),
        }
    }

    fn map(&mut self, record: &Record, blob: &[u8]) -> Result<(), String> {
        let pid = self.threads.get(&record.tid).ok_or("no such thread")?.pid;
        let offset = u64::from_le_bytes(blob[..8].try_into().map_err(|_| "short blob")?) as usize;
        let path = &blob[40..blob.len() - 1];
        let file = self.file(path);
        let memory = self.memories.entry(pid).or_default();
        let mut memory = memory.borrow_mut();
        for page in (0..record.target).step_by(PAGE as usize) {
            let from = offset + page as usize;
            let bytes = file
                .get(from..file.len().min(from + PAGE as usize))
                .unwrap_or_default();
            let mut bytes = bytes.to_vec();
            bytes.resize(if file.is_empty() { 0 } else { PAGE as usize }, 0);
            memory.insert(record.ip + page, Rc::new(bytes));
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8]) -> Rc<Vec<u8>> {
        let read = || {
            let name = std::str::from_utf8(path)
                .ok()
                .filter(|name| name.starts_with('/'))?;
            std::fs::read(name).ok()
        };
        self.files
            .entry(path.to_vec())
            .or_insert_with(|| Rc::new(read().unwrap_or_default()))
            .clone()
    }

    fn poke(&mut self, record: &Record, blob: &[u8]) -> Result<(), String> {
        let pid = self.threads.get(&record.tid).ok_or("no such thread")?.pid;
        let memory = self.memories.entry(pid).or_default();
        let mut memory = memory.borrow_mut();
        for (index, &byte) in blob.iter().enumerate() {
            let address = record.ip + index as u64;
            let page = Rc::make_mut(memory.entry(address & !(PAGE - 1)).or_default());
            let offset = (address & (PAGE - 1)) as usize;
            if page.len() <= offset {
                page.resize(offset + 1, 0);
            }
            page[offset] = byte;
        }
        Ok(())
    }

    /// Compares the collected runs with the truth file; returns the instructions in it.
    pub fn check(&mut self, truth: &Path) -> u64 {
        let contents =
            summarize(TruthReader::open(truth).expect("the truth file")).expect("good records");
        if !contents.complete {
            self.errors.push("the truth is incomplete".to_owned());
        }
        let mut total = 0;
        for thread in &contents.threads {
            total += thread.chain.instructions;
            let seen = self.finished.remove(&thread.tid).unwrap_or_default();
            let runs = ThreadRuns::open(truth, thread.tid).expect("the truth file");
            match compare(runs, seen.into_iter().map(Ok), Default::default()).expect("good records")
            {
                Outcome::Identical(same) if same.instructions == thread.chain.instructions => {}
                other => self
                    .errors
                    .push(format!("thread {}: {other:?}", thread.tid)),
            }
        }
        if total != self.clock {
            self.errors.push(format!(
                "{total} instructions, the clock says {}",
                self.clock
            ));
        }
        total
    }
}

fn fetch(memory: &Memory, ip: u64) -> Result<Instruction, String> {
    let memory = memory.borrow();
    let bytes: Vec<u8> = (ip..ip + 15)
        .map_while(|at| {
            memory
                .get(&(at & !(PAGE - 1)))?
                .get((at & (PAGE - 1)) as usize)
                .copied()
        })
        .collect();
    decode(&bytes, ip, Mode::Bits64).map_err(|error| format!("at {ip:#x}: {error}: {bytes:x?}"))
}

impl Thread {
    fn execute(&mut self, ip: u64) {
        if self.open.instructions == 0 {
            self.start = ip;
        }
        self.open.push(ip);
        self.total += 1;
    }

    fn cut(&mut self) {
        let open = std::mem::take(&mut self.open);
        self.runs.push(Run {
            start: self.start,
            instructions: open.instructions,
            hash: open.hash,
        });
    }

    /// Walks from the thread's place to `ip`, past no branch.
    fn walk(&mut self, ip: u64, memory: &Memory) -> Result<(), String> {
        let Place::At(mut at) = self.place else {
            return Err("the thread is out of context".to_owned());
        };
        while at != ip {
            let instruction = fetch(memory, at)?;
            if instruction.class.is_branch() || at > ip {
                return Err(format!("the way to it leads over {instruction:x?}"));
            }
            self.execute(at);
            at = instruction.next();
        }
        self.place = Place::At(ip);
        Ok(())
    }

    fn step(&mut self, record: &Record, memory: &Memory) -> Result<(), String> {
        let out_of_context = self.place == Place::Outside;
        match record.kind {
            EventKind::Resume if out_of_context => {
                self.place = Place::At(record.target);
                return Ok(());
            }
            EventKind::Resume => return Err(format!("resumed at {:x?}", self.place)),
            EventKind::Switch if record.flags & 1 == 0 && out_of_context => return Ok(()),
            _ => {}
        }
        self.walk(record.ip, memory)?;
        match record.kind {
            EventKind::Switch if record.flags & 1 == 1 => return Ok(()),
            EventKind::Interrupt | EventKind::Fault => {
                self.cut();
                self.place = Place::Outside;
                return Ok(());
            }
            _ => {}
        }
        let instruction = fetch(memory, record.ip)?;
        let expected = match instruction.class {
            Class::Conditional => EventKind::Conditional,
            Class::Jump => EventKind::Jump,
            Class::Call => EventKind::Call,
            Class::IndirectJump => EventKind::IndirectJump,
            Class::IndirectCall => EventKind::IndirectCall,
            Class::Return => EventKind::Return,
            Class::FarTransfer => EventKind::Far,
            Class::Syscall => EventKind::Syscall,
            Class::SoftwareInterrupt => EventKind::SoftInt,
            other => return Err(format!("no event fits {other:?}")),
        };
        let direct = matches!(
            expected,
            EventKind::Conditional | EventKind::Jump | EventKind::Call
        );
        if expected != record.kind
            || u16::from(instruction.length) != record.length
            || direct && instruction.target != record.target
        {
            return Err(format!("it is {instruction:x?}"));
        }
        if record.kind == EventKind::SoftInt {
            self.cut();
            self.place = Place::Outside;
            return Ok(());
        }
        self.execute(record.ip);
        if record.kind == EventKind::Conditional && record.flags & 1 == 0 {
            self.place = Place::At(instruction.next());
            return Ok(());
        }
        self.cut();
        self.place = match record.kind {
            EventKind::Syscall => Place::Outside,
            _ => Place::At(record.target),
        };
        Ok(())
    }
}
