//! A thread of a fictitious program. Addresses are written `function+offset`; each instruction takes one byte.

use std::collections::BTreeMap;

use rtit_calls::{
    CallKind, CallStacks, CallTree, CodeInfo, FunctionRole, RootKind, StackCounts, NO_NODE,
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

/// Returns the address of `function` or `function+offset`.
pub fn address(place: &str) -> u64 {
    let (name, offset) = place.split_once('+').unwrap_or((place, "0"));
    let index = FUNCTIONS.iter().position(|&each| each == name).unwrap() as u64;
    (index + 1) * SIZE + offset.parse::<u64>().unwrap()
}

/// Returns the name at an address, and the offset in the function.
fn name_at(ip: u64) -> (&'static str, u64) {
    let index = (ip / SIZE).wrapping_sub(1) as usize;
    (FUNCTIONS.get(index).copied().unwrap_or("?"), ip % SIZE)
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
        offset == 0 && name != "?" && !name.ends_with(".cold") && !name.ends_with("@plt")
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

    fn root_number(&mut self, kind: RootKind, entry: u64) -> u32 {
        self.number(None, entry, format!("{kind:?}: {}", name_at(entry).0))
    }
}

/// The control flow of a thread. `run` is the number of instructions executed after each transfer.
pub struct Thread {
    pub stacks: CallStacks<FictitiousCode>,
    executed: u64,
}

impl Thread {
    pub fn start(place: &str, run: u64) -> Thread {
        let stacks = CallStacks::new(FictitiousCode::default(), RootKind::Start);
        let mut thread = Thread {
            stacks,
            executed: 0,
        };
        thread.run(place, run);
        thread
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

    pub fn counts(&self) -> StackCounts {
        self.stacks.counts()
    }

    /// Ends the thread, and asserts what is true of each tree.
    pub fn finish(mut self) -> (CallTree, Vec<String>) {
        let tree = self.stacks.finish();
        let own: u64 = tree.nodes().iter().map(|node| node.own).sum();
        assert_eq!(own, self.executed);
        for (at, node) in tree.nodes().iter().enumerate() {
            assert_eq!(node.parent == NO_NODE, node.kind == CallKind::Root);
            assert!(node.parent == NO_NODE || (node.parent as usize) < at);
        }
        (tree, self.stacks.code.call_names)
    }

    /// Asserts that the tree has these paths of functions, each with its calls and own instructions.
    #[track_caller]
    pub fn assert_paths(self, expected: &[(&str, u64, u64)]) {
        let (tree, names) = self.finish();
        let mut paths: Vec<String> = Vec::new();
        let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for node in tree.nodes() {
            let name = &names[node.call as usize];
            let path = match paths.get(node.parent as usize) {
                Some(above) => format!("{above}/{name}"),
                None => name.trim_start_matches("Start: ").to_string(),
            };
            let sums = found.entry(path.clone()).or_default();
            *sums = (sums.0 + node.calls, sums.1 + node.own);
            paths.push(path);
        }
        let expected = expected
            .iter()
            .map(|&(path, calls, own)| (path.to_string(), (calls, own)))
            .collect();
        assert_eq!(found, expected);
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
            _ => stacks.replace_program(),
        }
        self.run_at(to, run);
    }
}

/// Returns the address of an offset in a function, by numbers.
pub fn nth_address(function: usize, offset: u64) -> u64 {
    address(FUNCTIONS[function % FUNCTIONS.len()]) + offset
}
