//! The state of a decoder as a plain value, without its accounts and without what it learned of the code: so that another
//! can go on in its place.

use rtit_x86::Mode;

use super::deferral::Deferral;
use super::held::Held;
use super::later::Later;
use super::state::{Bound, Decoder, Group, State};
use crate::counts::Counts;
use crate::ledger::{Ledger, Trust};
use crate::spaces::Spaces;
use crate::time::Clock;
use crate::walk::WalkerCarry;

/// Two decoders of which this is equal find the same from here on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Carry {
    pub position: usize,
    pub finished: bool,
    pub searching: bool,
    state: State,
    trust: Trust,
    after_branch: bool,
    /// A FUP after OVF said where the program is, and nothing has run since.
    after_overflow: bool,
    paging_after_overflow: bool,
    past: u64,
    moved_cr3: Option<u64>,
    event_data: u64,
    in_tx: Option<bool>,
    last_ip: u64,
    group: Option<Group>,
    bound: Option<Bound>,
    held: Held,
    off_at: u64,
    new_mode: Option<Mode>,
    paging: Option<u64>,
    vmcs: Option<u64>,
    block: Option<u8>,
    paused_at: Option<usize>,
    trust_before: Trust,
    deferral: Deferral,
    clock: Clock,
    walker: WalkerCarry,
    pub later: Later,
}

impl Carry {
    /// As a sink needs it to which times mean nothing.
    pub fn without_time(mut self) -> Carry {
        self.walker.forget_time();
        self
    }

    /// What can be said of a PSB somewhat later in the stream: nothing that a PSB+ tells.
    pub fn sometime_later(&self, position: usize) -> Carry {
        Carry {
            position,
            finished: false,
            searching: false,
            state: State::Lost { resume: false },
            trust: Trust::Lost,
            after_branch: false,
            after_overflow: false,
            paging_after_overflow: false,
            past: 0,
            moved_cr3: None,
            event_data: 0,
            in_tx: self.in_tx,
            last_ip: 0,
            group: None,
            bound: None,
            held: self.held.sometime_later(),
            off_at: self.off_at,
            new_mode: None,
            paging: self.paging,
            vmcs: self.vmcs,
            block: None,
            paused_at: None,
            trust_before: self.trust_before,
            deferral: Deferral::default(),
            clock: self.clock.sometime_later(),
            walker: self.walker.sometime_later(),
            later: Later::default(),
        }
    }
}

impl Decoder {
    pub(crate) fn carry(&self) -> Carry {
        // whatever comes to be in a decoder has its place in a carry, but for what is set for each packet
        let Decoder {
            walker,
            clock,
            ledger,
            counts,
            state,
            errata: _,
            after_branch,
            after_overflow,
            paging_after_overflow,
            past,
            moved_cr3,
            stops: _,
            event_data,
            in_tx,
            last_ip,
            group,
            bound,
            held,
            off_at,
            new_mode,
            paging,
            vmcs,
            position,
            block,
            searching,
            finished,
            paused_at,
            trust_before,
            deferral,
            // a stream with turns is decoded in one piece
            doubt: _,
            later,
        } = self;
        Carry {
            position: *position,
            finished: *finished,
            searching: *searching,
            state: *state,
            trust: ledger.trust(),
            after_branch: *after_branch,
            after_overflow: *after_overflow == Some(counts.instructions),
            paging_after_overflow: *paging_after_overflow,
            past: *past,
            moved_cr3: moved_cr3.filter(|_| *past != 0),
            event_data: *event_data,
            in_tx: *in_tx,
            last_ip: *last_ip,
            group: *group,
            bound: *bound,
            held: held.clone(),
            off_at: *off_at,
            new_mode: *new_mode,
            paging: *paging,
            vmcs: *vmcs,
            block: *block,
            paused_at: *paused_at,
            trust_before: *trust_before,
            deferral: *deferral,
            clock: clock.without_accounts(),
            walker: walker.carry(),
            later: later.clone(),
        }
    }

    /// Goes on where another was, with empty accounts. `spaces`: the code at the beginning of the stream.
    pub(crate) fn restore(&mut self, carry: &Carry, spaces: &Spaces) {
        self.position = carry.position;
        self.finished = carry.finished;
        self.searching = carry.searching;
        self.state = carry.state;
        self.after_branch = carry.after_branch;
        self.after_overflow = carry.after_overflow.then_some(0);
        self.paging_after_overflow = carry.paging_after_overflow;
        self.past = carry.past;
        self.moved_cr3 = carry.moved_cr3;
        self.event_data = carry.event_data;
        self.in_tx = carry.in_tx;
        self.last_ip = carry.last_ip;
        self.group = carry.group;
        self.bound = carry.bound;
        self.held = carry.held.clone();
        self.off_at = carry.off_at;
        self.new_mode = carry.new_mode;
        self.paging = carry.paging;
        self.vmcs = carry.vmcs;
        self.block = carry.block;
        self.paused_at = carry.paused_at;
        self.trust_before = carry.trust_before;
        self.deferral = carry.deferral;
        self.clock = carry.clock.clone();
        self.later = carry.later.clone();
        self.counts = Counts::default();
        self.ledger = self.ledger.part(carry.position as u64, carry.trust);
        self.walker.restore(&carry.walker, spaces);
    }

    /// Empties the accounts: they are those of the part of the stream that begins here.
    pub(crate) fn begin_part(&mut self) -> Carry {
        let carry = self.carry();
        self.after_overflow = carry.after_overflow.then_some(0);
        self.counts = Counts::default();
        self.clock = self.clock.without_accounts();
        self.ledger = self.ledger.part(carry.position as u64, carry.trust);
        carry
    }

    /// Parts end where their ledgers have so many turns.
    pub(crate) fn limit_parts(&mut self, turns: usize) {
        self.ledger.limit(turns);
    }

    /// Hands over the accounts of a part, without what steps have counted.
    pub(crate) fn end_part(&mut self) -> (Counts, Ledger) {
        let counts = self.own_counts();
        let after = (self.ledger).part(self.position as u64, self.ledger.trust());
        (counts, std::mem::replace(&mut self.ledger, after))
    }

    /// Whether steps are taken without being counted, until told otherwise: then `begin_part` forgets all.
    pub(crate) fn idle(&mut self, idle: bool) {
        self.walker.idle(idle);
    }
}
