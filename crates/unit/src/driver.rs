//! The part of an operating system's driver: enabling before a thread's first instruction, and off and on where the
//! thread is switched out and in, which puts an exact TSC into the stream.

use crate::error::Error;
use crate::event::{Event, Kind, RECORD};
use crate::unit::Unit;

/// Instructions by which the clock may go on in the kernel while the thread counts as scheduled.
const LONGEST_SCHEDULED: u64 = 4096;

impl Unit {
    /// Take the capture events of one thread, records of `RECORD` bytes. Those that make no packets are passed over.
    ///
    /// # Errors
    /// `Error::TruncatedRecord`; `Error::Record` with what is wrong. The records before the bad one have been taken.
    pub fn feed(&mut self, records: &[u8]) -> Result<(), Error> {
        for (index, record) in records.chunks(RECORD).enumerate() {
            let offset = index * RECORD;
            let Some(whole) = record.first_chunk() else {
                let size = record.len();
                return Err(Error::TruncatedRecord { offset, size });
            };
            let taken = Event::from_bytes(whole).and_then(|event| self.apply(&event));
            taken.map_err(|cause| Error::Record {
                offset,
                cause: Box::new(cause),
            })?;
        }
        Ok(())
    }

    /// Take one event, at its clock.
    ///
    /// # Errors
    /// As `Unit::at`.
    pub fn apply(&mut self, event: &Event) -> Result<(), Error> {
        if event.kind as u8 <= Kind::Far as u8 {
            self.at(event.clock)?;
        } else if event.kind as u8 <= Kind::Exit as u8 {
            self.wait_until(event.clock)?;
        }
        match event.kind {
            Kind::Conditional => {
                self.conditional(event.next_ip(), event.target, event.flags & 1 == 1);
            }
            Kind::Jump => self.jump(event.target),
            Kind::Call => self.call(event.next_ip(), event.target),
            Kind::IndirectJump => self.indirect_jump(event.target),
            Kind::IndirectCall => self.indirect_call(event.next_ip(), event.target),
            Kind::Return => self.ret(event.target),
            Kind::Far => self.far(event.target),
            Kind::Syscall => self.syscall(),
            Kind::Interrupt => self.interrupt(event.ip),
            Kind::Fault => self.exception(event.ip),
            Kind::SoftInt => self.software_interrupt(event.ip),
            Kind::Resume => self.run(event.target),
            Kind::Switch => self.switch((event.flags & 1 == 1).then_some(event.ip)),
            Kind::Exit => self.disable(),
            Kind::Thread
            | Kind::Exec
            | Kind::Comm
            | Kind::Mmap
            | Kind::Code
            | Kind::Warning
            | Kind::End => {}
        }
        Ok(())
    }

    /// As `at`. A thread that was in the kernel for more than `LONGEST_SCHEDULED` was switched out when it came there:
    /// TraceEn is 0 until `run`, so that waiting makes no packets of time.
    ///
    /// # Errors
    /// As `Unit::at`.
    pub fn wait_until(&mut self, clock: u64) -> Result<(), Error> {
        if !self.core.user && clock.saturating_sub(self.clock()) > LONGEST_SCHEDULED {
            self.disable();
        }
        self.at(clock)
    }

    /// User code goes on at `target`, for the first time perhaps.
    pub fn run(&mut self, target: u64) {
        self.start();
        self.resume(target);
    }

    /// The thread is switched out and in: in user mode before the instruction at `ip`, or in the kernel. Address
    /// ranges that were set take effect.
    pub fn switch(&mut self, ip: Option<u64>) {
        if let Some(ip) = ip {
            self.interrupt(ip);
        }
        self.disable();
        self.start();
        if let Some(ip) = ip {
            self.resume(ip);
        }
    }

    /// A trace that has stopped is not started again behind the user's back.
    fn start(&mut self) {
        if !self.stopped() {
            self.enable();
        }
    }
}
