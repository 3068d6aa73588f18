//! Calls between functions, with the instructions that ran until each returned.
//!
//! [`CallSink`] reports the control flow of a thread to [`CallStacks`], which has the rules. It recognizes signals and
//! system calls from where tracing goes off and on: code continues elsewhere than it stopped.
//!
//! The threads of a process have one `CallStacks`, in [`ProcessCalls`], and a sink for each. The caller decodes one
//! after the other, and gives `ProcessCalls` from sink to sink. A sink is full where its thread may switch stacks: it
//! waits until the caller has decoded the other threads up to this time.
//!
//! If the kernel was traced, there is a sink for each processor instead. It follows one task after the other: at each
//! entry of the kernel's `__switch_to`, the [`TaskSchedule`] of the processor has the next one.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::sync::Arc;

use rtit_calls::{
    CallKind, CallLog, CallStacks, CallTree, CodeInfo, EndedCall, FunctionRole, Node, RootKind,
    StackCounts, SwitchPermit, Wait, KERNEL_START, NO_NODE,
};
use rtit_flow::{
    AddressMap, CountsBy, Event, EventKind, RunEnd, RunFragment, Sink, SinkNeeds, TakenTransition,
};
use rtit_image::LINKAGE_TABLE;

use crate::call_steps::{KnownTransitions, ShortRun};
use crate::names::{NameCursor, NameFormatter};

/// Contexts, and the sum of their depths, as each is printed with all its callers. Calls beyond belong to the context
/// of their caller.
const MAX_CONTEXTS: usize = 1 << 20;
const MAX_TOTAL_DEPTH: usize = 1 << 25;
/// Addresses in the cache of `AddressFacts`.
const MAX_KNOWN_ADDRESSES: usize = 1 << 18;
/// No region, or no row.
pub const NONE: u32 = u32::MAX;

/// An address: a region, and an offset in its file; without a region, the address itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CallSiteAddress {
    pub region: u32,
    pub offset: u64,
}

const NO_SITE: CallSiteAddress = CallSiteAddress {
    region: NONE,
    offset: 0,
};

/// A way to enter a function. `from` is `NO_SITE` if the caller is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallEdge {
    pub from: CallSiteAddress,
    pub to: CallSiteAddress,
    pub kind: CallKind,
    /// Of roots: the kind, and the thread.
    pub root: Option<(RootKind, u32)>,
}

impl CallEdge {
    /// Whether this stands for all edges beyond the limit.
    fn is_beyond_limit(&self) -> bool {
        (self.from, self.to) == (NO_SITE, NO_SITE)
    }
}

/// An edge as it is shown: addresses when it was first taken, and the name of the called function.
#[derive(Clone, Copy, Debug)]
pub struct NamedEdge {
    pub edge: CallEdge,
    /// The call; 0 if it is not known.
    pub call_site: u64,
    pub entry: u64,
    /// Index in `FunctionTable::functions`.
    pub function: u32,
    /// The called function as `CodeInfo::function_at` numbers it; the entry where no function is known.
    callee: u64,
}

/// A function that was called, as indices into `FunctionTable::names` and `modules`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NamedFunction {
    pub name: u32,
    pub module: u32,
}

/// The called functions.
#[derive(Default)]
pub struct FunctionTable {
    pub functions: Vec<NamedFunction>,
    pub names: Vec<String>,
    /// The paths of files as they were recorded, and the names of other memory; empty if nothing is mapped.
    pub modules: Vec<Arc<OsStr>>,
    numbers_of_names: HashMap<String, u32>,
    numbers_of_modules: HashMap<Arc<OsStr>, u32>,
    numbers: HashMap<NamedFunction, u32>,
}

impl FunctionTable {
    /// The function of an edge.
    pub fn function_of_edge(&self, edge: Option<&NamedEdge>) -> NamedFunction {
        let function = edge.and_then(|edge| self.functions.get(edge.function as usize));
        function
            .copied()
            .unwrap_or(NamedFunction { name: 0, module: 0 })
    }

    fn number_of_function(&mut self, name: String, module: &Arc<OsStr>) -> u32 {
        let (names, modules) = (&mut self.names, &mut self.modules);
        let name = self.numbers_of_names.entry(name);
        let name = *name.or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        });
        let module = self.numbers_of_modules.entry(Arc::clone(module));
        let module = *module.or_insert_with_key(|module| {
            modules.push(Arc::clone(module));
            modules.len() as u32 - 1
        });
        let function = NamedFunction { name, module };
        let functions = &mut self.functions;
        *self.numbers.entry(function).or_insert_with(|| {
            functions.push(function);
            functions.len() as u32 - 1
        })
    }
}

/// All calls over one edge.
#[derive(Clone, Copy, Debug)]
pub struct CallTotal {
    pub edge: CallEdge,
    pub calls: u64,
    /// Instructions that ran until the calls returned. Calls made while the function already runs on this stack add
    /// none: so the sum over all edges to a function has each of its instructions once.
    pub inclusive: u64,
}

/// A call with its callers. A recursive call has the context of the first.
#[derive(Clone, Copy, Debug)]
pub struct CallContext {
    /// Index of the context of the caller; `NONE` at the bottom of the stack.
    pub parent: u32,
    /// Index of the `CallTotal`.
    pub call: u32,
    /// Instructions of the called function itself.
    pub own: u64,
}

/// How often consecutive instructions ran in a context.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ContextRun {
    /// Index of the `CallContext`.
    pub context: u32,
    /// The first instruction.
    pub start: CallSiteAddress,
    pub instructions: u32,
    pub count: u64,
}

/// The calls of a process, added up. Instructions of calls beyond a limit count for a caller.
pub struct CallSums {
    pub calls: Vec<CallTotal>,
    pub contexts: Vec<CallContext>,
    /// Sorted. Runs beyond the limit are left out, and those of undone calls.
    pub runs: Vec<ContextRun>,
    pub beyond_contexts: u64,
    pub beyond_edges: u64,
}

/// The calls of the threads of a process.
pub struct FinishedCalls {
    pub edges: Vec<NamedEdge>,
    pub functions: FunctionTable,
    pub tree: CallTree,
    pub counts: StackCounts,
    /// Like `CallSums::runs`, but not sorted, and with a node in place of the context.
    pub runs: Vec<ContextRun>,
}

/// What is known about an address.
#[derive(Clone, Copy, Default)]
struct AddressFacts {
    function: Option<u64>,
    starts_function: bool,
    role: FunctionRole,
}

/// Names of code, as the call stacks need them.
struct NamedCode {
    names: NameCursor,
    /// Added to the numbers of the regions of `names`, so that those of other processes differ.
    first_region: u32,
    facts: AddressMap<AddressFacts>,
    edges: Vec<NamedEdge>,
    functions: FunctionTable,
    formatter: NameFormatter,
    numbers: HashMap<CallEdge, u32>,
    max_edges: usize,
    /// The numbers of JavaScript functions, by name. V8 compiles a function several times, and continues running calls
    /// in the new code.
    javascript_functions: HashMap<String, u64>,
}

/// Returns the name that all code of a JavaScript function shares: `f a.js:1:10` for `JS:*f a.js:1:10`. V8 marks its
/// interpreter and its compilers by `~`, `^`, `+` and `*`.
fn javascript_function(name: &str) -> Option<&str> {
    let (kind, name) = name.split_once(':')?;
    let is_function = matches!(kind, "JS" | "Function" | "LazyCompile");
    is_function.then(|| name.trim_start_matches(['~', '^', '+', '*']))
}

impl NamedCode {
    fn facts_at(&mut self, ip: u64) -> AddressFacts {
        if let Some(&facts) = self.facts.get(&ip) {
            return facts;
        }
        let found = self.names.find_name_of_address(ip);
        let facts = found.map_or_else(AddressFacts::default, |found| match found.function {
            None => AddressFacts::default(),
            Some((index, function)) => {
                let (name, is_part) = match function.name.split_once(".cold") {
                    Some((name, _)) => (name, true),
                    None => (function.name.as_str(), false),
                };
                let whole = is_part
                    .then(|| self.names.find_function_in_region(found.region, name))
                    .flatten();
                let region = self.first_region + found.region;
                let own_number = u64::from(region) << 32 | u64::from(whole.unwrap_or(index));
                let number = match javascript_function(name) {
                    None => own_number,
                    Some(function) => *self
                        .javascript_functions
                        .entry(function.to_owned())
                        .or_insert(own_number),
                };
                let role = FunctionRole::of_name(name);
                AddressFacts {
                    function: Some(number),
                    starts_function: found.offset == 0
                        && !is_part
                        && !name.ends_with("@plt")
                        && role != FunctionRole::JumpsIndirectly
                        && name != LINKAGE_TABLE,
                    role,
                }
            }
        });
        if self.facts.len() >= MAX_KNOWN_ADDRESSES {
            self.facts.clear();
        }
        self.facts.insert(ip, facts);
        facts
    }

    fn region_at(&self, ip: u64) -> Option<u32> {
        let found = self.names.find_name_of_address(ip);
        found.map(|found| found.region)
    }

    fn site_of_address(&self, ip: u64) -> CallSiteAddress {
        let region = self.region_at(ip);
        let known = region
            .and_then(|index| Some((index, self.names.process_names().region_at_index(index)?)));
        match known {
            None => CallSiteAddress {
                region: NONE,
                offset: ip,
            },
            Some((index, region)) => CallSiteAddress {
                region: self.first_region + index,
                offset: (ip - region.start).wrapping_add(region.offset),
            },
        }
    }

    fn number_of_edge(&mut self, edge: CallEdge, call_site: u64, entry: u64) -> u32 {
        if let Some(&known) = self.numbers.get(&edge) {
            return known;
        }
        if self.edges.len() < self.max_edges {
            return self.add_edge(edge, call_site, entry);
        }
        // All further edges of a kind share a number.
        let edge = CallEdge {
            from: NO_SITE,
            to: NO_SITE,
            ..edge
        };
        match self.numbers.get(&edge) {
            Some(&known) => known,
            None => self.add_edge(edge, 0, 0),
        }
    }

    fn add_edge(&mut self, edge: CallEdge, call_site: u64, entry: u64) -> u32 {
        let mut name = String::new();
        let mut module = Arc::from(OsStr::new(""));
        if let Some(found) = self.names.find_name_of_address(entry) {
            if let Some(region) = self.names.process_names().region_at_index(found.region) {
                module = Arc::clone(&region.path);
            }
            match found.function {
                Some((_, function)) => name.push_str(self.formatter.demangled_name(&function.name)),
                None => self.formatter.write_address(&mut name, Some(found), entry),
            }
        } else if entry != 0 {
            self.formatter.write_address(&mut name, None, entry);
        }
        let function = self.functions.number_of_function(name, &module);
        let callee = self.facts_at(entry).function.unwrap_or(entry);
        let number = self.edges.len() as u32;
        self.edges.push(NamedEdge {
            edge,
            call_site,
            entry,
            function,
            callee,
        });
        self.numbers.insert(edge, number);
        number
    }
}

impl CodeInfo for NamedCode {
    fn function_at(&mut self, ip: u64) -> Option<u64> {
        self.facts_at(ip).function
    }

    fn starts_function(&mut self, ip: u64) -> bool {
        self.facts_at(ip).starts_function
    }

    fn role_at(&mut self, ip: u64) -> FunctionRole {
        self.facts_at(ip).role
    }

    fn call_number(&mut self, from: Option<u64>, to: u64, kind: CallKind) -> u32 {
        let edge = CallEdge {
            from: from.map_or(NO_SITE, |from| self.site_of_address(from)),
            to: self.site_of_address(to),
            kind,
            root: None,
        };
        self.number_of_edge(edge, from.unwrap_or(0), to)
    }

    fn root_number(&mut self, kind: RootKind, entry: u64, thread: u32) -> u32 {
        let edge = CallEdge {
            from: NO_SITE,
            to: self.site_of_address(entry),
            kind: CallKind::Root,
            root: Some((kind, thread)),
        };
        self.number_of_edge(edge, 0, entry)
    }
}

/// The tasks that run on a processor, one after the other. A task is a thread of `ProcessCalls`.
pub struct TaskSchedule {
    /// The entry of the kernel's `__switch_to`, which runs on the stack of the next task.
    pub switch_address: u64,
    /// The time (TSC) at which each scheduling interval starts, and its task.
    pub starts: Vec<u64>,
    pub tasks: Vec<u32>,
    /// The task before the first interval.
    pub unknown_task: u32,
    /// The number of intervals that have begun.
    pub begun: usize,
}

/// Time by which the start of an interval may be later than the lower bound of the time of its `__switch_to`.
const MAX_SWITCH_LAG: u64 = 1 << 18;

impl TaskSchedule {
    fn task_of_interval(&self, begun: usize) -> u32 {
        let task = begun.checked_sub(1).and_then(|at| self.tasks.get(at));
        task.copied().unwrap_or(self.unknown_task)
    }

    /// Returns the number of intervals that have begun by `time`, a lower bound, at least those that began before.
    fn count_begun(&self, time: u64) -> usize {
        let later = self.starts.get(self.begun..).unwrap_or_default();
        self.begun + later.partition_point(|&start| start <= time)
    }

    /// Returns the number of intervals that have begun when `__switch_to` is entered at `time`, a lower bound. A call
    /// without a record changes no task.
    fn count_begun_at_switch(&self, time: u64) -> usize {
        let running = self.task_of_interval(self.begun);
        let mut next = self.begun;
        while self.tasks.get(next) == Some(&running) {
            next += 1;
        }
        let is_recorded = |&start: &u64| start <= time.saturating_add(MAX_SWITCH_LAG);
        match self.starts.get(next).filter(|start| is_recorded(start)) {
            Some(_) => self.count_begun(time).max(next + 1),
            None => self.begun,
        }
    }
}

/// The symbol names for each process that has tasks in the trace.
struct TaskNames {
    /// For each process: its names, and the number of its first region. `NamedCode` has the names of the current task.
    processes: Vec<(NameCursor, u32)>,
    /// By task: the index in `processes`.
    process_of_task: Vec<u32>,
    current: usize,
}

/// How control left the last run.
#[derive(Clone, Copy)]
enum Departure {
    /// A transfer at `from`; `next` follows in memory.
    Transfer { end: RunEnd, from: u64, next: u64 },
    /// A system call; `region` had its code.
    SystemCall {
        from: u64,
        next: u64,
        region: Option<u32>,
    },
    /// An event before the instruction at `ip`.
    Event { ip: u64 },
    /// Tracing went off after a transfer to code outside of the filters.
    Untraced { is_return: bool, next: u64 },
    /// The kernel returned to programs, which are not traced.
    LeftKernel,
}

/// Counts runs of instructions by node of the call tree.
struct NodeRuns {
    /// The count of a node and number of instructions, and of a first instruction.
    counts: CountsBy<(u64, u64)>,
    starts: AddressMap<CallSiteAddress>,
    max_runs: usize,
}

impl NodeRuns {
    #[inline]
    fn count_run(&mut self, node: u32, run: &ShortRun, code: &NamedCode) {
        let key = (u64::from(node) << 32 | run.instructions, run.start);
        if let Some(count) = self.counts.get_mut(&key) {
            *count += 1;
        } else if self.counts.len() < self.max_runs {
            self.counts.insert(key, 1);
            let start = self.starts.entry(run.start);
            start.or_insert_with(|| code.site_of_address(run.start));
        }
    }

    /// Returns the runs by node of the finished tree. `node_numbers`: the number in it of each node.
    fn take_runs(&mut self, node_numbers: &[u32]) -> Vec<ContextRun> {
        let counts = std::mem::take(&mut self.counts);
        let runs = counts.into_iter().filter_map(|((key, start), count)| {
            let node = *node_numbers.get((key >> 32) as usize)?;
            Some(ContextRun {
                context: (node != NO_NODE).then_some(node)?,
                start: *self.starts.get(&start)?,
                instructions: key as u32,
                count,
            })
        });
        runs.collect()
    }
}

/// The calls of a process while its threads are decoded. `log` gets each of them.
pub struct ProcessCalls<L = ()> {
    stacks: CallStacks<NamedCode, L>,
    runs: NodeRuns,
    /// If the threads are the tasks of processors.
    task_names: Option<TaskNames>,
}

impl<L: CallLog> ProcessCalls<L> {
    /// `is_whole`: the trace begins with the threads. Calls beyond the first `max_edges` pairs of caller and callee
    /// share one number for each kind of call. The first `max_runs` runs of instructions are counted by context.
    /// `has_several_threads`: they switch stacks only with a permit.
    pub fn new(
        names: NameCursor,
        is_whole: bool,
        max_edges: usize,
        max_runs: usize,
        has_several_threads: bool,
        log: L,
    ) -> ProcessCalls<L> {
        let code = NamedCode {
            names,
            first_region: 0,
            facts: AddressMap::default(),
            edges: Vec::new(),
            functions: FunctionTable::default(),
            formatter: NameFormatter::default(),
            numbers: HashMap::new(),
            max_edges,
            javascript_functions: HashMap::new(),
        };
        let root = if is_whole {
            RootKind::Start
        } else {
            RootKind::Unknown
        };
        let mut stacks = CallStacks::with_log(code, root, log);
        if has_several_threads {
            stacks.order_switches();
        }
        ProcessCalls {
            stacks,
            runs: NodeRuns {
                counts: CountsBy::default(),
                starts: AddressMap::default(),
                max_runs,
            },
            task_names: None,
        }
    }

    /// The threads are the tasks of processors, each with the names of its process: an index in `names`.
    pub fn set_task_names(&mut self, names: Vec<NameCursor>, process_of_task: Vec<u32>) {
        let mut first_region = 0;
        let mut processes = Vec::new();
        for each in names {
            let regions = each.process_names().region_count();
            processes.push((each, first_region));
            first_region += regions;
        }
        self.task_names = Some(TaskNames {
            processes,
            process_of_task,
            current: usize::MAX,
        });
    }

    /// Follows another task. Returns whether the names of code change.
    fn switch_task(&mut self, task: u32) -> bool {
        self.stacks.switch_thread(task);
        let Some(tasks) = &mut self.task_names else {
            return false;
        };
        let process = tasks.process_of_task.get(task as usize);
        let process = process.map_or(0, |&process| process as usize);
        if process == tasks.current {
            return false;
        }
        let code = &mut self.stacks.code;
        let time = code.names.current_time();
        if let Some(left) = tasks.processes.get_mut(tasks.current) {
            left.0 = code.names.clone();
        }
        tasks.current = process;
        if let Some((names, first_region)) = tasks.processes.get(process) {
            code.names = names.clone();
            code.first_region = *first_region;
        }
        code.names.advance_to_time(time);
        code.facts.clear();
        self.stacks.forget_code();
        true
    }

    /// Ends all calls; `log` gets those that have not ended.
    pub fn end_calls(&mut self) {
        self.stacks.finish();
    }

    /// Ends all calls.
    pub fn finish(&mut self) -> FinishedCalls {
        let (tree, node_numbers) = self.stacks.finish();
        let runs = self.runs.take_runs(&node_numbers);
        let counts = self.stacks.counts();
        let code = &mut self.stacks.code;
        FinishedCalls {
            edges: std::mem::take(&mut code.edges),
            functions: std::mem::take(&mut code.functions),
            tree,
            counts,
            runs,
        }
    }

    pub fn log_mut(&mut self) -> &mut L {
        self.stacks.log_mut()
    }

    /// The edges that the calls so far have numbers of, and their functions.
    pub fn named_edges(&self) -> (&[NamedEdge], &FunctionTable) {
        (&self.stacks.code.edges, &self.stacks.code.functions)
    }

    /// The next instruction is at `to`.
    #[inline]
    fn arrive_at_instruction(&mut self, departure: Departure, to: u64) {
        let stacks = &mut self.stacks;
        match departure {
            Departure::Transfer { end, from, next } => match end {
                RunEnd::Call | RunEnd::IndirectCall => stacks.call(from, next, to),
                RunEnd::Return => stacks.return_to(from, to),
                RunEnd::Jump | RunEnd::Conditional => stacks.direct_jump(from, to),
                RunEnd::IndirectJump => stacks.indirect_jump(from, to),
                RunEnd::Far if from >= KERNEL_START => stacks.return_from_kernel(from, next, to),
                _ => {}
            },
            Departure::SystemCall { next, .. } if next == to => {}
            Departure::SystemCall { from, next, .. } if to >= KERNEL_START => {
                stacks.call(from, next, to);
            }
            Departure::SystemCall { from, next, region } => {
                if stacks.code.region_at(from) == region {
                    stacks.system_call_to(from, next, to);
                } else {
                    stacks.replace_program(); // exec
                }
            }
            Departure::Event { ip } if ip != to => stacks.enter_handler(ip, to),
            Departure::Event { .. } => {}
            Departure::Untraced { is_return, next } => stacks.reenter_filter(is_return, next, to),
            Departure::LeftKernel if to >= KERNEL_START => stacks.reenter_kernel(),
            Departure::LeftKernel => {}
        }
    }

    #[inline]
    fn execute(&mut self, run: &ShortRun) {
        self.stacks.execute(run.start, run.instructions);
        if self.runs.max_runs > 0 {
            let node = self.stacks.current_node();
            self.runs.count_run(node, run, &self.stacks.code);
        }
    }
}

/// A call of the sink method of the same name.
enum SinkCall {
    /// With the times at the beginning and at the end of the run.
    ExtendRun(ShortRun, [u64; 2]),
    EndRun(RunEnd),
    Event(EventKind, u64),
    SetCodeTime(u64),
}

/// The sink for a thread.
pub struct CallSink<L = ()> {
    /// The number of the thread in its process; if there is a schedule, of the task that runs.
    thread: u32,
    /// Of a processor.
    schedule: Option<TaskSchedule>,
    /// While `__switch_to` runs, on the stack of `thread`: the calls that it made and that have not returned.
    switch_depth: Option<u32>,
    /// Packets were lost: another task may run.
    has_lost_task: bool,
    /// None while another thread is decoded.
    process: Option<Box<ProcessCalls<L>>>,
    /// The names at the time of this thread, while another one is decoded.
    names: Option<NameCursor>,
    departure: Option<Departure>,
    /// The last instruction, and the address after it.
    last: (u64, u64),
    is_run_open: bool,
    /// What the thread waits for, and the time at which it may switch stacks. `delayed` came since.
    wait: Option<(Wait, u64)>,
    delayed: VecDeque<SinkCall>,
    transitions: KnownTransitions,
}

impl<L: CallLog> CallSink<L> {
    pub fn new(thread: u32, names: NameCursor) -> CallSink<L> {
        CallSink {
            thread,
            schedule: None,
            switch_depth: None,
            has_lost_task: false,
            process: None,
            names: Some(names),
            departure: None,
            last: (0, 0),
            is_run_open: false,
            wait: None,
            delayed: VecDeque::new(),
            transitions: KnownTransitions::default(),
        }
    }

    /// Returns the sink for a processor.
    pub fn for_processor(schedule: TaskSchedule, names: NameCursor) -> CallSink<L> {
        CallSink {
            schedule: Some(schedule),
            ..CallSink::new(u32::MAX, names)
        }
    }

    /// The calls of the process are followed here from now on. A thread that waits gets a permit.
    pub fn give_process(&mut self, mut process: Box<ProcessCalls<L>>, permit: SwitchPermit) {
        if let Some(schedule) = &self.schedule {
            self.thread = schedule.task_of_interval(schedule.begun);
            if process.switch_task(self.thread) {
                self.transitions.clear();
            }
        } else if let Some(names) = self.names.take() {
            process.stacks.switch_thread(self.thread);
            let is_same_code = names.has_same_regions(&process.stacks.code.names);
            process.stacks.code.names = names;
            if !is_same_code {
                process.stacks.code.facts.clear();
                process.stacks.forget_code();
                self.transitions.clear();
            }
        }
        self.process = Some(process);
        if self.wait.take().is_some() {
            self.proceed(permit);
        }
    }

    /// Returns the calls of the process, for another thread.
    pub fn take_process(&mut self) -> Option<Box<ProcessCalls<L>>> {
        let process = self.process.take()?;
        if self.schedule.is_none() {
            self.names = Some(process.stacks.code.names.clone());
        }
        Some(process)
    }

    /// What the thread waits for, and the time of what it will do.
    pub fn wait(&self) -> Option<(Wait, u64)> {
        self.wait
    }

    /// The trace of the thread has ended. Tasks may go on on another processor.
    pub fn end_thread(&mut self) {
        if let (Some(process), None) = (&mut self.process, &self.schedule) {
            process.stacks.end_thread();
        }
    }

    fn proceed(&mut self, permit: SwitchPermit) {
        if let Some(process) = &mut self.process {
            process.stacks.permit_switch(permit);
        }
        while self.wait.is_none() {
            match self.delayed.pop_front() {
                Some(SinkCall::ExtendRun(run, times)) => self.extend_short_run(run, times),
                Some(SinkCall::EndRun(end)) => self.end_short_run(end),
                Some(SinkCall::Event(kind, ip)) => self.add_event_at(kind, ip),
                Some(SinkCall::SetCodeTime(time)) => self.advance_code(time),
                None => break,
            }
            if let Some(process) = &mut self.process {
                process.stacks.end_permit(); // it was for the first call
            }
        }
    }

    /// Reports where execution continues after the last transfer. Returns whether the thread must wait before.
    #[inline]
    fn arrive(&mut self, to: u64, time: u64) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        process.stacks.set_time(time);
        if self.schedule.is_some() && self.arrive_in_task(to, time) {
            return true;
        }
        let Some(process) = &mut self.process else {
            return false;
        };
        let Some(departure) = self.departure.take() else {
            return false;
        };
        if let (Some(depth), Departure::Transfer { end, next, .. }) =
            (&mut self.switch_depth, departure)
        {
            match end {
                RunEnd::Call | RunEnd::IndirectCall if to != next => *depth += 1,
                RunEnd::Return if *depth > 0 => *depth -= 1,
                RunEnd::Return => {
                    self.switch_depth = None;
                    process.stacks.return_from_switch(to);
                    return false;
                }
                _ => {}
            }
        }
        process.arrive_at_instruction(departure, to);
        let wait = process.stacks.wait();
        if let Some(wait) = wait {
            self.departure = Some(departure);
            self.wait = Some((wait, time));
        }
        wait.is_some()
    }

    /// Switches to another task where the kernel does. Returns whether the processor must wait before.
    #[inline]
    fn arrive_in_task(&mut self, to: u64, time: u64) -> bool {
        let (Some(schedule), Some(process)) = (&mut self.schedule, &mut self.process) else {
            return false;
        };
        let is_switch = to == schedule.switch_address;
        let begun = if is_switch {
            schedule.count_begun_at_switch(time)
        } else if schedule.begun == 0 || self.has_lost_task {
            schedule.count_begun(time)
        } else {
            return false;
        };
        let task = schedule.task_of_interval(begun);
        if task != self.thread {
            if process.stacks.must_wait_before_switch() {
                self.wait = Some((Wait::ForTime, time));
                return true;
            }
            if process.switch_task(task) {
                self.transitions.clear();
            }
            self.thread = task;
            if self.has_lost_task {
                process.stacks.lose_path();
            }
            if process.stacks.current_node() == NO_NODE {
                self.departure = None; // the first function of a stack
            }
            self.switch_depth = is_switch.then_some(0);
        }
        self.has_lost_task = false;
        schedule.begun = begun;
        false
    }

    #[inline]
    fn extend_short_run(&mut self, run: ShortRun, times: [u64; 2]) {
        let [begin_time, end_time] = times;
        if self.arrive(run.start, begin_time) {
            return self.delayed.push_front(SinkCall::ExtendRun(run, times));
        }
        let Some(process) = &mut self.process else {
            return;
        };
        process.execute(&run);
        process.stacks.set_time(end_time);
        self.last = (run.last, run.end);
        self.is_run_open = true;
    }

    #[inline]
    fn end_short_run(&mut self, end: RunEnd) {
        let was_open = std::mem::take(&mut self.is_run_open);
        let Some(process) = &mut self.process else {
            return;
        };
        match end {
            RunEnd::Cut => {}
            RunEnd::Lost => {
                self.departure = None;
                self.switch_depth = None;
                self.has_lost_task = true;
                process.stacks.lose_path();
            }
            _ if !was_open => {} // an event before the first instruction of a run
            RunEnd::Syscall => {
                let (from, next) = self.last;
                let region = process.stacks.code.region_at(from);
                self.departure = Some(Departure::SystemCall { from, next, region });
            }
            _ => {
                let (from, next) = self.last;
                self.departure = Some(Departure::Transfer { end, from, next });
            }
        }
    }

    fn add_event_at(&mut self, kind: EventKind, ip: u64) {
        match kind {
            EventKind::Async | EventKind::AsyncDisabled => {
                let time = self
                    .process
                    .as_ref()
                    .map_or(0, |process| process.stacks.time());
                if self.arrive(ip, time) {
                    return self.delayed.push_front(SinkCall::Event(kind, ip));
                }
                self.departure = Some(Departure::Event { ip });
            }
            EventKind::Disabled => {
                if let Some(Departure::Transfer { end, from, next }) = self.departure {
                    if end == RunEnd::Far && from >= KERNEL_START {
                        self.departure = Some(Departure::LeftKernel);
                    } else if !matches!(end, RunEnd::Event | RunEnd::Far) {
                        self.departure = Some(Departure::Untraced {
                            is_return: end == RunEnd::Return,
                            next,
                        });
                    }
                }
            }
            _ => {}
        }
    }

    fn advance_code(&mut self, time: u64) {
        let Some(process) = &mut self.process else {
            return;
        };
        let stacks = &mut process.stacks;
        let names = &mut stacks.code.names;
        // Also if nothing changes: the names of the next task start at the time of these.
        if names.advance_to_time(time) {
            stacks.code.facts.clear();
            stacks.forget_code();
            self.transitions.clear();
        }
    }

    #[inline]
    fn take_run(&mut self, run: ShortRun, times: [u64; 2]) {
        match self.wait {
            None => self.extend_short_run(run, times),
            Some(_) => self.delayed.push_back(SinkCall::ExtendRun(run, times)),
        }
    }

    #[inline]
    fn take_end(&mut self, end: RunEnd) {
        match self.wait {
            None => self.end_short_run(end),
            Some(_) => self.delayed.push_back(SinkCall::EndRun(end)),
        }
    }
}

impl<L: CallLog> Sink for CallSink<L> {
    const NEEDS: SinkNeeds = SinkNeeds::Order;

    #[inline]
    fn extend_run(&mut self, fragment: &RunFragment<'_>, time: u64) {
        self.take_run(ShortRun::of_fragment(fragment), [time, time]);
    }

    #[inline]
    fn end_run(&mut self, end: RunEnd, _offset: u64) {
        self.take_end(end);
    }

    #[inline]
    fn take_transition(&mut self, transition: &impl TakenTransition) {
        let stacks = match &mut self.process {
            // While the thread waits, the names of its code may be older than the transition.
            Some(process) if process.runs.max_runs == 0 && self.wait.is_none() => {
                &mut process.stacks
            }
            _ => return transition.replay_to_sink(self),
        };
        let stays_in_function = |from, to| stacks.stays_in_function(from, to);
        let steps = self.transitions.steps_of(transition, stays_in_function);
        let (before, after) = transition.branch_times();
        let time = |is_later| if is_later { after } else { before };
        for step in steps {
            let Some(step) = self.transitions.step(step) else {
                return;
            };
            self.take_run(step.run, [time(step.begins_later), time(step.ends_later)]);
            if let Some(end) = step.end {
                self.take_end(end);
            }
        }
    }

    fn add_event(&mut self, event: &Event) {
        match self.wait {
            None => self.add_event_at(event.kind, event.ip),
            Some(_) => self
                .delayed
                .push_back(SinkCall::Event(event.kind, event.ip)),
        }
    }

    fn set_code_time(&mut self, time: u64) {
        match self.wait {
            None => self.advance_code(time),
            Some(_) => self.delayed.push_back(SinkCall::SetCodeTime(time)),
        }
    }

    fn is_full(&self) -> bool {
        let process = self.process.as_ref();
        self.wait.is_some() || process.is_some_and(|process| process.stacks.log().is_full())
    }
}

/// Calls that wait to be taken.
pub struct CallBatch {
    pub calls: Vec<EndedCall>,
    /// Decoding pauses at this number.
    pub max_calls: usize,
}

impl CallLog for CallBatch {
    const IS_ENABLED: bool = true;

    fn add_call(&mut self, call: EndedCall) {
        self.calls.push(call);
    }

    fn is_full(&self) -> bool {
        self.calls.len() >= self.max_calls
    }
}

impl FinishedCalls {
    /// Returns the thread of each node: the one in which its stack began.
    pub fn threads(&self) -> Vec<u32> {
        let mut threads: Vec<u32> = Vec::new();
        for node in self.tree.nodes() {
            let root = self.edges.get(node.call as usize);
            let root = root.and_then(|edge| edge.edge.root);
            let above = threads.get(node.parent as usize).copied();
            threads.push(above.or(root.map(|(_, thread)| thread)).unwrap_or(0));
        }
        threads
    }

    /// Returns the instructions of each node and its callees. A signal handler does not count for interrupted code.
    pub fn totals(&self) -> Vec<u64> {
        let nodes = self.tree.nodes();
        let mut totals: Vec<u64> = nodes.iter().map(|node| node.own).collect();
        for (at, node) in nodes.iter().enumerate().rev() {
            if node.kind != CallKind::Signal {
                let total = totals.get(at).copied().unwrap_or(0);
                if let Some(above) = totals.get_mut(node.parent as usize) {
                    *above += total;
                }
            }
        }
        totals
    }

    /// Returns `recursive_calls` of the nodes.
    pub fn recursive_nodes(&self) -> Vec<u8> {
        let nodes = self.tree.nodes();
        let function = |node: &Node| {
            let edge = self.edges.get(node.call as usize);
            edge.map_or(NONE, |edge| edge.function)
        };
        let parents: Vec<u32> = nodes.iter().map(|node| node.parent).collect();
        let functions: Vec<u32> = nodes.iter().map(function).collect();
        let kinds: Vec<u8> = nodes.iter().map(|node| node.kind as u8).collect();
        recursive_calls(&parents, &functions, &kinds)
    }

    /// Adds up the calls over each edge, and by context.
    pub fn sum_by_edge(&self) -> CallSums {
        let nodes = self.tree.nodes();
        let totals = self.totals();
        let mut calls: Vec<CallTotal> = self
            .edges
            .iter()
            .map(|named| CallTotal {
                edge: named.edge,
                calls: 0,
                inclusive: 0,
            })
            .collect();
        let mut beyond_edges = 0;
        let mut contexts = ContextBuilder::default();
        let mut active = vec![NONE; self.edges.len()];
        let mut running = RunningFunctions::new(&self.edges);
        let mut contexts_of_nodes = vec![NONE; nodes.len()];
        let parents: Vec<u32> = nodes.iter().map(|node| node.parent).collect();
        for visit in DepthFirst::new(&parents) {
            let (node, at) = match visit {
                Visit::Enter(at) | Visit::Leave(at) => (nodes.get(at as usize), at),
            };
            let Some(node) = node else { continue };
            let (Some(call), Some(active)) = (
                calls.get_mut(node.call as usize),
                active.get_mut(node.call as usize),
            ) else {
                continue;
            };
            let above = contexts_of_nodes.get(node.parent as usize).copied();
            let Some(context) = contexts_of_nodes.get_mut(at as usize) else {
                continue;
            };
            if matches!(visit, Visit::Leave(_)) {
                running.leave(node.call, at);
                if *active == at {
                    *active = NONE;
                }
                continue;
            }
            if call.edge.is_beyond_limit() && node.parent != NO_NODE {
                beyond_edges += node.calls;
                *context = above.unwrap_or(NONE);
                contexts.add_own(*context, node.own);
                continue;
            }
            call.calls += node.calls;
            // A root has no call that could have its instructions.
            let is_root = node.kind == CallKind::Root;
            if is_root || running.enter(node.call, at) {
                call.inclusive += totals.get(at as usize).copied().unwrap_or(0);
            }
            if *active == NONE {
                *active = at;
                *context = contexts.add_context(above.unwrap_or(NONE), node.call, node.calls);
                contexts.add_own(*context, node.own);
            } else {
                let outer = *active;
                let outer = contexts_of_nodes.get(outer as usize).copied();
                let outer = outer.unwrap_or(NONE);
                contexts.add_own(outer, node.own);
                if let Some(context) = contexts_of_nodes.get_mut(at as usize) {
                    *context = outer;
                }
            }
        }
        let runs = self.runs.iter().filter_map(|run| {
            let context = *contexts_of_nodes.get(run.context as usize)?;
            (context != NONE).then_some(ContextRun { context, ..*run })
        });
        let mut runs: Vec<ContextRun> = runs.collect();
        runs.sort_unstable();
        // The nodes of a recursive function can share a context.
        runs.dedup_by(|next, last| {
            let key = |run: &ContextRun| (run.context, run.start, run.instructions);
            let is_same = key(next) == key(last);
            if is_same {
                last.count += next.count;
            }
            is_same
        });
        let is_unused = |call: &CallTotal| call.edge.is_beyond_limit() && call.calls == 0;
        while calls.last().is_some_and(is_unused) {
            calls.pop();
        }
        CallSums {
            calls,
            contexts: contexts.contexts,
            runs,
            beyond_contexts: contexts.beyond,
            beyond_edges,
        }
    }
}

/// Returns 1 for each recursive node of a tree: a node above it has the same function, on the same stack. Calls in a
/// signal handler are not recursive calls of the interrupted functions. The total of a recursive node is part of the
/// total of the node above. A node has its parent, its function, and a `CallKind`.
pub fn recursive_calls(parents: &[u32], functions: &[u32], kinds: &[u8]) -> Vec<u8> {
    let function_at = |at: usize| functions.get(at).map_or(usize::MAX, |&each| each as usize);
    let function_count = (0..functions.len())
        .map(function_at)
        .filter(|&each| each != NONE as usize)
        .max();
    let none_active = vec![0u32; function_count.map_or(0, |most| most + 1)];
    let mut active = none_active.clone();
    let mut interrupted = Vec::new();
    let mut recursive = vec![0; parents.len()];
    for visit in DepthFirst::new(parents) {
        let (Visit::Enter(at) | Visit::Leave(at)) = visit;
        let at = at as usize;
        let is_signal = kinds.get(at) == Some(&(CallKind::Signal as u8));
        if is_signal && matches!(visit, Visit::Enter(_)) {
            interrupted.push(std::mem::replace(&mut active, none_active.clone()));
        }
        if let Some(depth) = active.get_mut(function_at(at)) {
            if matches!(visit, Visit::Leave(_)) {
                *depth -= 1;
            } else {
                if let Some(recursive) = recursive.get_mut(at) {
                    *recursive = u8::from(*depth > 0);
                }
                *depth += 1;
            }
        }
        if is_signal && matches!(visit, Visit::Leave(_)) {
            active = interrupted.pop().unwrap_or_default();
        }
    }
    recursive
}

/// The functions on the stack, with the node of their outermost call.
struct RunningFunctions {
    /// By edge.
    functions: Vec<u32>,
    /// By function; `NONE` if it is not running.
    outermost: Vec<u32>,
}

impl RunningFunctions {
    fn new(edges: &[NamedEdge]) -> RunningFunctions {
        let mut numbers = AddressMap::default();
        let functions = edges.iter().map(|named| {
            let next = numbers.len() as u32;
            *numbers.entry(named.callee).or_insert(next)
        });
        RunningFunctions {
            functions: functions.collect(),
            outermost: vec![NONE; numbers.len()],
        }
    }

    fn outermost_node(&mut self, edge: u32) -> Option<&mut u32> {
        let function = *self.functions.get(edge as usize)?;
        self.outermost.get_mut(function as usize)
    }

    /// Enters the function of an edge; returns whether it was not running.
    fn enter(&mut self, edge: u32, node: u32) -> bool {
        match self.outermost_node(edge) {
            Some(outermost) if *outermost == NONE => {
                *outermost = node;
                true
            }
            _ => false,
        }
    }

    fn leave(&mut self, edge: u32, node: u32) {
        if let Some(outermost) = self.outermost_node(edge).filter(|found| **found == node) {
            *outermost = NONE;
        }
    }
}

/// Builds the contexts of a tree.
#[derive(Default)]
struct ContextBuilder {
    contexts: Vec<CallContext>,
    depths: Vec<u32>,
    total_depth: usize,
    by_call: HashMap<(u32, u32), u32>,
    beyond: u64,
}

impl ContextBuilder {
    fn add_context(&mut self, parent: u32, call: u32, calls: u64) -> u32 {
        if let Some(&known) = self.by_call.get(&(parent, call)) {
            return known;
        }
        let depth = self
            .depths
            .get(parent as usize)
            .map_or(0, |above| above + 1);
        let total_depth = self.total_depth + depth as usize;
        let too_many = self.contexts.len() >= MAX_CONTEXTS || total_depth > MAX_TOTAL_DEPTH;
        if too_many && parent != NONE {
            self.beyond += calls;
            return parent;
        }
        self.total_depth = total_depth;
        self.depths.push(depth);
        self.contexts.push(CallContext {
            parent,
            call,
            own: 0,
        });
        let context = self.contexts.len() as u32 - 1;
        self.by_call.insert((parent, call), context);
        context
    }

    fn add_own(&mut self, context: u32, instructions: u64) {
        if let Some(context) = self.contexts.get_mut(context as usize) {
            context.own += instructions;
        }
    }
}

#[derive(Clone, Copy)]
enum Visit {
    Enter(u32),
    Leave(u32),
}

/// Visits the nodes of a tree depth first.
struct DepthFirst {
    first_child: Vec<u32>,
    next_sibling: Vec<u32>,
    pending: Vec<Visit>,
    next_root: u32,
}

impl DepthFirst {
    fn new(parents: &[u32]) -> DepthFirst {
        let mut first_child = vec![NO_NODE; parents.len()];
        let mut next_sibling = vec![NO_NODE; parents.len()];
        let mut next_root = NO_NODE;
        for (at, &parent) in parents.iter().enumerate().rev() {
            let first = match first_child.get_mut(parent as usize) {
                Some(first) => first,
                None => &mut next_root,
            };
            if let Some(next) = next_sibling.get_mut(at) {
                *next = std::mem::replace(first, at as u32);
            }
        }
        DepthFirst {
            first_child,
            next_sibling,
            pending: Vec::new(),
            next_root,
        }
    }
}

impl Iterator for DepthFirst {
    type Item = Visit;

    fn next(&mut self) -> Option<Visit> {
        let Some(visit) = self.pending.pop() else {
            let root = self.next_root;
            self.next_root = *self.next_sibling.get(root as usize)?;
            self.push_children(root);
            return Some(Visit::Enter(root));
        };
        if let Visit::Enter(at) = visit {
            self.push_children(at);
        }
        Some(visit)
    }
}

impl DepthFirst {
    /// After a node come its children, and then its end.
    fn push_children(&mut self, at: u32) {
        self.pending.push(Visit::Leave(at));
        let mut child = self.first_child.get(at as usize).copied();
        while let Some(at) = child.filter(|&at| at != NO_NODE) {
            self.pending.push(Visit::Enter(at));
            child = self.next_sibling.get(at as usize).copied();
        }
    }
}
