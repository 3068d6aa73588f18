//! Address spaces: which code image applies where, and which one the traced code is in.
//!
//! A stream of one thread usually runs in one address space, and a single [`SpaceView`] of its code is enough. Three
//! kinds of streams need more:
//!
//! * **Kernel and guests.** PIP and VMCS packets announce CR3, NR and the VMCS pointer. A [`SpaceKey`] maps them to a
//!   view. The kernel (upper half of the addresses) is shared by all processes, and a guest without a key of its own
//!   may have one view for everything that runs while NR is 1.
//! * **Per-CPU streams.** Several threads share the logical processor. The [`ThreadSchedule`] lists, by TSC, which
//!   thread has it: one scheduling interval after the other. The thread selects the view where no key does.
//!
//! [`AddressSpaces`] is the description that the caller builds; [`SpaceSelector`] is the state of one decoder: what the
//! packets have announced, from where on it holds, and which interval is current. Announcements take effect late: a PIP
//! or VMCS packet only when execution next enters from elsewhere (`enter_space`), and an interval only at a TIP.PGE, a
//! far transfer or a PSB+ (`enter_due_intervals`), since a thread switch happens in the kernel.
//!
//! # CR3 against the schedule
//!
//! The decoder's time is a lower bound, so that an interval may have begun a little earlier than it seems. CR3 can
//! reveal this. `PageTableOwners` learns which page tables belong to which process, but only from user code that lies
//! certainly within one interval. If user code later continues with the page tables of the next interval's process,
//! that interval has begun. If CR3 belongs to another process altogether, the schedule and the packets contradict each
//! other; the decoder records that in the coverage ledger, and the page tables count as unknown again, since an ended
//! process's may be reused.

use std::collections::HashMap;
use std::sync::Arc;

use rtit_image::SpaceView;

use crate::cancellation::CancellationToken;
use crate::code_cache::CodeCachePool;

/// What distinguishes address spaces (section 33.5): CR3, NR (whether a guest runs), and the VMCS of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SpaceKey {
    /// CR3[51:5] in place; a PIP does not have the other bits.
    cr3: u64,
    nr: bool,
    vmcs: Option<u64>,
}

const CR3_IN_PIP: u64 = 0x000f_ffff_ffff_ffe0;

impl SpaceKey {
    /// `vmcs`: the VMCS pointer, where CR3 and NR alone do not distinguish guests.
    pub fn new(cr3: u64, nr: bool, vmcs: Option<u64>) -> SpaceKey {
        SpaceKey {
            cr3: cr3 & CR3_IN_PIP,
            nr,
            vmcs,
        }
    }
}

/// The code of a stream: a default view, views by key, and a schedule of threads. Views are numbered as they are added;
/// 0 is the default.
#[derive(Clone, Debug)]
pub struct AddressSpaces {
    pub(crate) views: Vec<SpaceView>,
    keys: Vec<(SpaceKey, usize)>,
    schedule: Arc<ThreadSchedule>,
    shared: KernelAndGuestViews,
    pub(crate) cancellation: CancellationToken,
    pub(crate) cache_pool: Option<CodeCachePool>,
}

/// Indices of views that do not belong to one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct KernelAndGuestViews {
    /// The upper half of the addresses, in every process.
    kernel: Option<usize>,
    /// Everything that runs while NR is 1.
    guest: Option<usize>,
}

impl AddressSpaces {
    /// `view` applies to every CR3 without a key, and until the first PIP.
    pub fn new(view: SpaceView) -> AddressSpaces {
        AddressSpaces {
            views: vec![view],
            keys: Vec::new(),
            schedule: Arc::default(),
            shared: KernelAndGuestViews::default(),
            cancellation: CancellationToken::default(),
            cache_pool: None,
        }
    }

    /// Sets the token that decoders check on long paths without packets.
    pub fn set_cancellation_token(&mut self, token: CancellationToken) {
        self.cancellation = token;
    }

    /// Sets the pool from which a stream of one address space takes its code cache, and to which it returns it.
    pub fn set_code_cache_pool(&mut self, pool: CodeCachePool) {
        self.cache_pool = Some(pool);
    }

    /// Sets the kernel's view: the upper half of the addresses of every process, whatever CR3 is (with page-table
    /// isolation each process has two), but not of a guest. It takes precedence over
    /// keys with NR clear.
    pub fn set_kernel_view(&mut self, view: SpaceView) {
        self.shared.kernel = Some(self.add_view(view));
    }

    /// Sets the view of guests that have no key.
    pub fn set_guest_view(&mut self, view: SpaceView) {
        self.shared.guest = Some(self.add_view(view));
    }

    /// Moves every view to the beginning of time.
    pub(crate) fn rewind_all_views(&mut self) {
        for view in &mut self.views {
            view.advance_to_time(0);
        }
    }

    /// Whether the same keys were added in the same order.
    pub(crate) fn has_same_keys(&self, other: &AddressSpaces) -> bool {
        self.keys == other.keys && self.shared == other.shared
    }

    /// Whether the stream cannot be decoded in parallel: a view loads pages on demand, in order and only those that are
    /// needed, or visited intervals must be reported in order.
    pub(crate) fn needs_one_thread(&self) -> bool {
        self.views.iter().any(SpaceView::has_pager) || self.has_thread_schedule()
    }

    /// Whether there is one view and no thread schedule.
    pub(crate) fn is_single_space(&self) -> bool {
        self.views.len() == 1 && self.schedule.is_empty()
    }

    /// Whether threads share the logical processor.
    pub(crate) fn has_thread_schedule(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Adds a view for threads of the schedule. Returns its index.
    pub fn add_view(&mut self, view: SpaceView) -> usize {
        self.views.push(view);
        self.views.len() - 1
    }

    /// Adds a thread that the schedule can refer to. Returns its index.
    pub fn add_scheduled_thread(&mut self, thread: ScheduledThread) -> u32 {
        Arc::make_mut(&mut self.schedule).add_scheduled_thread(thread)
    }

    /// Adds a scheduling interval: from TSC `start` on the thread with index `thread` has the logical processor.
    /// Intervals are added in order of time. One takes effect where execution next enters from elsewhere: at a TIP.PGE,
    /// a far transfer or a PSB+.
    pub fn add_scheduling_interval(&mut self, start: u64, thread: u32) {
        Arc::make_mut(&mut self.schedule).add_scheduling_interval(start, thread);
    }

    /// Adds the view for `key`. A key with a VMCS pointer takes precedence over one without.
    pub fn add_space(&mut self, key: SpaceKey, view: SpaceView) {
        let index = self.add_view(view);
        self.keys.push((key, index));
    }
}

impl From<SpaceView> for AddressSpaces {
    fn from(view: SpaceView) -> AddressSpaces {
        AddressSpaces::new(view)
    }
}

/// A thread of the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScheduledThread {
    /// Index of the thread's view (`AddressSpaces::add_view`, or 0); `None`: the thread is not decoded.
    pub view: Option<usize>,
    /// Views of the guest that the thread runs while NR is 1.
    pub guest: GuestViews,
    /// Nothing is traced in its intervals, or their start is certain from elsewhere: it makes no position ambiguous.
    pub idle: bool,
}

/// Indices of the views of a guest, for a thread that is a virtual machine's processor; `None`: not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GuestViews {
    /// The lower half of the addresses: the guest's process.
    pub process: Option<usize>,
    /// The upper half: the guest's kernel.
    pub kernel: Option<usize>,
}

/// Scheduling intervals in order of time. There are millions of them, of few threads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct ThreadSchedule {
    /// TSC at which each interval starts.
    starts: Vec<u64>,
    /// The thread of each interval, as an index into `threads`.
    thread_indices: Vec<u32>,
    threads: Vec<ScheduledThread>,
}

impl ThreadSchedule {
    fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    fn add_scheduled_thread(&mut self, thread: ScheduledThread) -> u32 {
        self.threads.push(thread);
        (self.threads.len() - 1) as u32
    }

    fn add_scheduling_interval(&mut self, start: u64, thread: u32) {
        self.starts.push(start);
        self.thread_indices.push(thread);
    }

    /// TSC at which an interval starts; `None` after the last one.
    fn interval_start(&self, interval: usize) -> Option<u64> {
        self.starts.get(interval).copied()
    }

    /// The thread of an interval; `None` if it is not known.
    fn thread_of_interval(&self, interval: usize) -> Option<ScheduledThread> {
        let index = usize::try_from(*self.thread_indices.get(interval)?).ok()?;
        self.threads.get(index).copied()
    }

    /// Number of intervals from `first` on that start at or before `time`, idle ones left out.
    fn count_due_intervals(&self, first: usize, time: u64) -> usize {
        let starts = self.starts.get(first..).unwrap_or(&[]);
        let count = starts.iter().take_while(|&&start| start <= time).count();
        let is_busy = |&interval: &usize| {
            !self
                .thread_of_interval(interval)
                .is_some_and(|thread| thread.idle)
        };
        (first..first + count).filter(is_busy).count()
    }
}

/// CR3[51:12]: the address of the page tables. The bits below select TLB entries only.
const PAGE_TABLE_BITS: u64 = 0x000f_ffff_ffff_f000;
/// TSC ticks by which the decoder's time may be too early.
const MAX_CLOCK_LAG: u64 = 1 << 18;

/// Which process owns which page tables, as far as it is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PageTableOwners {
    /// CR3[51:12] to the view of its process.
    views: HashMap<u64, usize>,
    unconfirmed: Option<UnconfirmedPageTableOwner>,
}

/// User code ran with a CR3 in an interval, at TSC `time` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnconfirmedPageTableOwner {
    cr3: u64,
    view: usize,
    interval: usize,
    time: u64,
}

impl PageTableOwners {
    /// Accepts the unconfirmed owner if time has moved on within the same interval, which ends at `until`.
    fn confirm_page_table_owner(&mut self, interval: usize, time: u64, until: u64) {
        let owner = self.unconfirmed;
        let Some(owner) = owner.filter(|owner| owner.interval != interval || owner.time < time)
        else {
            return;
        };
        self.unconfirmed = None;
        if owner.interval == interval && time < until {
            self.views.insert(owner.cr3, owner.view);
        }
    }
}

/// What selects the current address space of one decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceSelector {
    keys: HashMap<SpaceKey, usize>,
    /// CR3 and NR in effect.
    paging: Option<(u64, bool)>,
    vmcs: Option<u64>,
    /// CR3 and NR of a PIP that takes effect at the next entry.
    pub next_paging: Option<(u64, bool)>,
    pub next_vmcs: Option<u64>,
    schedule: Arc<ThreadSchedule>,
    shared: KernelAndGuestViews,
    intervals_begun: usize,
    /// The view of the current thread, or of the last one that had a view.
    view: usize,
    guest: GuestViews,
    /// Intervals in which execution entered from elsewhere, without repetitions in a row.
    visited_intervals: Vec<usize>,
    /// Number of such entries. 0 without a schedule, so that decoders at the same position compare equal wherever they
    /// started.
    entries: u64,
    owners: PageTableOwners,
    cr3_contradiction: Option<u64>,
}

impl SpaceSelector {
    pub fn new(spaces: &AddressSpaces) -> SpaceSelector {
        SpaceSelector {
            keys: spaces.keys.iter().copied().collect(),
            schedule: Arc::clone(&spaces.schedule),
            shared: spaces.shared,
            ..SpaceSelector::default()
        }
    }

    pub fn reset_for_next_stream(&mut self) {
        *self = SpaceSelector {
            keys: std::mem::take(&mut self.keys),
            schedule: std::mem::take(&mut self.schedule),
            shared: self.shared,
            ..SpaceSelector::default()
        };
    }

    /// Index of the kernel's view.
    pub fn kernel_view_index(&self) -> Option<usize> {
        self.shared.kernel
    }

    /// Whether threads share the logical processor.
    pub fn has_schedule(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Number of scheduling intervals that have begun.
    pub fn begun_interval_count(&self) -> usize {
        self.intervals_begun
    }

    /// The intervals in which anything ran, in order; 0 is the time before the first interval.
    pub fn visited_intervals(&self) -> &[usize] {
        &self.visited_intervals
    }

    /// TSC at which the next interval starts; `u64::MAX` if there is none.
    pub fn next_interval_start(&self) -> u64 {
        self.schedule
            .interval_start(self.intervals_begun)
            .unwrap_or(u64::MAX)
    }

    /// How often execution has entered from elsewhere; 0 without a schedule.
    pub fn execution_entry_count(&self) -> u64 {
        self.entries
    }

    /// Whether the current interval's thread is idle.
    pub fn is_current_thread_idle(&self) -> bool {
        self.current_thread().is_some_and(|thread| thread.idle)
    }

    /// Whether the start of the next interval is certain from elsewhere (`ScheduledThread::idle`).
    pub fn is_next_start_certain(&self) -> bool {
        self.schedule
            .thread_of_interval(self.intervals_begun)
            .is_some_and(|thread| thread.idle)
    }

    /// Number of intervals that are still to begin and start at or before `time`, idle ones left out.
    pub fn count_due_intervals(&self, time: u64) -> usize {
        self.schedule
            .count_due_intervals(self.intervals_begun, time)
    }

    /// Begins all intervals that start at or before `time`. Returns whether the thread that then runs is to be decoded.
    pub fn enter_due_intervals(&mut self, time: u64) -> bool {
        if !self.schedule.is_empty() {
            self.entries += 1;
        }
        let until = self.next_interval_start();
        self.owners
            .confirm_page_table_owner(self.intervals_begun, time, until);
        while self
            .schedule
            .interval_start(self.intervals_begun)
            .is_some_and(|start| start <= time)
        {
            self.intervals_begun += 1;
        }
        self.record_visited_interval();
        let Some(thread) = self.current_thread() else {
            return true;
        };
        self.view = thread.view.unwrap_or(self.view);
        self.guest = thread.guest;
        thread.view.is_some()
    }

    fn current_thread(&self) -> Option<ScheduledThread> {
        self.schedule
            .thread_of_interval(self.intervals_begun.checked_sub(1)?)
    }

    fn record_visited_interval(&mut self) {
        if self.visited_intervals.last() != Some(&self.intervals_begun) {
            self.visited_intervals.push(self.intervals_begun);
        }
    }

    /// Compares the CR3 of user code with the schedule (module documentation).
    fn check_cr3_against_schedule(&mut self, cr3: u64, time: u64) {
        let cr3 = cr3 & PAGE_TABLE_BITS;
        match self.owners.views.get(&cr3) {
            None => {
                self.owners.unconfirmed = Some(UnconfirmedPageTableOwner {
                    cr3,
                    view: self.view,
                    interval: self.intervals_begun,
                    time,
                });
            }
            Some(&view) if view == self.view => {}
            Some(&view) => {
                let next = self
                    .schedule
                    .thread_of_interval(self.intervals_begun)
                    .unwrap_or_default();
                let is_due = self.next_interval_start().saturating_sub(time) <= MAX_CLOCK_LAG;
                if next.view == Some(view) && is_due {
                    self.guest = next.guest;
                    self.intervals_begun += 1;
                    self.view = view;
                    self.record_visited_interval();
                } else {
                    self.owners.views.remove(&cr3);
                    self.cr3_contradiction = Some(cr3);
                }
            }
        }
    }

    /// Returns, once, the CR3 that contradicted the schedule at the last entry.
    pub fn take_cr3_contradiction(&mut self) -> Option<u64> {
        self.cr3_contradiction.take()
    }

    /// The view for the CR3 and VMCS in effect; `None` if there is no key for them.
    fn view_by_key(&self) -> Option<usize> {
        let (cr3, nr) = self.paging?;
        let view = |vmcs| self.keys.get(&SpaceKey::new(cr3, nr, vmcs)).copied();
        let of_guest = self.vmcs.and_then(|pointer| view(Some(pointer)));
        of_guest.or_else(|| view(None))
    }

    /// Whether CR3 selects the code of programs, and not the schedule.
    pub fn is_code_selected_by_cr3(&self) -> bool {
        self.view_by_key().is_some()
    }

    /// Puts the last PIP into effect, at a VM entry the last VMCS packet too, and returns the index of the view for
    /// code at `ip`. `time`: `enter_due_intervals` was called with it; `None`: execution did not enter from elsewhere.
    pub fn enter_space(&mut self, ip: u64, is_vm_entry: bool, time: Option<u64>) -> usize {
        self.paging = self.next_paging.take().or(self.paging);
        if is_vm_entry {
            self.vmcs = self.next_vmcs.take().or(self.vmcs);
        }
        let by_key = self.view_by_key();
        let KernelAndGuestViews { kernel, guest } = self.shared;
        let shared = match self.paging {
            Some((_, true)) if ip >> 63 != 0 => self.guest.kernel.or(guest),
            Some((_, true)) => self.guest.process.or(guest),
            _ if ip >> 63 != 0 => kernel,
            _ => None,
        };
        if let (None, None, Some((cr3, false)), Some(time)) = (by_key, shared, self.paging, time) {
            if kernel.is_some() && !self.schedule.is_empty() {
                self.check_cr3_against_schedule(cr3, time);
            }
        }
        let is_guest = self.paging.is_some_and(|(_, nr)| nr);
        let of_kernel = kernel.filter(|_| ip >> 63 != 0 && !is_guest);
        of_kernel.or(by_key).or(shared).unwrap_or(self.view)
    }
}
