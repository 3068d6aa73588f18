//! Each rule of `docs/explanation/calls.md` and of the crate, with the tree that follows from it by hand.

mod support;

use proptest::prelude::*;
use rtit_calls::{CallEnd, EndedCall, SwitchPermit, Wait};
use support::{address, nth_address, Thread};

// Calls, returns and jumps

#[test]
fn return_to_the_return_address_leaves_the_function() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.return_to("a+9", "main+2", 3);
    assert_eq!(thread.counts().returned, 1);
    thread.assert_paths(&[("main", 1, 4), ("main/a", 1, 2)]);
}

#[test]
fn call_of_the_next_instruction_is_no_call() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "a+2", 2);
    thread.return_to("a+9", "main+2", 3);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[("main", 1, 4), ("main/a", 1, 3)]);
}

#[test]
fn return_after_a_tail_call_ends_both_functions() {
    for jump in [Thread::direct_jump, Thread::indirect_jump] {
        let mut thread = Thread::start("main", 1);
        thread.call("main+1", "a", 2);
        jump(&mut thread, "a+5", "b", 3);
        thread.return_to("b+9", "main+2", 4);
        assert_eq!(thread.counts().unwound, 0);
        thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 2), ("main/a/b (Tail)", 1, 3)]);
    }
}

#[test]
fn jumps_to_the_cold_part_and_back_stay_in_the_function() {
    for jump in [Thread::direct_jump, Thread::indirect_jump] {
        let mut thread = Thread::start("main", 1);
        thread.call("main+1", "a", 1);
        jump(&mut thread, "a+5", "a.cold", 2);
        jump(&mut thread, "a.cold+3", "a+6", 3);
        thread.return_to("a+9", "main+2", 4);
        thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 6)]);
    }
}

#[test]
fn jumps_to_code_without_a_name_and_back_stay_in_the_function() {
    for jump in [Thread::direct_jump, Thread::indirect_jump] {
        let mut thread = Thread::start("main", 1);
        thread.call("main+1", "a", 1);
        jump(&mut thread, "a+5", "?+40", 2);
        jump(&mut thread, "?+43", "a+6", 3);
        thread.return_to("a+9", "main+2", 4);
        thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 6)]);
    }
}

#[test]
fn jump_back_into_a_recursive_function_stays_in_the_newest() {
    for jump in [Thread::direct_jump, Thread::indirect_jump] {
        let mut thread = Thread::start("main", 1);
        thread.call("main+1", "a", 1);
        thread.call("a+1", "a", 1);
        jump(&mut thread, "a+5", "?+40", 2);
        jump(&mut thread, "?+43", "a+6", 3);
        thread.return_to("a+9", "a+2", 4);
        thread.assert_paths(&[("main", 1, 1), ("main/a", 1, 5), ("main/a/a", 1, 6)]);
    }
}

#[test]
fn jump_to_code_without_a_name_that_was_called_is_a_tail_call() {
    for jump in [Thread::direct_jump, Thread::indirect_jump] {
        let mut thread = Thread::start("main", 1);
        thread.call("main+1", "?+40", 1);
        thread.return_to("?+45", "main+2", 1);
        thread.call("main+3", "a", 2);
        jump(&mut thread, "a+5", "?+40", 3);
        thread.return_to("?+45", "main+4", 4);
        thread.assert_paths(&[
            ("main", 1, 6),
            ("main/?", 1, 1),
            ("main/a", 1, 2),
            ("main/a/? (Tail)", 1, 3),
        ]);
    }
}

#[test]
fn jump_of_a_tail_called_function_back_into_its_caller_is_no_call() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.direct_jump("a+5", "b", 2);
    thread.direct_jump("b+5", "a+6", 3);
    thread.return_to("a+9", "main+2", 4);
    thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 4), ("main/a/b (Tail)", 1, 2)]);
}

// Stubs

#[test]
fn plt_stub_is_part_of_the_caller() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "f@plt", 2);
    thread.indirect_jump("f@plt+2", "f", 3);
    thread.return_to("f+9", "main+2", 4);
    thread.assert_paths(&[("main", 1, 7), ("main/f", 1, 3)]);
}

#[test]
fn plt_stub_of_a_tail_call_is_part_of_the_function_that_jumps() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.direct_jump("a+5", "f@plt", 2);
    thread.indirect_jump("f@plt+2", "f", 3);
    thread.return_to("f+9", "main+2", 4);
    thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 3), ("main/a/f (Tail)", 1, 3)]);
}

#[test]
fn first_tail_call_over_a_plt_stub_goes_to_the_resolver_and_then_to_the_function() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.direct_jump("a+5", "f@plt", 2);
    thread.direct_jump("f@plt+3", "?+60", 1);
    thread.indirect_jump("?+61", "_dl_runtime_resolve_xsavec", 10);
    thread.call("_dl_runtime_resolve_xsavec+5", "c", 20);
    thread.return_to("c+9", "_dl_runtime_resolve_xsavec+6", 10);
    thread.indirect_jump("_dl_runtime_resolve_xsavec+9", "f", 3);
    thread.return_to("f+9", "main+2", 4);
    thread.assert_paths(&[
        ("main", 1, 5),
        ("main/a", 1, 4),
        ("main/a/_dl_runtime_resolve_xsavec (Tail)", 1, 20),
        ("main/a/_dl_runtime_resolve_xsavec (Tail)/c", 1, 20),
        ("main/a/f (Tail)", 1, 3),
    ]);
}

#[test]
fn first_call_over_a_plt_stub_goes_to_the_resolver_and_then_to_the_function() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "f@plt", 2);
    thread.direct_jump("f@plt+3", "?+60", 1);
    thread.indirect_jump("?+61", "_dl_runtime_resolve_xsavec", 10);
    thread.call("_dl_runtime_resolve_xsavec+5", "c", 20);
    thread.return_to("c+9", "_dl_runtime_resolve_xsavec+6", 10);
    thread.indirect_jump("_dl_runtime_resolve_xsavec+9", "f", 3);
    thread.return_to("f+9", "main+2", 4);
    thread.assert_paths(&[
        ("main", 1, 8),
        ("main/_dl_runtime_resolve_xsavec", 1, 20),
        ("main/_dl_runtime_resolve_xsavec/c", 1, 20),
        ("main/f", 1, 3),
    ]);
}

#[test]
fn retpoline_is_a_tail_call_by_its_thunk() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "thunk", 1);
    thread.call("thunk+1", "thunk+4", 2);
    thread.return_to("thunk+6", "f", 3);
    thread.return_to("f+9", "main+2", 4);
    assert_eq!(thread.counts().unknown, 0);
    thread.assert_paths(&[
        ("main", 1, 5),
        ("main/thunk", 1, 3),
        ("main/thunk/f (Tail)", 1, 3),
    ]);
}

// Unwinding

/// main calls a, a calls b, b calls c; one instruction each.
fn thread_in_c() -> Thread {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "b", 1);
    thread.call("b+1", "c", 1);
    thread
}

#[test]
fn return_to_an_outer_return_address_removes_all_functions_up_to_it() {
    let mut thread = thread_in_c();
    thread.return_to("c+9", "main+2", 10);
    thread.call("main+3", "f", 1);
    assert_eq!(thread.counts().unwound, 1);
    thread.assert_paths(&[
        ("main", 1, 11),
        ("main/a", 1, 1),
        ("main/a/b", 1, 1),
        ("main/a/b/c", 1, 1),
        ("main/f", 1, 1),
    ]);
}

#[test]
fn return_address_decides_between_calls_of_a_recursive_function() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "a", 1);
    thread.call("a+3", "a", 1);
    thread.call("a+5", "c", 1);
    thread.return_to("c+9", "a+2", 10);
    assert_eq!(thread.counts().choices, 0);
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/a", 1, 11),
        ("main/a/a", 1, 1),
        ("main/a/a/a", 1, 1),
        ("main/a/a/a/c", 1, 1),
    ]);
}

#[test]
fn jump_to_an_outer_return_address_removes_all_functions_up_to_it() {
    let mut thread = thread_in_c();
    thread.indirect_jump("c+9", "a+2", 10);
    thread.return_to("a+9", "main+2", 1);
    assert_eq!(thread.counts().unwound, 1);
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/a", 1, 11),
        ("main/a/b", 1, 1),
        ("main/a/b/c", 1, 1),
    ]);
}

#[test]
fn landing_pad_continues_in_the_function_that_contains_it() {
    for transfer in [Thread::indirect_jump, Thread::return_to] {
        let mut thread = thread_in_c();
        transfer(&mut thread, "c+9", "a+50", 10);
        thread.return_to("a+99", "main+2", 1);
        assert_eq!(thread.counts().unwound, 1);
        thread.assert_paths(&[
            ("main", 1, 2),
            ("main/a", 1, 11),
            ("main/a/b", 1, 1),
            ("main/a/b/c", 1, 1),
        ]);
    }
}

/// main calls a, which calls itself from the same place, and then c.
fn thread_in_c_below_recursion() -> Thread {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "a", 1);
    thread.call("a+1", "a", 1);
    thread.call("a+3", "c", 1);
    thread
}

#[test]
fn landing_pad_in_a_recursive_function_continues_in_the_newest() {
    let mut thread = thread_in_c_below_recursion();
    thread.indirect_jump("c+9", "a+50", 10);
    thread.return_to("a+99", "a+2", 1);
    thread.return_to("a+9", "a+2", 1);
    thread.return_to("a+9", "main+2", 1);
    assert_eq!(thread.counts().corrected, 0);
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/a", 1, 2),
        ("main/a/a", 1, 2),
        ("main/a/a/a", 1, 11),
        ("main/a/a/a/c", 1, 1),
    ]);
}

#[test]
fn next_return_corrects_how_far_recursion_was_unwound() {
    let mut thread = thread_in_c_below_recursion();
    thread.return_to("c+9", "a+2", 10); // into main/a/a at first
    thread.return_to("a+9", "main+2", 1); // it was main/a
    assert_eq!((thread.counts().choices, thread.counts().corrected), (1, 1));
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/a", 1, 11),
        ("main/a/a", 1, 1),
        ("main/a/a/a", 1, 1),
        ("main/a/a/a/c", 1, 1),
    ]);
}

#[test]
fn call_that_ends_above_an_open_choice_is_ambiguous() {
    let mut thread = thread_in_c_below_recursion();
    thread.return_to("c+9", "a+2", 10); // into main/a/a or main/a
    thread.call("a+3", "b", 1);
    thread.call("b+1", "f", 1);
    thread.return_to("f+9", "b+2", 1);
    thread.return_to("b+9", "a+4", 1);
    thread.return_to("a+9", "main+2", 1); // it was main/a
    let finished = thread.finish();
    let are_ambiguous = |function| -> Vec<bool> {
        let calls = finished.calls_of(function).into_iter();
        calls.map(|call| call.is_ambiguous).collect()
    };
    assert_eq!(are_ambiguous("f"), [true]); // it has ended before the choice
    assert_eq!(are_ambiguous("b"), [false]); // it waits for its caller
    assert_eq!(are_ambiguous("c"), [false]);
    assert_eq!(are_ambiguous("a"), [false; 3]);
}

#[test]
fn unwind_resume_does_not_continue_in_its_caller() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "a", 1);
    thread.call("a+51", "_Unwind_Resume", 1);
    thread.return_to("_Unwind_Resume+9", "a+50", 10);
    assert_eq!(thread.counts().choices, 0);
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/a", 1, 11),
        ("main/a/a", 1, 1),
        ("main/a/a/_Unwind_Resume", 1, 1),
    ]);
}

// Signals

#[test]
fn sigreturn_ends_the_handler() {
    let mut thread = Thread::start("main", 1);
    thread.signal("main+1", "handler", 3);
    thread.sigreturn("handler+9", "main+1", 10);
    thread.assert_paths(&[("main", 1, 11), ("main/handler (Signal)", 1, 5)]);
}

#[test]
fn handler_that_interrupts_a_handler_is_its_child() {
    let mut thread = Thread::start("main", 1);
    thread.signal("main+1", "handler", 1);
    thread.signal("handler+1", "g", 1);
    thread.sigreturn("g+9", "handler+1", 10);
    thread.sigreturn("handler+9", "main+1", 20);
    thread.assert_paths(&[
        ("main", 1, 21),
        ("main/handler (Signal)", 1, 13),
        ("main/handler (Signal)/g (Signal)", 1, 3),
    ]);
}

#[test]
fn pending_signal_at_sigreturn_enters_its_handler_from_the_interrupted_code() {
    let mut thread = Thread::start("main", 1);
    thread.signal("main+1", "handler", 1);
    thread.sigreturn("handler+9", "handler", 1);
    thread.sigreturn("handler+9", "main+1", 10);
    thread.assert_paths(&[("main", 1, 11), ("main/handler (Signal)", 2, 6)]);
}

#[test]
fn signal_at_a_system_call_enters_the_handler() {
    let mut thread = Thread::start("main", 1);
    let (from, next) = (address("main+1"), address("main+2"));
    thread.stacks.system_call_to(from, next, address("handler"));
    thread.run("handler", 1);
    thread.sigreturn("handler+9", "main+2", 10);
    thread.assert_paths(&[("main", 1, 11), ("main/handler (Signal)", 1, 3)]);
}

#[test]
fn longjmp_leaves_the_handler_and_the_interrupted_functions() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "f", 1); // setjmp
    thread.return_to("f+9", "main+2", 1);
    thread.call("main+3", "a", 1);
    thread.signal("a+5", "handler", 1);
    thread.call("handler+1", "c", 1);
    thread.indirect_jump("c+9", "main+2", 10);
    thread.signal("main+3", "handler", 1);
    thread.assert_paths(&[
        ("main", 1, 12),
        ("main/f", 1, 1),
        ("main/a", 1, 1),
        ("main/a/handler (Signal)", 1, 1),
        ("main/a/handler (Signal)/c", 1, 1),
        ("main/handler (Signal)", 1, 1),
    ]);
}

#[test]
fn longjmp_leaves_the_handler_for_the_interrupted_function() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.signal("a+5", "handler", 1);
    thread.indirect_jump("handler+9", "a+50", 10);
    thread.return_to("a+9", "main+2", 1);
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/a", 1, 11),
        ("main/a/handler (Signal)", 1, 1),
    ]);
}

#[test]
fn sigreturn_to_another_function_is_a_call_that_returns_to_the_interrupted_code() {
    let mut thread = Thread::start("main", 1);
    thread.signal("main+1", "handler", 1);
    thread.sigreturn("handler+9", "g", 5);
    thread.return_to("g+9", "main+1", 10);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[
        ("main", 1, 11),
        ("main/handler (Signal)", 1, 3),
        ("main/g (Injected)", 1, 5),
    ]);
}

// Several stacks

#[test]
fn return_of_a_switching_function_to_a_function_begins_a_new_stack() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "f", 5);
    thread.call("f+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "main+2", 10);
    thread.call("main+3", "swapcontext", 1);
    thread.return_to("swapcontext+9", "f+2", 20);
    assert_eq!(thread.counts().switched, 3);
    assert_eq!(thread.counts().choices, 0);
    thread.assert_paths(&[
        ("main", 1, 11),
        ("main/swapcontext", 2, 2),
        ("NewStack: f", 1, 25),
        ("NewStack: f/swapcontext", 1, 1),
    ]);
}

/// The coroutines f and g, in this order, have called b, which is in `swapcontext`; main runs.
fn thread_with_two_waiting_coroutines() -> Thread {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "f", 1);
    thread.call("f+1", "b", 1);
    thread.call("b+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "main+2", 1);
    thread.call("main+3", "swapcontext", 1);
    thread.return_to("swapcontext+9", "g", 1);
    thread.call("g+1", "b", 1);
    thread.call("b+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "main+4", 1);
    thread
}

const BEFORE_THE_CHOICE: [(&str, u64, u64); 8] = [
    ("main", 1, 3),
    ("main/swapcontext", 2, 2),
    ("NewStack: f", 1, 1),
    ("NewStack: f/b", 1, 1),
    ("NewStack: f/b/swapcontext", 1, 1),
    ("NewStack: g", 1, 1),
    ("NewStack: g/b", 1, 1),
    ("NewStack: g/b/swapcontext", 1, 1),
];

/// Returns `BEFORE_THE_CHOICE` with these calls and instructions added.
fn with_changes(changes: &[(&'static str, u64, u64)]) -> Vec<(&'static str, u64, u64)> {
    let mut paths = BEFORE_THE_CHOICE.to_vec();
    for &(path, calls, own) in changes {
        let place = paths.iter_mut().find(|each| each.0 == path).unwrap();
        *place = (path, place.1 + calls, place.2 + own);
    }
    paths
}

#[test]
fn switch_to_an_address_of_two_stacks_resumes_the_one_suspended_first() {
    let mut thread = thread_with_two_waiting_coroutines();
    thread.call("main+5", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    assert_eq!((thread.counts().choices, thread.counts().corrected), (1, 0));
    thread.assert_paths(&with_changes(&[
        ("main/swapcontext", 1, 1),
        ("NewStack: f/b", 0, 10),
    ]));
}

#[test]
fn later_return_moves_instructions_to_the_stack_that_was_resumed() {
    let mut thread = thread_with_two_waiting_coroutines();
    thread.call("main+5", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    thread.return_to("b+9", "g+2", 100);
    assert_eq!((thread.counts().choices, thread.counts().corrected), (1, 1));
    thread.assert_paths(&with_changes(&[
        ("main/swapcontext", 1, 1),
        ("NewStack: g/b", 0, 10),
        ("NewStack: g", 0, 100),
    ]));
}

#[test]
fn calls_before_a_correction_move_with_their_caller() {
    let mut thread = thread_with_two_waiting_coroutines();
    thread.call("main+5", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    thread.call("b+3", "c", 20);
    thread.return_to("c+9", "b+4", 30);
    thread.return_to("b+9", "g+2", 100);
    let mut expected = with_changes(&[
        ("main/swapcontext", 1, 1),
        ("NewStack: g/b", 0, 40),
        ("NewStack: g", 0, 100),
    ]);
    expected.push(("NewStack: g/b/c", 1, 20));
    thread.assert_paths(&expected);
}

#[test]
fn stack_of_a_corrected_choice_can_be_resumed_later() {
    let mut thread = thread_with_two_waiting_coroutines();
    thread.call("main+5", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    thread.return_to("b+9", "g+2", 100);
    thread.call("g+3", "swapcontext", 1);
    thread.return_to("swapcontext+9", "main+6", 1);
    thread.call("main+7", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 1000);
    assert_eq!((thread.counts().choices, thread.counts().corrected), (1, 1));
    let mut expected = with_changes(&[
        ("main", 0, 1),
        ("main/swapcontext", 2, 2),
        ("NewStack: g/b", 0, 10),
        ("NewStack: g", 0, 100),
        ("NewStack: f/b", 0, 1000),
    ]);
    expected.push(("NewStack: g/swapcontext", 1, 1));
    thread.assert_paths(&expected);
}

#[test]
fn goroutine_waits_while_mcall_runs_on_the_stack_of_the_scheduler() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "runtime.mcall", 2);
    thread.call("runtime.mcall+2", "f", 3);
    thread.call("f+1", "runtime.gogo", 4);
    thread.indirect_jump("runtime.gogo+4", "main+2", 5);
    assert_eq!(thread.counts().unknown, 0);
    thread.assert_paths(&[
        ("main", 1, 6),
        ("main/runtime.mcall", 1, 2),
        ("NewStack: runtime.mcall", 1, 0),
        ("NewStack: runtime.mcall/f", 1, 3),
        ("NewStack: runtime.mcall/f/runtime.gogo", 1, 4),
    ]);
}

#[test]
fn goroutine_below_the_scheduler_is_not_resumed() {
    let mut thread = Thread::start("main", 1);
    // goroutine g waits at a+2
    thread.call("main+1", "runtime.gogo", 1);
    thread.indirect_jump("runtime.gogo+4", "g", 1);
    thread.call("g+1", "a", 1);
    thread.call("a+1", "b", 1);
    thread.call("b+1", "runtime.gogo", 1);
    thread.indirect_jump("runtime.gogo+4", "main+2", 1);
    // a of goroutine f calls b too, which ends in the scheduler
    thread.call("main+3", "runtime.gogo", 1);
    thread.indirect_jump("runtime.gogo+4", "f", 1);
    thread.call("f+1", "a", 1);
    thread.call("a+1", "b", 1);
    thread.call("b+3", "runtime.schedule", 1);
    thread.call("runtime.schedule+1", "runtime.gogo", 1);
    thread.indirect_jump("runtime.gogo+4", "a+2", 100);
    thread.return_to("a+9", "g+2", 1000);
    let schedule = "NewStack: f/a/b/runtime.schedule";
    let gogo = "NewStack: f/a/b/runtime.schedule/runtime.gogo";
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/runtime.gogo", 2, 2),
        ("NewStack: g", 1, 1001),
        ("NewStack: g/a", 1, 101),
        ("NewStack: g/a/b", 1, 1),
        ("NewStack: g/a/b/runtime.gogo", 1, 1),
        ("NewStack: f", 1, 1),
        ("NewStack: f/a", 1, 1),
        ("NewStack: f/a/b", 1, 1),
        (schedule, 1, 1),
        (gogo, 1, 1),
    ]);
}

#[test]
fn function_that_is_left_over_a_detour_switches_stacks() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "f", 2);
    thread.call("f+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "main+2", 10);
    // known from here on
    thread.call("main+3", "coro_switch", 1);
    thread.return_to("coro_switch+9", "g", 3);
    thread.call("g+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "f+2", 20);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[
        ("main", 1, 11),
        ("main/coro_switch", 2, 2),
        ("NewStack: f", 1, 22),
        ("NewStack: f/coro_switch", 1, 1),
        ("NewStack: g", 1, 3),
        ("NewStack: g/coro_switch", 1, 1),
    ]);
}

#[test]
fn stack_begun_by_a_learned_switch_has_no_caller() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "f", 2);
    thread.call("f+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "a+2", 1);
    thread.return_to("a+9", "main+2", 1);
    // f is resumed by another call of a, and switches back to it
    thread.call("main+3", "b", 1);
    thread.call("b+1", "a", 1);
    thread.call("a+1", "coro_switch", 1);
    thread.return_to("coro_switch+9", "f+2", 20);
    thread.call("f+3", "coro_switch", 1);
    thread.return_to("coro_switch+9", "a+2", 100);
    thread.return_to("a+9", "b+2", 1);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[
        ("main", 1, 2),
        ("main/a", 1, 2),
        ("main/a/coro_switch", 1, 1),
        ("main/b", 1, 2),
        ("main/b/a", 1, 101),
        ("main/b/a/coro_switch", 1, 1),
        ("NewStack: f", 1, 22),
        ("NewStack: f/coro_switch", 2, 2),
    ]);
}

#[test]
fn function_entered_by_a_return_stays_below_it_unless_the_stack_is_switched() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.return_to("a+9", "f", 2);
    thread.return_to("f+9", "main+2", 3);
    assert_eq!(thread.counts().switched, 0);
    thread.assert_paths(&[("main", 1, 4), ("main/a", 1, 1), ("main/a/f (Tail)", 1, 2)]);
}

// Roots

#[test]
fn return_of_the_first_function_leads_to_a_caller_that_is_a_root() {
    let mut thread = Thread::start("a", 1);
    thread.return_to("a+9", "main+2", 2);
    thread.call("main+3", "b", 3);
    thread.assert_paths(&[
        ("a", 1, 1),
        ("Caller: main", 1, 2),
        ("Caller: main/b", 1, 3),
    ]);
}

#[test]
fn return_after_lost_packets_joins_the_stack_if_the_address_occurs_once() {
    let mut thread = thread_in_c();
    thread.stacks.lose_path();
    thread.run("f", 5);
    thread.return_to("f+9", "a+2", 10);
    thread.return_to("a+9", "main+2", 20);
    thread.assert_paths(&[
        ("main", 1, 21),
        ("main/a", 1, 11),
        ("main/a/b", 1, 1),
        ("main/a/b/c", 1, 1),
        ("AfterLoss: f", 1, 5),
    ]);
}

#[test]
fn return_after_lost_packets_begins_a_root_if_the_address_occurs_twice() {
    let mut thread = thread_in_c_below_recursion();
    thread.stacks.lose_path();
    thread.run("f", 5);
    thread.return_to("f+9", "a+2", 10);
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/a", 1, 1),
        ("main/a/a", 1, 1),
        ("main/a/a/a", 1, 1),
        ("main/a/a/a/c", 1, 1),
        ("AfterLoss: f", 1, 5),
        ("Caller: a", 1, 10),
    ]);
}

#[test]
fn return_to_an_address_of_no_stack_begins_an_unknown_root() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.return_to("a+9", "g+5", 2);
    assert_eq!(thread.counts().unknown, 1);
    thread.assert_paths(&[("main", 1, 1), ("main/a", 1, 1), ("Unknown: g", 1, 2)]);
}

#[test]
fn exec_ends_all_stacks() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.stacks.replace_program();
    thread.run("f", 2);
    thread.return_to("f+9", "main+2", 3);
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/a", 1, 1),
        ("f", 1, 2),
        ("Caller: main", 1, 3),
    ]);
}

// Filters

#[test]
fn call_of_untraced_code_is_no_call() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.leave_filter("a+1", "a+2", 3);
    thread.return_to("a+9", "main+2", 4);
    thread.assert_paths(&[("main", 1, 5), ("main/a", 1, 5)]);
}

#[test]
fn untraced_code_returns_to_the_newest_of_recursive_calls() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 1);
    thread.call("a+1", "a", 2);
    thread.leave_filter("a+1", "a+2", 3);
    thread.return_to("a+9", "a+2", 4);
    thread.assert_paths(&[("main", 1, 1), ("main/a", 1, 5), ("main/a/a", 1, 5)]);
}

#[test]
fn untraced_code_calls_traced_code_several_times_and_returns() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.leave_filter("a+1", "f", 10);
    thread.return_to_untraced("f+9", "f", 20);
    thread.call("f+1", "g", 30);
    thread.return_to("g+9", "f+2", 40);
    thread.return_to_untraced("f+9", "a+2", 3);
    thread.return_to("a+9", "main+2", 4);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[
        ("main", 1, 5),
        ("main/a", 1, 5),
        ("main/a/f (Untraced)", 2, 70),
        ("main/a/f (Untraced)/g", 1, 30),
    ]);
}

#[test]
fn untraced_function_entered_by_a_tail_call_returns_to_the_caller() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.leave_filter("a+5", "f", 10);
    thread.return_to_untraced("f+9", "main+2", 4);
    thread.assert_paths(&[
        ("main", 1, 5),
        ("main/a", 1, 2),
        ("main/a/f (Untraced)", 1, 10),
    ]);
}

#[test]
fn function_that_an_untraced_stub_jumps_to_returns_to_the_caller() {
    let mut thread = Thread::start("main", 1);
    thread.leave_filter("main+1", "f", 2);
    thread.return_to("f+9", "main+2", 3);
    assert_eq!(thread.counts().unwound, 0);
    thread.assert_paths(&[("main", 1, 4), ("main/f (Untraced)", 1, 2)]);
}

#[test]
fn function_that_untraced_code_calls_several_times_is_one_root() {
    let mut thread = Thread::start("f", 1);
    thread.return_to_untraced("f+9", "f", 2);
    thread.return_to_untraced("f+9", "f", 3);
    thread.assert_paths(&[("f", 3, 6)]);
}

#[test]
fn traced_code_after_the_return_of_the_first_function_is_its_caller() {
    let mut thread = Thread::start("f", 1);
    thread.return_to_untraced("f+9", "main+2", 2);
    thread.assert_paths(&[("f", 1, 1), ("Caller: main", 1, 2)]);
}

// Properties

// Single calls

/// The calls of a function: how each ended, its first instruction and the one after its last, and its instructions
/// without and with callees.
fn calls_of(thread: Thread, function: &str) -> Vec<(CallEnd, u64, u64, u64, u64)> {
    let calls = thread.finish().calls_of(function);
    let row = |call: &EndedCall| (call.end, call.first, call.next, call.own, call.total);
    calls.iter().map(row).collect()
}

#[test]
fn call_has_the_instructions_of_its_callees_in_total() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.call("a+2", "b", 30);
    thread.direct_jump("b+5", "c", 400);
    thread.return_to("c+9", "a+3", 5000);
    thread.return_to("a+9", "main+2", 1);
    assert_eq!(
        calls_of(thread, "a"),
        [(CallEnd::Returned, 1, 5433, 5002, 5432)]
    );
}

#[test]
fn handler_does_not_count_for_the_interrupted_call() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.signal("a+2", "handler", 30);
    thread.sigreturn("handler+9", "a+2", 400);
    thread.return_to("a+9", "main+2", 1);
    assert_eq!(
        calls_of(thread, "a"),
        [(CallEnd::Returned, 1, 435, 402, 402)]
    );
}

#[test]
fn other_stacks_do_not_count_for_a_suspended_call() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "a", 2);
    thread.call("a+2", "swapcontext", 3);
    thread.return_to("swapcontext+5", "f", 40);
    thread.call("f+2", "swapcontext", 500);
    thread.return_to("swapcontext+5", "a+3", 6);
    thread.return_to("a+9", "main+2", 1);
    let finished = thread.finish();
    let row = |name| {
        finished
            .calls_of(name)
            .iter()
            .map(|call| (call.end, call.next, call.total))
            .collect()
    };
    let (a, f): (Vec<_>, Vec<_>) = (row("a"), row("NewStack: f"));
    assert_eq!(a, [(CallEnd::Returned, 552, 11)]);
    assert_eq!(f, [(CallEnd::Suspended, 553, 540)]);
}

#[test]
fn exception_unwinds_the_calls_that_it_leaves() {
    let mut thread = thread_in_c();
    thread.indirect_jump("c+9", "a+50", 10);
    thread.return_to("a+99", "main+2", 1);
    let finished = thread.finish();
    let end = |name| finished.calls_of(name)[0].end;
    assert_eq!(
        [end("a"), end("b"), end("c")],
        [CallEnd::Returned, CallEnd::Unwound, CallEnd::Unwound],
    );
}

#[test]
fn calls_that_a_correction_leaves_end_at_the_transfer() {
    let mut thread = thread_in_c_below_recursion(); // 5 instructions
    thread.return_to("c+9", "a+2", 10); // into main/a/a at first
    thread.return_to("a+9", "main+2", 1); // it was main/a
    assert_eq!(
        calls_of(thread, "a"),
        [
            (CallEnd::Returned, 1, 15, 11, 14),
            (CallEnd::Unwound, 2, 5, 1, 3),
            (CallEnd::Unwound, 3, 5, 1, 2),
        ],
    );
}

#[test]
fn calls_end_with_lost_packets_exec_and_the_trace() {
    let mut thread = thread_in_c();
    thread.stacks.lose_path();
    thread.run("f", 10);
    thread.call("f+2", "g", 10);
    thread.stacks.replace_program();
    thread.run("main", 10);
    let finished = thread.finish();
    let end = |name| {
        finished
            .calls_of(name)
            .iter()
            .map(|call| call.end)
            .collect::<Vec<_>>()
    };
    assert_eq!(end("c"), [CallEnd::Lost]);
    assert_eq!(end("g"), [CallEnd::Replaced]);
    assert_eq!(end("Start: main"), [CallEnd::Lost, CallEnd::Running]);
}

#[test]
fn stack_that_goes_on_after_lost_packets_keeps_its_calls() {
    let mut thread = thread_in_c(); // main, a, b, c
    thread.stacks.lose_path();
    thread.run("f", 10);
    thread.return_to("f+9", "a+2", 20); // the return address of b
    thread.return_to("a+9", "main+2", 1);
    let finished = thread.finish();
    let end = |name| finished.calls_of(name)[0].end;
    assert_eq!(
        [end("a"), end("b"), end("c")],
        [CallEnd::Returned, CallEnd::Lost, CallEnd::Lost]
    );
}

// Threads

#[test]
fn stack_resumed_by_another_thread_keeps_its_callers() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "f", 1);
    thread.call("f+1", "b", 1);
    thread.call("b+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "main+2", 1);
    thread.switch_thread(1);
    thread.run("g", 5);
    thread.call("g+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    thread.call("b+3", "c", 20);
    thread.return_to("c+9", "b+4", 1);
    thread.return_to("b+9", "f+2", 30);
    thread.switch_thread(0);
    thread.call("main+3", "a", 1);
    let finished = thread.finish();
    let [b, c] = ["b", "c"].map(|function| finished.calls_of(function)[0]);
    let threads = |call: EndedCall| (call.begin_thread, call.end_thread);
    assert_eq!((threads(b), threads(c)), ((0, 1), (1, 1)));
    assert_eq!((b.first, b.next), (3, 37)); // instructions of the two threads
    finished.assert_paths(&[
        ("main", 1, 2),
        ("main/swapcontext", 1, 1),
        ("main/a", 1, 1),
        ("NewStack: f", 1, 31),
        ("NewStack: f/b", 1, 12),
        ("NewStack: f/b/swapcontext", 1, 1),
        ("NewStack: f/b/c", 1, 20),
        ("1: Start: g", 1, 5),
        ("1: Start: g/swapcontext", 1, 1),
    ]);
}

/// Two threads have resumed a coroutine of `thread_with_two_waiting_coroutines` each; thread 1 runs.
fn threads_that_resumed_coroutines() -> Thread {
    let mut thread = thread_with_two_waiting_coroutines();
    thread.call("main+5", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 10);
    thread.switch_thread(1);
    thread.run("a", 1);
    thread.call("a+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "b+2", 20);
    thread
}

const PATHS_OF_EXCHANGED_COROUTINES: [(&str, u64, u64); 10] = [
    ("main", 1, 3),
    ("main/swapcontext", 3, 3),
    ("NewStack: f", 1, 2),
    ("NewStack: f/b", 1, 21),
    ("NewStack: f/b/swapcontext", 1, 1),
    ("NewStack: g", 1, 2),
    ("NewStack: g/b", 1, 11),
    ("NewStack: g/b/swapcontext", 1, 1),
    ("1: Start: a", 1, 1),
    ("1: Start: a/swapcontext", 1, 1),
];

#[test]
fn threads_exchange_their_coroutines_when_the_first_returns() {
    let mut thread = threads_that_resumed_coroutines();
    thread.switch_thread(0);
    thread.return_to("b+9", "g+2", 1);
    thread.switch_thread(1);
    thread.return_to("b+9", "f+2", 1);
    assert_eq!(thread.counts().unknown, 0);
    thread.assert_paths(&PATHS_OF_EXCHANGED_COROUTINES);
}

#[test]
fn threads_exchange_their_coroutines_when_the_second_returns() {
    let mut thread = threads_that_resumed_coroutines();
    thread.return_to("b+9", "f+2", 1);
    thread.switch_thread(0);
    thread.return_to("b+9", "g+2", 1);
    assert_eq!(thread.counts().unknown, 0);
    thread.assert_paths(&PATHS_OF_EXCHANGED_COROUTINES);
}

#[test]
fn thread_waits_before_it_switches_stacks() {
    let mut thread = Thread::start("main", 1);
    thread.stacks.order_switches();
    thread.call("main+1", "swapcontext", 1);
    let (from, to) = (address("swapcontext+9"), address("f"));
    thread.stacks.return_to(from, to);
    assert_eq!(thread.stacks.wait(), Some(Wait::ForTime));
    thread.stacks.permit_switch(SwitchPermit::KnownStack);
    thread.stacks.return_to(from, to);
    thread.stacks.end_permit();
    assert_eq!(thread.stacks.wait(), None);
    thread.run("f", 10);
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/swapcontext", 1, 1),
        ("NewStack: f", 1, 10),
    ]);
}

#[test]
fn thread_waits_until_another_one_has_suspended_the_stack_that_it_resumes() {
    let mut thread = Thread::start("main", 1);
    thread.stacks.order_switches();
    thread.call("main+1", "swapcontext", 1);
    let (from, to) = (address("swapcontext+9"), address("b+2"));
    thread.stacks.permit_switch(SwitchPermit::KnownStack);
    thread.stacks.return_to(from, to);
    assert_eq!(thread.stacks.wait(), Some(Wait::ForStack));
    thread.switch_thread(1);
    thread.stacks.permit_switch(SwitchPermit::KnownStack);
    thread.run("f", 1);
    thread.call("f+1", "b", 1);
    thread.call("b+1", "swapcontext", 1);
    thread.return_to("swapcontext+9", "g", 1);
    thread.switch_thread(0);
    thread.return_to("swapcontext+9", "b+2", 10);
    assert_eq!((thread.stacks.wait(), thread.counts().unknown), (None, 0));
    thread.assert_paths(&[
        ("main", 1, 1),
        ("main/swapcontext", 1, 1),
        ("1: Start: f", 1, 1),
        ("1: Start: f/b", 1, 11),
        ("1: Start: f/b/swapcontext", 1, 1),
        ("1: NewStack: g", 1, 1),
    ]);
}

#[test]
fn stack_that_no_other_thread_suspends_is_unknown() {
    let mut thread = Thread::start("main", 1);
    thread.stacks.order_switches();
    thread.call("main+1", "swapcontext", 1);
    thread.stacks.permit_switch(SwitchPermit::AnyStack);
    thread.return_to("swapcontext+9", "b+2", 10);
    assert_eq!((thread.stacks.wait(), thread.counts().unknown), (None, 1));
    thread.finish();
}

#[test]
fn thread_without_other_stacks_does_not_wait_to_unwind() {
    let mut thread = thread_in_c();
    thread.stacks.order_switches();
    thread.return_to("c+9", "main+2", 10);
    assert_eq!(thread.stacks.wait(), None);
    assert_eq!(thread.counts().unwound, 1);
    thread.finish();
}

#[test]
fn times_of_a_call_are_those_of_its_transfers() {
    let mut thread = Thread::start("main", 1);
    thread.stacks.set_time(70);
    thread.call("main+1", "a", 2);
    thread.stacks.set_time(80);
    thread.return_to("a+9", "main+2", 1);
    thread.stacks.set_time(90);
    let calls = thread.finish().calls_of("a");
    assert_eq!((calls[0].begin_time, calls[0].end_time), (70, 80));
}

// The kernel

#[test]
fn system_call_nests_below_the_function_of_the_program() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "entry_SYSCALL_64", 2);
    thread.call("entry_SYSCALL_64+1", "read", 3);
    thread.return_to("read+9", "entry_SYSCALL_64+2", 4);
    thread.return_from_kernel("entry_SYSCALL_64+9", "main+2", 10);
    thread.assert_paths(&[
        ("main", 1, 11),
        ("main/entry_SYSCALL_64", 1, 6),
        ("main/entry_SYSCALL_64/read", 1, 3),
    ]);
}

#[test]
fn interrupt_of_the_kernel_returns_to_the_interrupted_function() {
    let mut thread = Thread::start("read", 1);
    thread.signal("read+1", "interrupt", 2);
    thread.return_from_kernel("interrupt+9", "read+1", 10);
    thread.assert_paths(&[("read", 1, 11), ("read/interrupt (Signal)", 1, 2)]);
}

#[test]
fn exception_may_continue_elsewhere_in_the_function() {
    let mut thread = Thread::start("read", 1);
    thread.signal("read+1", "interrupt", 2);
    thread.return_from_kernel("interrupt+9", "read+70", 10);
    thread.assert_paths(&[("read", 1, 11), ("read/interrupt (Signal)", 1, 2)]);
}

#[test]
fn iret_to_the_next_instruction_ends_no_interrupt() {
    let mut thread = Thread::start("read", 1);
    thread.signal("read+1", "interrupt", 2);
    thread.return_from_kernel("interrupt+4", "interrupt+5", 10);
    thread.assert_paths(&[("read", 1, 1), ("read/interrupt (Signal)", 1, 12)]);
}

#[test]
fn breakpoint_that_emulates_a_call_returns_after_it() {
    let mut thread = Thread::start("read", 1);
    thread.signal("read+1", "interrupt", 1);
    thread.return_from_kernel("interrupt+9", "driver", 1);
    thread.return_to("driver+9", "read+6", 10);
    assert_eq!(thread.counts().unknown, 0);
    thread.assert_paths(&[
        ("read", 1, 11),
        ("read/interrupt (Signal)", 1, 1),
        ("read/driver (Injected)", 1, 1),
    ]);
}

#[test]
fn task_continues_on_its_own_stack() {
    let mut thread = Thread::start("read", 1);
    thread.call("read+1", "schedule", 1);
    thread.switch_task(1);
    thread.return_from_switch("ret_from_fork", 1);
    thread.call("ret_from_fork+1", "kthread", 1);
    thread.call("kthread+1", "schedule", 1);
    thread.switch_task(0);
    thread.return_from_switch("schedule+2", 100);
    thread.return_to("schedule+9", "read+2", 1000);
    thread.call("read+3", "schedule", 1);
    thread.switch_task(1);
    thread.return_from_switch("schedule+2", 200);
    thread.return_to("schedule+9", "kthread+2", 2000);
    assert_eq!((thread.counts().unknown, thread.counts().choices), (0, 0));
    let asm = "read/schedule/__switch_to_asm";
    thread.assert_paths(&[
        ("read", 1, 1001),
        ("read/schedule", 2, 102),
        (asm, 2, 2),
        (&format!("{asm}/__switch_to (Tail)"), 1, 1),
        ("1: Start: __switch_to", 1, 1),
        ("1: NewStack: ret_from_fork", 1, 1),
        ("1: NewStack: ret_from_fork/kthread", 1, 2001),
        ("1: NewStack: ret_from_fork/kthread/schedule", 1, 201),
        (
            "1: NewStack: ret_from_fork/kthread/schedule/__switch_to_asm",
            1,
            1,
        ),
        (
            "1: NewStack: ret_from_fork/kthread/schedule/__switch_to_asm/__switch_to (Tail)",
            1,
            1,
        ),
    ]);
}

#[test]
fn switch_returns_over_calls_that_fill_the_return_stack_buffer() {
    let mut thread = Thread::start("read", 1);
    thread.call("read+1", "schedule", 1);
    thread.call("schedule+1", "__switch_to_asm", 1);
    thread.call("__switch_to_asm+1", "__switch_to_asm+5", 1);
    thread.direct_jump("__switch_to_asm+9", "__switch_to", 1);
    thread.return_from_switch("schedule+2", 100);
    let asm = "read/schedule/__switch_to_asm";
    thread.assert_paths(&[
        ("read", 1, 1),
        ("read/schedule", 1, 101),
        (asm, 1, 2),
        (&format!("{asm}/__switch_to"), 1, 1),
    ]);
}

#[test]
fn exec_returns_to_a_new_program() {
    let mut thread = Thread::start("main", 1);
    thread.call("main+1", "entry_SYSCALL_64", 1);
    thread.call("entry_SYSCALL_64+1", "exec", 1);
    thread.call("exec+1", "begin_new_exec", 1);
    thread.return_to("begin_new_exec+9", "exec+2", 1);
    thread.return_to("exec+9", "entry_SYSCALL_64+2", 1);
    thread.return_from_kernel("entry_SYSCALL_64+9", "main", 10);
    let kernel = "main/entry_SYSCALL_64";
    thread.assert_paths(&[
        ("main", 2, 11),
        (kernel, 1, 2),
        (&format!("{kernel}/exec"), 1, 2),
        (&format!("{kernel}/exec/begin_new_exec"), 1, 1),
    ]);
}

#[test]
fn new_task_enters_its_program_on_another_root() {
    let mut thread = Thread::start("ret_from_fork", 1);
    thread.return_from_kernel("ret_from_fork+9", "b+7", 10);
    thread.assert_paths(&[("ret_from_fork", 1, 1), ("Caller: b", 1, 10)]);
}

#[test]
fn return_thunk_is_the_return_of_the_function_that_jumps_there() {
    let mut thread = Thread::start("read", 1);
    thread.call("read+1", "driver", 1);
    thread.direct_jump("driver+9", "__x86_return_thunk", 1);
    thread.return_to("__x86_return_thunk+1", "read+2", 10);
    thread.assert_paths(&[("read", 1, 11), ("read/driver", 1, 2)]);
}

#[test]
fn retpoline_of_the_kernel_enters_the_target_in_place_of_its_thunk() {
    let mut thread = Thread::start("read", 1);
    thread.call("read+1", "__x86_indirect_thunk_rax", 1);
    thread.call(
        "__x86_indirect_thunk_rax+1",
        "__x86_indirect_thunk_rax+8",
        1,
    );
    thread.direct_jump("__x86_indirect_thunk_rax+12", "__x86_return_thunk", 1);
    thread.return_to("__x86_return_thunk+1", "driver", 5);
    thread.return_to("driver+9", "read+2", 10);
    thread.assert_paths(&[("read", 1, 14), ("read/driver", 1, 5)]);
}

#[test]
fn interrupted_thunk_is_no_caller() {
    let mut thread = Thread::start("read", 1);
    thread.call("read+1", "__x86_indirect_thunk_rax", 1);
    thread.signal("__x86_indirect_thunk_rax+1", "interrupt", 50);
    thread.return_from_kernel("interrupt+9", "__x86_indirect_thunk_rax+1", 1);
    thread.indirect_jump("__x86_indirect_thunk_rax+2", "driver", 5);
    thread.return_to("driver+9", "read+2", 10);
    let calls = thread.finish().calls_of("driver");
    assert_eq!((calls.len(), calls[0].depth), (1, 1));
}

proptest! {
    #[test]
    fn instructions_add_up_for_any_transfers(
        transfers in prop::collection::vec(
            (0..21_u8, 0..18_usize, 0..4_u64, 0..18_usize, 0..4_u64, 0..4_u64), 0..400,
        ),
    ) {
        let mut thread = Thread::start("main", 1);
        for (kind, from, from_offset, to, to_offset, run) in transfers {
            thread.transfer(kind, nth_address(from, from_offset), nth_address(to, to_offset), run);
        }
        thread.finish();
    }

    /// Few functions, and mostly switches: many choices and corrections.
    #[test]
    fn instructions_add_up_for_any_switches(
        transfers in prop::collection::vec(
            (0..12_u8, 0..3_u64, 0..3_usize, 0..3_u64, 0..6_u32), 0..400,
        ),
    ) {
        let functions = [2, 6, 12]; // a, f, swapcontext
        let mut thread = Thread::start("main", 1);
        for (kind, from, to, to_offset, number) in transfers {
            thread.switch_thread(number / 4);
            let from = nth_address(functions[usize::from(kind % 3)], from);
            thread.transfer(kind, from, nth_address(functions[to], to_offset), 1);
        }
        thread.finish();
    }
}
