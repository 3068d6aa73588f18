//! The state of a unit between two events: a plain value that can be compared, saved as bytes and restored.

use crate::error::Error;
use crate::tracing_control::{AddressRange, RangeKind};

/// A core cycle that no clock reaches: the time of events that are not scheduled.
pub const NEVER: u64 = u64::MAX;

/// `CoreState::mode` of 64-bit code with interrupts disabled, or without event trace.
pub(crate) const MODE_64: u8 = 1;

const MAGIC: [u8; 4] = *b"rtu2";
const HEAD: usize = 9;
const WORDS: usize = 13;
const RANGE: usize = 17;

/// All state that decides what a unit emits, except settings, call stack and ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreState {
    /// IA32_RTIT_CTL.TraceEn.
    pub trace_en: bool,
    /// IA32_RTIT_STATUS (section 33.2.8.4) and PacketEn (section 33.2.6.1).
    pub trigger_en: bool,
    pub context_en: bool,
    pub filter_en: bool,
    pub packet_en: bool,
    pub stopped: bool,
    /// CPL is 3.
    pub user: bool,
    /// CS.L & LMA, CS.D and RFLAGS.IF, as bits 0 to 2 of MODE.Exec.
    pub mode: u8,
    /// The last MODE.Exec.
    pub sent_mode: u8,
    pub cr3: u64,
    /// PacketEn is 1, and a near branch can only emit its own packet: no ranges, TNT enabled, no PSB due.
    pub plain: bool,
    /// MODE.Exec has been sent since the last PSB.
    pub mode_sent: bool,
    /// LastIP equals the decoder's.
    pub last_ip_known: bool,
    pub last_ip: u64,
    /// The next instruction, if the processor is in user mode.
    pub ip: u64,
    /// Pending TNT bits, below a stop bit.
    pub tnt: u64,
    /// PacketByteCnt: bytes towards the next PSB.
    pub packet_byte_count: i64,
    /// All bytes ever written.
    pub written: u64,
    /// Core cycles: now; of the last CYC; when the next CYC may be sent; of the next MTC; and of the first timing
    /// packet that time alone causes, which may be too early but never too late.
    pub cycle: u64,
    pub cyc_base: u64,
    pub cyc_due: u64,
    pub next_mtc: u64,
    /// MTC periods of the ART at `next_mtc`.
    pub mtc_index: u64,
    pub due: u64,
}

impl Default for CoreState {
    fn default() -> CoreState {
        CoreState {
            trace_en: false,
            trigger_en: false,
            context_en: false,
            filter_en: false,
            packet_en: false,
            stopped: false,
            user: false,
            mode: MODE_64,
            sent_mode: MODE_64,
            cr3: 0,
            plain: false,
            mode_sent: false,
            last_ip_known: true,
            last_ip: 0,
            ip: 0,
            tnt: 1,
            packet_byte_count: 0,
            written: 0,
            cycle: 0,
            cyc_base: 0,
            cyc_due: NEVER,
            next_mtc: NEVER,
            mtc_index: 0,
            due: NEVER,
        }
    }
}

/// The result of `TraceUnit::save_state`, without the packets that have not been taken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedState {
    pub core: CoreState,
    /// Oldest first.
    pub ret_stack: Vec<u64>,
    pub ranges: Vec<AddressRange>,
    /// The ranges from the next enable on.
    pub next_ranges: Vec<AddressRange>,
}

impl SavedState {
    /// Returns the state as bytes, in a layout of its own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let core = &self.core;
        let flags = core.flag_values().into_iter().rev();
        let flags = flags.fold(0u16, |word, flag| word << 1 | u16::from(flag));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(flags.to_le_bytes());
        let counts = [
            self.ret_stack.len(),
            self.ranges.len(),
            self.next_ranges.len(),
        ];
        bytes.extend(counts.map(|count| count as u8));
        let words = core.state_words();
        bytes.extend(
            words
                .iter()
                .chain(&self.ret_stack)
                .flat_map(|word| word.to_le_bytes()),
        );
        for range in self.ranges.iter().chain(&self.next_ranges) {
            bytes.push(u8::from(range.kind == RangeKind::TraceStop));
            bytes.extend(range.first.to_le_bytes());
            bytes.extend(range.last.to_le_bytes());
        }
        bytes
    }

    /// Parses the result of `to_bytes`.
    ///
    /// # Errors `Error::StateSize` for other bytes, `Error::State` for unknown flags.
    pub fn from_bytes(bytes: &[u8]) -> Result<SavedState, Error> {
        let wrong = Error::StateSize { size: bytes.len() };
        if bytes.len() < HEAD {
            return Err(wrong);
        }
        let (head, rest) = bytes.split_at(HEAD);
        let [calls, ranges, next] = [head[6], head[7], head[8]].map(usize::from);
        let words = 8 * (WORDS + calls);
        if head[..4] != MAGIC || rest.len() != words + RANGE * (ranges + next) {
            return Err(wrong);
        }
        let mut core = CoreState::default();
        let mut flags = u16::from_le_bytes([head[4], head[5]]);
        for flag in core.flags_mut() {
            *flag = flags & 1 == 1;
            flags >>= 1;
        }
        if flags != 0 {
            return Err(Error::State {
                field: "flags",
                value: u64::from(flags),
            });
        }
        let (words, tail) = rest.split_at(words);
        let mut words = words.chunks_exact(8).map(read_first_word);
        core.set_words(&mut words);
        let range = |bytes: &[u8]| AddressRange {
            kind: match bytes[0] {
                0 => RangeKind::FilterEn,
                _ => RangeKind::TraceStop,
            },
            first: read_first_word(&bytes[1..9]),
            last: read_first_word(&bytes[9..17]),
        };
        let (now, then) = tail.split_at(RANGE * ranges);
        Ok(SavedState {
            core,
            ret_stack: words.collect(),
            ranges: now.chunks_exact(RANGE).map(range).collect(),
            next_ranges: then.chunks_exact(RANGE).map(range).collect(),
        })
    }
}

impl CoreState {
    fn flag_values(mut self) -> [bool; 10] {
        self.flags_mut().map(|flag| *flag)
    }

    fn flags_mut(&mut self) -> [&mut bool; 10] {
        [
            &mut self.trace_en,
            &mut self.trigger_en,
            &mut self.context_en,
            &mut self.filter_en,
            &mut self.packet_en,
            &mut self.stopped,
            &mut self.user,
            &mut self.plain,
            &mut self.mode_sent,
            &mut self.last_ip_known,
        ]
    }

    fn state_words(&self) -> [u64; WORDS] {
        [
            self.last_ip,
            self.ip,
            self.tnt,
            self.packet_byte_count as u64,
            self.written,
            self.cycle,
            self.cyc_base,
            self.cyc_due,
            self.next_mtc,
            self.mtc_index,
            self.due,
            self.cr3,
            u64::from(self.mode) | u64::from(self.sent_mode) << 8,
        ]
    }

    fn set_words(&mut self, words: &mut impl Iterator<Item = u64>) {
        let mut next = || words.next().unwrap_or_default();
        self.last_ip = next();
        self.ip = next();
        self.tnt = next();
        self.packet_byte_count = next() as i64;
        self.written = next();
        self.cycle = next();
        self.cyc_base = next();
        self.cyc_due = next();
        self.next_mtc = next();
        self.mtc_index = next();
        self.due = next();
        self.cr3 = next();
        let modes = next();
        self.mode = modes as u8;
        self.sent_mode = (modes >> 8) as u8;
    }
}

/// Returns the first 8 bytes, little endian.
fn read_first_word(bytes: &[u8]) -> u64 {
    let mut array = [0; 8];
    for (into, from) in array.iter_mut().zip(bytes) {
        *into = *from;
    }
    u64::from_le_bytes(array)
}
