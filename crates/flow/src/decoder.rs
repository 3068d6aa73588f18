//! The packets of one stream, in order: what each does to the state of tracing.
//!
//! | state      | what is known                                  | left by                                             |
//! |------------|------------------------------------------------|-----------------------------------------------------|
//! | `Lost`     | nothing                                        | TIP.PGE, PSB+                                       |
//! | `Overflow` | OVF came                                       | FUP (also that of MODE.TSX), TIP.PGE, PSB+          |
//! | `Off`      | PacketEn is 0                                  | TIP.PGE, PSB+ with FUP                              |
//! | `PsbOn`    | a PSB+ gave the IP; nothing followed yet       | the next packet that moves the program              |
//! | `On`       | the walker is where the program is             | TIP.PGD, FUP, OVF, errors                           |
//! | `Async`    | an event struck at a FUP; its target is to come| TIP, TIP.PGD, TIP.PGE (INIT)                        |
//!
//! After an error decoding goes on at an IP that needs nothing of what went before: TIP.PGE, the FUP after OVF, or
//! that of a PSB+. A TIP is not enough: compressed returns after it may go to calls that were lost.

mod flow;
mod group;
mod scan;

use rtit_image::View;
use rtit_packet::{find_psb, Ip, Packet, PacketKind, Scanner};
use rtit_x86::Mode;

use crate::counts::Counts;
use crate::error::{Cause, FlowError};
use crate::event::{Event, EventKind};
use crate::ledger::{Ledger, Span, Trust};
use crate::sink::{End, Sink};
use crate::time::{Clock, TimeSettings};
use crate::walk::{Stamp, Walker};
use crate::window::Window;

use flow::mode_of;
use group::Group;

/// How a stream is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    pub time: TimeSettings,
    /// The stream was recorded with DisTNT: no conditional branch can be followed.
    pub no_tnt: bool,
    /// The stream was recorded with DisRETC: every RET has its own TIP.
    pub no_retcomp: bool,
    /// The code cache is emptied when it holds more than about this many instructions.
    pub cache_limit: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            time: TimeSettings::default(),
            no_tnt: false,
            no_retcomp: false,
            cache_limit: 1 << 26,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Lost,
    Overflow,
    Off,
    /// `unannounced`: offset of the PSB if tracing was off before.
    PsbOn {
        unannounced: Option<u64>,
    },
    On,
    Async {
        ip: u64,
    },
}

/// A packet that the next FUP completes.
#[derive(Clone, Copy, Debug)]
struct Bound {
    event: Event,
    to: BoundTo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BoundTo {
    Tsx {
        abort: bool,
    },
    Exec,
    /// PTW, EXSTOP, BEP, CFE: the FUP only says where.
    Place,
}

/// Follows one stream through one view of the code. The bytes are not held: every call is given a window of the
/// stream.
pub struct Decoder {
    walker: Walker,
    clock: Clock,
    ledger: Ledger,
    counts: Counts,
    state: State,
    last_ip: u64,
    group: Option<Group>,
    bound: Option<Bound>,
    /// MODE.Exec waits for the IP packet at which it applies.
    new_mode: Option<Mode>,
    /// CR3 and NR, VMCS pointer as last seen.
    paging: Option<u64>,
    vmcs: Option<u64>,
    position: usize,
    block: Option<u8>,
    /// The next PSB at or after `position` is to be found.
    searching: bool,
    finished: bool,
}

/// Whether the bytes before the first PSB tell nothing of the flow: with CYCs on, a trace begins with the CYC of the
/// PSB's own cycle. Anything else may be the rest of something (zeros, too: not every zero is a PAD).
fn only_cycles(head: &[u8]) -> bool {
    let mut scanner = Scanner::new(head);
    std::iter::from_fn(|| scanner.next())
        .all(|packet| packet.is_ok_and(|packet| matches!(packet.kind, PacketKind::Cyc { .. })))
}

impl Decoder {
    /// Begins at the first PSB of the stream that begins with `stream`.
    pub fn new(view: View, stream: Window<'_>, settings: &Settings) -> Decoder {
        let position = find_psb(stream.bytes, 0).unwrap_or(stream.bytes.len());
        let error = FlowError {
            offset: 0,
            cause: Cause::BeforePsb,
        };
        let mut ledger = Ledger::new(Span {
            from: 0,
            to: 0,
            trust: Trust::Exact,
            error: None,
        });
        let head = stream.bytes.get(..position).unwrap_or(&[]);
        let none = position == stream.bytes.len();
        if none && position > 0 || !only_cycles(head) {
            ledger.fail(0, error);
        }
        let position = if none { 0 } else { position };
        Decoder {
            walker: Walker::new(view, settings),
            clock: Clock::new(settings.time),
            ledger,
            counts: Counts::default(),
            state: State::Lost,
            last_ip: 0,
            group: None,
            bound: None,
            new_mode: None,
            paging: None,
            vmcs: None,
            position,
            block: None,
            searching: true,
            finished: false,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn counts(&self) -> Counts {
        Counts {
            cycles: self.clock.total_cycles(),
            ..self.counts.clone()
        }
    }

    /// Stream offset of the next packet.
    pub fn position(&self) -> usize {
        self.position
    }

    /// True when the whole stream has been read.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    fn dispatch<S: Sink>(
        &mut self,
        packet: &Packet,
        sink: &mut S,
        stamp: Stamp,
    ) -> Result<(), Cause> {
        if self.timing(&packet.kind, sink, stamp) {
            return Ok(());
        }
        if packet.kind == PacketKind::Psb {
            return self.begin_group(sink, stamp);
        }
        if self.group.is_some() {
            return self.in_group(packet, sink, stamp);
        }
        match packet.kind {
            PacketKind::Fup(ip) => {
                let ip = self.ip(ip).ok_or(Cause::NoIp { name: "FUP" })?;
                self.fup(ip, sink, stamp)
            }
            PacketKind::Tnt(tnt) | PacketKind::Tnt64(tnt) => {
                self.flush_bound(0, sink);
                self.tnt((tnt.bits, tnt.count), sink, stamp)
            }
            PacketKind::Tip(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(ip.unwrap_or(0), sink);
                self.tip(ip, sink, stamp)
            }
            PacketKind::TipPge(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(ip.unwrap_or(0), sink);
                self.tip_pge(ip, sink, stamp)
            }
            PacketKind::TipPgd(ip) => {
                let ip = self.ip(ip);
                self.flush_bound(0, sink);
                self.tip_pgd(ip, sink, stamp)
            }
            PacketKind::Ovf => {
                self.flush_bound(0, sink);
                self.overflow(sink, stamp);
                Ok(())
            }
            PacketKind::TraceStop => {
                self.flush_bound(0, sink);
                self.trace_stop(sink, stamp);
                Ok(())
            }
            PacketKind::PsbEnd => Err(Cause::UnexpectedPacket { name: "PSBEND" }),
            _ => {
                self.flush_bound(0, sink);
                self.note(packet, sink, stamp);
                Ok(())
            }
        }
    }

    /// Packets that mean the same wherever they are. True if this was one.
    fn timing<S: Sink>(&mut self, kind: &PacketKind, sink: &mut S, stamp: Stamp) -> bool {
        match *kind {
            PacketKind::Pad => {}
            PacketKind::Cyc { cycles } => self.clock.cyc(cycles),
            PacketKind::Mtc { ctc } => self.clock.mtc(ctc),
            PacketKind::Tma { ctc, fast_counter } => self.clock.tma(ctc, fast_counter),
            PacketKind::Tsc { tsc } => {
                self.clock.tsc(tsc);
                // within PSB+ the program is first followed to where the PSB was
                if self.group.is_none() {
                    self.walker.advance(self.clock.now());
                }
            }
            PacketKind::Cbr { ratio } => {
                self.clock.cbr(ratio);
                self.event(EventKind::Cbr, 0, ratio.into(), sink, stamp);
            }
            PacketKind::Mnt { payload } => self.event(EventKind::Mnt, 0, payload, sink, stamp),
            PacketKind::Unknown { .. } => {}
            _ => return false,
        }
        true
    }

    /// TRIG of newer processors: known by its length, and that bit 7 of its second byte asks for a FUP.
    fn unknown<S: Sink>(&mut self, opcode: u8, flags: u8, sink: &mut S, offset: u64) {
        self.flush_bound(0, sink);
        let event = Event {
            kind: EventKind::Unknown,
            ip: 0,
            value: opcode.into(),
            time: self.clock.now(),
            offset,
        };
        if flags & 0x80 == 0 {
            return sink.event(&event);
        }
        self.bound = Some(Bound {
            event,
            to: BoundTo::Place,
        });
    }

    /// Joins an IP payload with LastIP; `None` if it is suppressed (section 33.4.2.2).
    fn ip(&mut self, ip: Ip) -> Option<u64> {
        const LOW_48: u64 = (1 << 48) - 1;
        let last = self.last_ip;
        self.last_ip = match ip.ip_bytes {
            1 => last & !0xffff | ip.payload & 0xffff,
            2 => last & !0xffff_ffff | ip.payload & 0xffff_ffff,
            3 => ((ip.payload << 16) as i64 >> 16) as u64,
            4 => last & !LOW_48 | ip.payload & LOW_48,
            6 => ip.payload,
            _ => return None,
        };
        Some(self.last_ip)
    }

    fn event<S: Sink>(&self, kind: EventKind, ip: u64, value: u64, sink: &mut S, stamp: Stamp) {
        sink.event(&Event {
            kind,
            ip,
            value,
            time: self.clock.now(),
            offset: stamp.offset,
        });
    }

    /// No FUP completed the packet that might have had one; MODE.Exec applies at `ip`.
    fn flush_bound<S: Sink>(&mut self, ip: u64, sink: &mut S) {
        if let Some(mut bound) = self.bound.take() {
            if bound.to == BoundTo::Exec {
                bound.event.ip = ip;
            }
            sink.event(&bound.event);
        }
    }

    fn fail<S: Sink>(&mut self, offset: u64, cause: Cause, sink: &mut S) {
        self.flush_bound(0, sink);
        sink.close(End::Lost, offset);
        self.ledger.fail(offset, FlowError { offset, cause });
        let (ip, value) = (cause.value(), cause.class() as u64);
        self.event(EventKind::Error, ip, value, sink, Stamp { offset, time: 0 });
        self.state = State::Lost;
        self.group = None;
        self.new_mode = None;
        self.walker.reset();
    }
}

#[cfg(test)]
mod tests;
