//! Streams made from the packet table and then damaged, with what the scanner reads in them, for comparison with
//! another reader (tests/differential/grammar.py).
//!
//! usage: grammar FIRST COUNT. Stream number n is the same at all times. To standard output, all little endian, for
//! each: u32 bytes, u32 records, the bytes, and the records: u32 offset, u16 packet (a `Kind`, or 0x100 and up for an
//! error), u16 length, u64 and u64 of fields, as `packet_words` says.

use std::io::{BufWriter, Error, ErrorKind, Write};

use rtit_packet::table::{CYC_MAX_BYTES, IP_PAYLOAD, PTW_PAYLOAD, ROWS};
use rtit_packet::{Kind, PacketError, PacketKind, PacketScanner, PSB};

/// xorshift64*.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn new(number: u64) -> PseudoRandom {
        let mut random = PseudoRandom(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn random_below(&mut self, limit: usize) -> usize {
        ((self.next() >> 33) as usize) % limit.max(1)
    }

    fn random_byte(&mut self) -> u8 {
        // values at the edges are as likely as all others together
        match self.random_below(4) {
            0 => 0,
            1 => 0xff,
            _ => (self.next() >> 40) as u8,
        }
    }
}

/// Kinds that processors before the chapter do not have.
const LATER: [Kind; 6] = [
    Kind::Bbp,
    Kind::Bip,
    Kind::Bep,
    Kind::Cfe,
    Kind::Evd,
    Kind::Trig,
];
const STATUS: [Kind; 8] = [
    Kind::Tsc,
    Kind::Tma,
    Kind::Cbr,
    Kind::ModeExec,
    Kind::ModeTsx,
    Kind::Vmcs,
    Kind::Pip,
    Kind::Fup,
];

fn append_random_packet(kind: Kind, random: &mut PseudoRandom, out: &mut Vec<u8>) {
    let row = &ROWS[kind as usize];
    let start = out.len();
    for at in 0..usize::from(row.size) {
        let (header, mask) = match row.header.get(at) {
            Some(&header) => (header, row.mask[at]),
            None => (0, 0),
        };
        out.push(header | random.random_byte() & !mask);
    }
    let head = &mut out[start..];
    let mut more = 0;
    match kind {
        Kind::Tnt => head[0] = (random.random_below(126) as u8 + 2) << 1,
        Kind::Tnt64 if head[2..].iter().all(|&byte| byte == 0) => head[7] = 1,
        Kind::Tip | Kind::TipPge | Kind::TipPgd | Kind::Fup => {
            let sizes: Vec<usize> = (0..8).filter(|&at| IP_PAYLOAD[at].is_some()).collect();
            let ip_bytes = sizes[random.random_below(sizes.len())];
            head[0] = row.header[0] | (ip_bytes as u8) << 5;
            more = IP_PAYLOAD[ip_bytes].unwrap_or(0).into();
        }
        Kind::ModeExec | Kind::ModeTsx if head[1] & 3 == 3 => head[1] &= !1,
        Kind::Ptw => {
            let payload = random.random_below(2);
            head[1] = head[1] & 0x9f | (payload as u8) << 5;
            more = PTW_PAYLOAD[payload].unwrap_or(0).into();
        }
        Kind::Cyc => {
            head[0] &= !4;
            let length = match random.random_below(3) {
                0 => 1 + random.random_below(CYC_MAX_BYTES),
                _ => 1,
            };
            if length > 1 {
                head[0] |= 4;
                (2..length).for_each(|_| out.push(random.random_byte() | 1));
                out.push(random.random_byte() & !1);
            }
        }
        // its reserved bits say something to readers that reckon with an erratum
        Kind::Tma if random.random_below(8) != 0 => {
            head[4] = 0;
            head[6] &= 1;
        }
        Kind::Trig if head[1] & 0x40 != 0 => more = 2,
        _ => {}
    }
    (0..more).for_each(|_| out.push(random.random_byte()));
}

fn random_stream(random: &mut PseudoRandom) -> Vec<u8> {
    let mut out = Vec::new();
    if random.random_below(20) != 0 {
        append_random_packet(Kind::Psb, random, &mut out);
    }
    let later = random.random_below(4) == 0;
    for _ in 0..1 + random.random_below(50) {
        match random.random_below(16) {
            0 => {
                append_random_packet(Kind::Psb, random, &mut out);
                for kind in STATUS {
                    if random.random_below(2) == 0 {
                        append_random_packet(kind, random, &mut out);
                    }
                }
                append_random_packet(Kind::PsbEnd, random, &mut out);
            }
            1 if later => {
                append_random_packet(Kind::Bbp, random, &mut out);
                let four = out[out.len() - 1] & 0x80 != 0;
                for _ in 0..random.random_below(6) {
                    append_random_packet(Kind::Bip, random, &mut out);
                    (0..if four { 4 } else { 8 }).for_each(|_| out.push(random.random_byte()));
                }
                append_random_packet(Kind::Bep, random, &mut out);
            }
            2..=7 => append_random_packet(Kind::Tnt, random, &mut out),
            _ => {
                let kind = ROWS[random.random_below(ROWS.len())].kind;
                if kind != Kind::Bip && (later || !LATER.contains(&kind)) {
                    append_random_packet(kind, random, &mut out);
                }
            }
        }
    }
    out
}

fn damage_stream(bytes: &mut Vec<u8>, random: &mut PseudoRandom) {
    for _ in 0..random.random_below(4) {
        let at = random.random_below(bytes.len() + 1);
        let size = 1 + random.random_below(12);
        let end = bytes.len().min(at + size);
        match random.random_below(7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.random_below(8),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let new: Vec<u8> = (0..size).map(|_| random.random_byte()).collect();
                drop(bytes.splice(at..at, new));
            }
            4 => bytes.truncate(at),
            5 => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            // a part of a PSB, or more than one
            6 => {
                let from = random.random_below(2);
                let new: Vec<u8> = PSB
                    .iter()
                    .cycle()
                    .skip(from)
                    .take(3 * size)
                    .copied()
                    .collect();
                drop(bytes.splice(at..end, new));
            }
            _ => {}
        }
    }
}

/// Of a packet its two words; bits that some readers do not know of are left out.
fn packet_words(kind: PacketKind) -> (u64, u64) {
    use PacketKind as P;
    match kind {
        P::Tnt(tnt) | P::Tnt64(tnt) => (tnt.bits, tnt.count.into()),
        P::Tip(ip) | P::TipPge(ip) | P::TipPgd(ip) | P::Fup(ip) => (ip.payload, ip.ip_bytes.into()),
        P::Pip { nr, cr3 } => (cr3, nr.into()),
        P::ModeExec { csl, csd, .. } => (csl.into(), csd.into()),
        P::ModeTsx { in_tx, tx_abort } => (in_tx.into(), tx_abort.into()),
        P::Cbr { ratio } => (ratio.into(), 0),
        P::Tsc { tsc } => (tsc, 0),
        P::Mtc { ctc } => (ctc.into(), 0),
        P::Tma { ctc, fast_counter } => (ctc.into(), fast_counter.into()),
        P::Cyc { cycles } => (cycles, 0),
        P::Vmcs { pointer } => (pointer, 0),
        P::Mnt { payload } => (payload, 0),
        P::Ptw {
            ip,
            payload_bytes,
            payload,
        } => (payload, u64::from(payload_bytes) << 1 | u64::from(ip)),
        P::ExStop { ip } | P::Bep { ip } => (ip.into(), 0),
        P::Mwait { hints, ext } => (hints.into(), ext.into()),
        P::Pwre {
            hw,
            state,
            sub_state,
        } => (u64::from(state) << 8 | u64::from(sub_state), hw.into()),
        P::Pwrx {
            last,
            deepest,
            wake,
        } => (u64::from(last) << 8 | u64::from(deepest), wake.into()),
        _ => (0, 0),
    }
}

fn error_code(error: &PacketError) -> u16 {
    match error {
        PacketError::Truncated { .. } => 0x100,
        PacketError::UnknownOpcode { .. } => 0x101,
        PacketError::Reserved { .. } => 0x102,
        PacketError::EmptyTnt { .. } => 0x103,
        PacketError::BrokenPsb { .. } => 0x104,
        PacketError::LongCyc { .. } => 0x105,
        PacketError::BrokenOff { .. } => 0x106,
    }
}

fn write_scan_results(bytes: &[u8], out: &mut impl Write) -> Result<(), Error> {
    let mut records = Vec::new();
    let mut put = |offset: usize, kind: u16, length: usize, (a, b): (u64, u64)| {
        records.extend((offset as u32).to_le_bytes());
        records.extend(kind.to_le_bytes());
        records.extend((length as u16).to_le_bytes());
        records.extend(a.to_le_bytes());
        records.extend(b.to_le_bytes());
    };
    let mut scanner = PacketScanner::new(bytes);
    let mut synced = scanner.seek_next_psb().is_some();
    while synced {
        match scanner.next() {
            Some(Ok(packet)) => put(
                packet.offset,
                packet.kind.kind() as u16,
                packet.length,
                packet_words(packet.kind),
            ),
            Some(Err(error)) => {
                put(error.offset(), error_code(&error), 0, (0, 0));
                synced = !error.is_truncated() && scanner.seek_next_psb().is_some();
            }
            None => break,
        }
    }
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(&((records.len() / 24) as u32).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&records)
}

fn main() -> Result<(), Error> {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let &[first, count] = numbers.as_slice() else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "usage: grammar FIRST COUNT",
        ));
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    for number in first..first + count {
        let mut random = PseudoRandom::new(number);
        let mut bytes = random_stream(&mut random);
        damage_stream(&mut bytes, &mut random);
        write_scan_results(&bytes, &mut out)?;
    }
    out.flush()
}
