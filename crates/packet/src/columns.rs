//! Packets as columns: for whoever looks at millions of them.
//!
//! Most packets are told whole by their first byte: kind, length, and where the payload is. Those are read by a table
//! without a branch that depends on what they are; [`Scanner`] reads the others, and all that is in a block.

use crate::classes::{before_psb, length_of, like_psb, CLASSES};
use crate::error::PacketError;
use crate::packet::PacketKind;
use crate::scan::Scanner;

/// Packets that are gathered before they are appended: they stay in the nearest cache.
const STAGE: usize = 512;

/// Bytes whose lengths are found before packets are made of them, which then wait for no more than one load each.
const CHUNK: usize = 256;
/// A packet that begins in them has up to seven more, and a PSB that it swallows goes on in the next.
const BEYOND: usize = 8;

/// Packets as columns of one length.
///
/// | packet | `payload` | `detail` |
/// |---|---|---|
/// | TNT, TNT.64 | the results below a stop bit, the oldest highest | 0 |
/// | TIP, TIP.PGE, TIP.PGD, FUP | IP payload, zero-extended | IPBytes |
/// | PIP | `CR3[51:5]` in place | NR |
/// | MODE.Exec, MODE.TSX | 0 | bits 2:0 of the second byte |
/// | CBR, TSC, MTC, CYC, VMCS, MNT | their field | 0 |
/// | TMA | CTC, fast counter in bits 24:16 | 0 |
/// | PTW | payload | IP in bit 0, PayloadBytes in bits 2:1 |
/// | MWAIT | hints, EXT in bits 33:32 | 0 |
/// | PWRE | state in bits 7:4, sub-state in 3:0 | HW |
/// | PWRX | last in bits 7:4, deepest in 3:0 | wake reason |
/// | BBP | type | SZ |
/// | BIP | payload | ID in bits 4:0, SZ in bit 5 |
/// | EXSTOP, BEP | 0 | IP |
/// | CFE | type, vector in bits 15:8 | IP |
/// | EVD | payload | type |
/// | TRIG | TRBV, ICNT << 8 | ICNTV, MULT << 1, IP << 2 |
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Columns {
    /// [`Kind`](crate::table::Kind) as a number: its row in the packet table.
    pub kind: Vec<u8>,
    pub detail: Vec<u8>,
    /// Offset of the first byte.
    pub offset: Vec<u64>,
    pub payload: Vec<u64>,
}

impl Columns {
    /// How many packets they hold.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether they hold none.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Room for `packets` more.
    pub fn reserve(&mut self, packets: usize) {
        self.kind.reserve(packets);
        self.detail.reserve(packets);
        self.offset.reserve(packets);
        self.payload.reserve(packets);
    }

    /// Appends packets of `scanner` that begin before offset `until`, until there are `limit` of them, its data ends or
    /// an error comes. What follows a packet may say that it is none: up to 32 bytes behind it count, if there are any.
    pub fn fill(
        &mut self,
        scanner: &mut Scanner<'_>,
        limit: usize,
        until: usize,
    ) -> Result<(), PacketError> {
        let mut stage = Stage::new();
        while self.len() < limit {
            let room = (limit - self.len()).min(STAGE);
            let (count, ended) = stage.fill(scanner, room, until);
            self.kind.extend_from_slice(first(&stage.kind, count));
            self.detail.extend_from_slice(first(&stage.detail, count));
            self.offset.extend_from_slice(first(&stage.offset, count));
            self.payload.extend_from_slice(first(&stage.payload, count));
            match ended {
                None => {}
                Some(Ended::Data) => break,
                Some(Ended::Error(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

fn first<T>(column: &[T], count: usize) -> &[T] {
    column.get(..count).unwrap_or_default()
}

enum Ended {
    Data,
    Error(PacketError),
}

struct Stage {
    kind: [u8; STAGE],
    detail: [u8; STAGE],
    offset: [u64; STAGE],
    payload: [u64; STAGE],
}

impl Stage {
    fn new() -> Stage {
        Stage {
            kind: [0; STAGE],
            detail: [0; STAGE],
            offset: [0; STAGE],
            payload: [0; STAGE],
        }
    }

    /// Takes up to `room` packets that begin before `until`; how many, and why there are no more.
    fn fill(
        &mut self,
        scanner: &mut Scanner<'_>,
        room: usize,
        until: usize,
    ) -> (usize, Option<Ended>) {
        let mut count = 0;
        while count < room {
            if scanner.block().is_none() {
                count += self.fill_by_chunk(scanner, count, room, until);
                count += self.fill_by_class(scanner, count, room, until);
                if count == room {
                    break;
                }
            }
            if Scanner::position(scanner) >= until {
                return (count, Some(Ended::Data));
            }
            let packet = match scanner.next() {
                Some(Ok(packet)) => packet,
                Some(Err(error)) => return (count, Some(Ended::Error(error))),
                None => return (count, Some(Ended::Data)),
            };
            let (detail, payload) = fields(&packet.kind);
            let at = count.min(STAGE - 1);
            self.kind[at] = packet.kind.kind() as u8;
            self.detail[at] = detail;
            self.offset[at] = packet.offset as u64;
            self.payload[at] = payload;
            count += 1;
        }
        (count, None)
    }

    /// As `fill_by_class`, of whole chunks in which nothing looks like a part of a PSB.
    fn fill_by_chunk(
        &mut self,
        scanner: &mut Scanner<'_>,
        from: usize,
        room: usize,
        until: usize,
    ) -> usize {
        let (mut rest, end) = before(scanner, until);
        let mut count = 0;
        while room - from - count >= CHUNK {
            let Some(chunk) = rest.first_chunk() else {
                break;
            };
            if like_psb(chunk) {
                break;
            }
            let offset = (end - rest.len()) as u64;
            let (packets, bytes) = self.fill_one_chunk(chunk, from + count, offset);
            rest = rest.get(bytes..).unwrap_or_default();
            count += packets;
            if bytes < CHUNK {
                break;
            }
        }
        scanner.seek(end - rest.len());
        count
    }

    /// How many packets, and of how many bytes; fewer than `CHUNK` if one is not told by its first byte.
    #[inline]
    fn fill_one_chunk(
        &mut self,
        chunk: &[u8; CHUNK + BEYOND],
        from: usize,
        base: u64,
    ) -> (usize, usize) {
        let mut lengths = [0; CHUNK];
        for (length, &byte) in lengths.iter_mut().zip(chunk) {
            *length = length_of(byte);
        }
        let places = self.kind[from..]
            .iter_mut()
            .zip(&mut self.detail[from..])
            .zip(&mut self.offset[from..])
            .zip(&mut self.payload[from..]);
        let (mut count, mut at) = (0, 0);
        for (((kind, detail), offset), payload) in places {
            let (Some(&length @ 1..), Some(bytes)) = (
                lengths.get(at),
                chunk.get(at..).and_then(<[u8]>::first_chunk::<8>),
            ) else {
                break;
            };
            let class = &CLASSES[usize::from(bytes[0])];
            *kind = class.kind;
            *detail = class.detail;
            *offset = base + at as u64;
            *payload = u64::from_le_bytes(*bytes) >> class.shift & class.mask;
            at += usize::from(length);
            count += 1;
        }
        (count, at)
    }

    /// Packets that their first byte tells, into places `from` and on; how many.
    fn fill_by_class(
        &mut self,
        scanner: &mut Scanner<'_>,
        from: usize,
        room: usize,
        until: usize,
    ) -> usize {
        let (mut rest, end) = before(scanner, until);
        let places = self.kind[from..room]
            .iter_mut()
            .zip(&mut self.detail[from..room])
            .zip(&mut self.offset[from..room])
            .zip(&mut self.payload[from..room]);
        let mut count = 0;
        for (((kind, detail), offset), payload) in places {
            let Some(bytes) = rest.first_chunk::<8>() else {
                break;
            };
            let class = &CLASSES[usize::from(bytes[0])];
            if class.length == 0 {
                break;
            }
            *kind = class.kind;
            *detail = class.detail;
            *offset = (end - rest.len()) as u64;
            *payload = u64::from_le_bytes(*bytes) >> class.shift & class.mask;
            let Some(after) = rest.get(usize::from(class.length)..) else {
                break;
            };
            if class.length > 1 && before_psb(after) {
                break;
            }
            rest = after;
            count += 1;
        }
        scanner.seek(end - rest.len());
        count
    }
}

/// What `scanner` has not read of what lies before offset `until`, and the offset of its end.
fn before<'a>(scanner: &Scanner<'a>, until: usize) -> (&'a [u8], usize) {
    let (rest, begin) = (scanner.rest(), Scanner::position(scanner));
    let rest = rest.get(..until.saturating_sub(begin)).unwrap_or(rest);
    (rest, begin + rest.len())
}

/// `detail` and `payload` of a packet, as the table above has them.
fn fields(kind: &PacketKind) -> (u8, u64) {
    match *kind {
        PacketKind::Pad
        | PacketKind::TraceStop
        | PacketKind::Ovf
        | PacketKind::Psb
        | PacketKind::PsbEnd => (0, 0),
        PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => (0, 1 << tnt.count | tnt.bits),
        PacketKind::Tip(ip)
        | PacketKind::TipPge(ip)
        | PacketKind::TipPgd(ip)
        | PacketKind::Fup(ip) => (ip.ip_bytes, ip.payload),
        PacketKind::Pip { nr, cr3 } => (nr.into(), cr3),
        PacketKind::ModeExec { csl, csd, iflag } => {
            (u8::from(csl) | u8::from(csd) << 1 | u8::from(iflag) << 2, 0)
        }
        PacketKind::ModeTsx { in_tx, tx_abort } => (u8::from(in_tx) | u8::from(tx_abort) << 1, 0),
        PacketKind::Cbr { ratio } => (0, ratio.into()),
        PacketKind::Tsc { tsc } => (0, tsc),
        PacketKind::Mtc { ctc } => (0, ctc.into()),
        PacketKind::Tma { ctc, fast_counter } => {
            (0, u64::from(ctc) | u64::from(fast_counter) << 16)
        }
        PacketKind::Cyc { cycles } => (0, cycles),
        PacketKind::Vmcs { pointer } => (0, pointer),
        PacketKind::Mnt { payload } => (0, payload),
        PacketKind::Ptw {
            ip,
            payload_bytes,
            payload,
        } => (u8::from(ip) | payload_bytes << 1, payload),
        PacketKind::ExStop { ip } | PacketKind::Bep { ip } => (ip.into(), 0),
        PacketKind::Mwait { hints, ext } => (0, u64::from(hints) | u64::from(ext) << 32),
        PacketKind::Pwre {
            hw,
            state,
            sub_state,
        } => (hw.into(), u64::from(state) << 4 | u64::from(sub_state)),
        PacketKind::Pwrx {
            last,
            deepest,
            wake,
        } => (wake, u64::from(last) << 4 | u64::from(deepest)),
        PacketKind::Bbp { sz, kind } => (sz.into(), kind.into()),
        PacketKind::Bip { id, sz, payload } => (id | u8::from(sz) << 5, payload),
        PacketKind::Cfe { ip, kind, vector } => {
            (ip.into(), u64::from(kind) | u64::from(vector) << 8)
        }
        PacketKind::Evd { kind, payload } => (kind, payload),
        PacketKind::Trig {
            ip,
            mult,
            trbv,
            icnt,
        } => (
            u8::from(icnt.is_some()) | u8::from(mult) << 1 | u8::from(ip) << 2,
            u64::from(trbv) | u64::from(icnt.unwrap_or(0)) << 8,
        ),
    }
}
