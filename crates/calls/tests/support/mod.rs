//! The threads of a fictitious program. Addresses are written `function+offset`; each instruction takes one byte.

use std::collections::{BTreeMap, BTreeSet};

use rtit_calls::{
    CallKind, CallStacks, CallTree, CodeInfo, EndedCall, FunctionRole, RootKind, StackCounts,
    KERNEL_START, NO_CALL, NO_NODE,
};

/// The functions, each of `SIZE` bytes. `?` is code without a name.
const FUNCTIONS: [&str; 18] = [
    "?",
    "main",
    "a",
    "a.cold",
    "b",
    "c",
    "f",
    "f@plt",
    "g",
    "handler",
    "thunk",
    "coro_switch",
    "swapcontext",
    "runtime.mcall",
    "runtime.gogo",
    "runtime.schedule",
    "_dl_runtime_resolve_xsavec",
    "_Unwind_Resume",
];
const SIZE: u64 = 0x100;

/// The functions of the kernel.
const KERNEL_FUNCTIONS: [&str; 13] = [
    "entry_SYSCALL_64",
    "interrupt",
    "read",
    "schedule",
    "__switch_to_asm",
    "__switch_to",
    "ret_from_fork",
    "kthread",
    "exec",
    "begin_new_exec",
    "__x86_indirect_thunk_rax",
    "__x86_return_thunk",
    "driver",
];

/// Returns the address of `function` or `function+offset`.
pub fn address(place: &str) -> u64 {
    let (name, offset) = place.split_once('+').unwrap_or((place, "0"));
    let index_in = |functions: &[&str]| functions.iter().position(|&each| each == name);
    let start = match index_in(&FUNCTIONS) {
        Some(index) => (index as u64 + 1) * SIZE,
        None => KERNEL_START + index_in(&KERNEL_FUNCTIONS).unwrap() as u64 * SIZE,
    };
    start + offset.parse::<u64>().unwrap()
}

/// Returns the name at an address, and the offset in the function.
fn name_at(ip: u64) -> (&'static str, u64) {
    let name = match ip.checked_sub(KERNEL_START) {
        Some(offset) => KERNEL_FUNCTIONS.get((offset / SIZE) as usize),
        None => FUNCTIONS.get((ip / SIZE).wrapping_sub(1) as usize),
    };
    (name.copied().unwrap_or("?"), ip % SIZE)
}

/// The names of `FUNCTIONS`, and of each numbered call the name that the tests use.
#[derive(Debug, Default)]
pub struct FictitiousCode {
    numbers: BTreeMap<(Option<u64>, u64, String), u32>,
    call_names: Vec<String>,
}

impl FictitiousCode {
    fn number(&mut self, from: Option<u64>, to: u64, name: String) -> u32 {
        let next = self.call_names.len() as u32;
        let number = *self.numbers.entry((from, to, name.clone())).or_insert(next);
        if number == next {
            self.call_names.push(name);
        }
        number
    }
}

impl CodeInfo for FictitiousCode {
    fn function_at(&mut self, ip: u64) -> Option<u64> {
        match name_at(ip).0 {
            "?" => None,
            name => Some(address(name.trim_end_matches(".cold"))),
        }
    }

    fn starts_function(&mut self, ip: u64) -> bool {
        let (name, offset) = name_at(ip);
        let is_stub = name.ends_with("@plt") || name.starts_with("__x86_indirect_");
        offset == 0 && name != "?" && !name.ends_with(".cold") && !is_stub
    }

    fn role_at(&mut self, ip: u64) -> FunctionRole {
        FunctionRole::of_name(name_at(ip).0)
    }

    fn call_number(&mut self, from: Option<u64>, to: u64, kind: CallKind) -> u32 {
        let name = match kind {
            CallKind::Call => name_at(to).0.to_string(),
            kind => format!("{} ({kind:?})", name_at(to).0),
        };
        self.number(from, to, name)
    }

    fn root_number(&mut self, kind: RootKind, entry: u64, thread: u32) -> u32 {
        let thread = if thread > 0 {
            format!("{thread}: ")
        } else {
            String::new()
        };
        let name = format!("{thread}{kind:?}: {}", name_at(entry).0);
        self.number(None, entry, name)
    }
}

/// The control flow of a thread, or of several. `run` is the number of instructions executed after each transfer.
pub struct Thread {
    pub stacks: CallStacks<FictitiousCode, Vec<EndedCall>>,
    executed: u64,
}

impl Thread {
    pub fn start(place: &str, run: u64) -> Thread {
        let stacks = CallStacks::with_log(FictitiousCode::default(), RootKind::Start, Vec::new());
        let mut thread = Thread {
            stacks,
            executed: 0,
        };
        thread.run(place, run);
        thread
    }

    /// Another thread of the process runs, which may be new.
    pub fn switch_thread(&mut self, number: u32) {
        self.stacks.switch_thread(number);
    }

    pub fn run(&mut self, place: &str, run: u64) {
        self.run_at(address(place), run);
    }

    fn run_at(&mut self, ip: u64, run: u64) {
        self.executed += run;
        self.stacks.execute(ip, run);
    }

    pub fn call(&mut self, from: &str, to: &str, run: u64) {
        let from = address(from);
        self.stacks.call(from, from + 1, address(to));
        self.run(to, run);
    }

    pub fn return_to(&mut self, from: &str, to: &str, run: u64) {
        self.stacks.return_to(address(from), address(to));
        self.run(to, run);
    }

    pub fn direct_jump(&mut self, from: &str, to: &str, run: u64) {
        self.stacks.direct_jump(address(from), address(to));
        self.run(to, run);
    }

    pub fn indirect_jump(&mut self, from: &str, to: &str, run: u64) {
        self.stacks.indirect_jump(address(from), address(to));
        self.run(to, run);
    }

    pub fn signal(&mut self, interrupted: &str, handler: &str, run: u64) {
        self.stacks
            .enter_handler(address(interrupted), address(handler));
        self.run(handler, run);
    }

    /// The handler returns to the restorer, two instructions without a name; the second is the system call.
    pub fn sigreturn(&mut self, from: &str, to: &str, run: u64) {
        self.return_to(from, "?+10", 2);
        self.stacks
            .system_call_to(address("?+11"), address("?+12"), address(to));
        self.run(to, run);
    }

    /// An instruction that is no return goes to code outside of the filters.
    pub fn leave_filter(&mut self, from: &str, back_at: &str, run: u64) {
        let next = address(from) + 1;
        self.stacks.reenter_filter(false, next, address(back_at));
        self.run(back_at, run);
    }

    pub fn return_to_untraced(&mut self, from: &str, back_at: &str, run: u64) {
        let next = address(from) + 1;
        self.stacks.reenter_filter(true, next, address(back_at));
        self.run(back_at, run);
    }

    /// SYSRET, IRET or a far return of the kernel.
    pub fn return_from_kernel(&mut self, from: &str, to: &str, run: u64) {
        let from = address(from);
        self.stacks.return_from_kernel(from, from + 1, address(to));
        self.run(to, run);
    }

    /// The kernel switches to a task in `__switch_to`, which executes an instruction there.
    pub fn switch_task(&mut self, number: u32) {
        self.call("schedule+1", "__switch_to_asm", 1);
        self.stacks.switch_thread(number);
        if self.stacks.current_node() != NO_NODE {
            self.stacks
                .direct_jump(address("__switch_to_asm+9"), address("__switch_to"));
        }
        self.run("__switch_to", 1);
    }

    pub fn return_from_switch(&mut self, to: &str, run: u64) {
        self.stacks.return_from_switch(address(to));
        self.run(to, run);
    }

    pub fn counts(&self) -> StackCounts {
        self.stacks.counts()
    }

    /// Ends the thread, and asserts what is true of each tree and of all calls.
    pub fn finish(mut self) -> FinishedThread {
        let (tree, _) = self.stacks.finish();
        let own: u64 = tree.nodes().iter().map(|node| node.own).sum();
        assert_eq!(own, self.executed);
        for (at, node) in tree.nodes().iter().enumerate() {
            assert_eq!(node.parent == NO_NODE, node.kind == CallKind::Root);
            assert!(node.parent == NO_NODE || (node.parent as usize) < at);
        }
        let mut calls = std::mem::take(self.stacks.log_mut());
        calls.sort_by_key(|call| call.id);
        let mut ids = BTreeSet::new();
        for call in &calls {
            ids.insert(call.id); // perhaps again: a function may return twice
            assert!(
                call.parent == NO_CALL || ids.contains(&call.parent),
                "{call:?}"
            );
            assert_eq!(
                call.kind == CallKind::Root,
                call.parent == NO_CALL,
                "{call:?}"
            );
            assert!(call.own <= call.total, "{call:?}");
        }
        let own: u64 = calls.iter().map(|call| call.own).sum();
        assert_eq!(own, self.executed);
        FinishedThread {
            tree,
            calls,
            names: self.stacks.code.call_names,
        }
    }

    /// Asserts that the tree and the calls have these paths of functions, each with its calls and own instructions.
    #[track_caller]
    pub fn assert_paths(self, expected: &[(&str, u64, u64)]) {
        self.finish().assert_paths(expected);
    }
}

/// The results of a thread. The calls are in the order of their beginnings.
pub struct FinishedThread {
    pub tree: CallTree,
    pub calls: Vec<EndedCall>,
    names: Vec<String>,
}

impl FinishedThread {
    /// As `Thread::assert_paths`.
    #[track_caller]
    pub fn assert_paths(&self, expected: &[(&str, u64, u64)]) {
        let expected: BTreeMap<String, (u64, u64)> = expected
            .iter()
            .map(|&(path, calls, own)| (path.to_string(), (calls, own)))
            .collect();
        assert_eq!(self.paths_of_tree(), expected);
        assert_eq!(self.paths_of_calls(), expected);
    }

    /// Returns the calls and own instructions of each path.
    fn paths_of_tree(&self) -> BTreeMap<String, (u64, u64)> {
        let nodes = self.tree.nodes().iter();
        self.sum_by_path(nodes.map(|node| (node.parent as usize, node.call, node.calls, node.own)))
    }

    fn paths_of_calls(&self) -> BTreeMap<String, (u64, u64)> {
        let calls = self.calls.iter();
        let index_of = |id| self.calls.iter().position(|call| call.id == id);
        self.sum_by_path(calls.map(|call| {
            let parent = index_of(call.parent).unwrap_or(usize::MAX);
            (parent, call.call, 1, call.own)
        }))
    }

    fn sum_by_path(
        &self,
        rows: impl Iterator<Item = (usize, u32, u64, u64)>,
    ) -> BTreeMap<String, (u64, u64)> {
        let mut paths: Vec<String> = Vec::new();
        let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (parent, call, calls, own) in rows {
            let name = &self.names[call as usize];
            let path = match paths.get(parent) {
                Some(above) => format!("{above}/{name}"),
                None => name.trim_start_matches("Start: ").to_string(),
            };
            let sums = found.entry(path.clone()).or_default();
            *sums = (sums.0 + calls, sums.1 + own);
            paths.push(path);
        }
        found
    }

    /// Returns the calls of a function, in the order of their beginnings.
    pub fn calls_of(&self, function: &str) -> Vec<EndedCall> {
        let is_of_function = |call: &&EndedCall| self.names[call.call as usize] == function;
        self.calls.iter().filter(is_of_function).copied().collect()
    }
}

/// The transfers of the property test, with addresses that `transfer` chooses.
impl Thread {
    pub fn transfer(&mut self, kind: u8, from: u64, to: u64, run: u64) {
        let stacks = &mut self.stacks;
        match kind {
            0..=5 => stacks.call(from, from + 1, to),
            6..=11 => stacks.return_to(from, to),
            12 => stacks.direct_jump(from, to),
            13..=14 => stacks.indirect_jump(from, to),
            15 => stacks.enter_handler(from, to),
            16 => stacks.system_call_to(from, from + 1, to),
            17 => stacks.reenter_filter(run % 2 == 0, from + 1, to),
            18 => stacks.lose_path(),
            19 => stacks.switch_thread(run as u32 % 3),
            _ => stacks.replace_program(),
        }
        self.run_at(to, run);
    }
}

/// Returns the address of an offset in a function, by numbers.
pub fn nth_address(function: usize, offset: u64) -> u64 {
    address(FUNCTIONS[function % FUNCTIONS.len()]) + offset
}
