//! Real programs under the tracer: they behave as they do without it, and what it reports describes what they did.
//!
//! The programs are in tests/programs; without a C compiler there is nothing to trace and the tests pass.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rtit_tracer::{EventKind, Options, Tracer};
use support::Walker;

mod support;

/// Builds a program of tests/programs. None if there is no compiler.
fn build(name: &str, test: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(format!("{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
    let built = Command::new("cc")
        .args(["-O1", "-static", "-Wall", "-Wextra", "-pthread", "-o"])
        .args([&program, &source])
        .status();
    match built {
        Ok(status) => {
            assert!(status.success(), "{name}.c does not compile");
            Some(program)
        }
        Err(error) => {
            eprintln!("cc: {error}; nothing is tested");
            None
        }
    }
}

const SIGTERM: i32 = 15;

struct Traced {
    walker: Walker,
    output: String,
    status: u64,
}

/// Runs `program` under the tracer.
fn trace(program: &Path, arguments: &[&str]) -> Traced {
    let truth = program.with_extension("truth");
    let output = program.with_extension("output");
    // There is none from an earlier run, as a rule.
    let _ = std::fs::remove_file(&output);
    let mut environment = OsString::from("OUTPUT=");
    environment.push(&output);
    let words = [program.as_os_str()]
        .into_iter()
        .chain(arguments.iter().map(AsRef::as_ref));
    let options = Options {
        truth: Some(truth.clone()),
        environment: Some(vec![environment]),
        ..Options::new(words)
    };
    let tracer = Tracer::start(&options).unwrap();
    let mut walker = Walker::default();
    while let Some(batch) = tracer.next_batch(Duration::from_secs(1)) {
        walker.batch(&batch);
    }
    walker.check(&truth);
    assert_eq!(walker.errors, Vec::<String>::new());
    Traced {
        status: walker.status,
        walker,
        output: std::fs::read_to_string(output).unwrap(),
    }
}

/// The program does and says under the tracer what it does and says without it.
fn same(name: &str, arguments: &[&str]) -> Option<Traced> {
    use std::os::unix::process::ExitStatusExt;
    let program = build(name, "same")?;
    let plain = Command::new(&program)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let traced = trace(&program, arguments);
    assert_eq!(traced.output, String::from_utf8_lossy(&plain.stdout));
    assert_eq!(traced.status, plain.status.into_raw() as u64);
    Some(traced)
}

fn count(traced: &Traced, kind: EventKind) -> u64 {
    traced.walker.counts.get(&kind).copied().unwrap_or(0)
}

#[test]
fn signals_come_as_they_would() {
    let Some(traced) = same("signals", &[]) else {
        return;
    };
    // write, call, ud2, divide, int, not canonical, rep, overflow
    assert_eq!(count(&traced, EventKind::Fault), 8);
    // int3 in two forms
    assert_eq!(count(&traced, EventKind::SoftInt), 2);
    assert!(count(&traced, EventKind::Interrupt) > 0);
}

#[test]
fn code_without_a_file_is_reported_when_it_changes() {
    let Some(traced) = same("code", &[]) else {
        return;
    };
    // The vDSO; a page written 5 times and the next one once; W^X; shared pages; patched; again, in the child, moved.
    assert_eq!(count(&traced, EventKind::Code), 1 + 6 + 3 + 5 + 1 + 3);
    assert!(count(&traced, EventKind::Switch) >= count(&traced, EventKind::Code) - 1);
}

#[test]
fn steps_leave_no_trace_in_the_program() {
    let Some(traced) = same("steps", &[]) else {
        return;
    };
    assert!(count(&traced, EventKind::SoftInt) >= 1);
    // The repeated string instructions alone are 150,000 iterations.
    assert!(traced.walker.clock < 150_000);
}

#[test]
fn processes_and_threads_are_followed() {
    let Some(traced) = same("processes", &[]) else {
        return;
    };
    assert_eq!(traced.status, 9);
    assert_eq!(
        count(&traced, EventKind::Thread),
        count(&traced, EventKind::Exit)
    );
    // the program; vfork, spawn, the thread that calls exec
    assert_eq!(count(&traced, EventKind::Exec), 1 + 3);
}

#[test]
fn everything_dies_by_kill() {
    let Some(program) = build("processes", "kill") else {
        return;
    };
    let options = Options::new([program.as_os_str(), "wait".as_ref()]);
    let tracer = Tracer::start(&options).unwrap();
    let mut walker = Walker::default();
    let mut threads = 0;
    while let Some(batch) = tracer.next_batch(Duration::from_millis(100)) {
        threads += batch
            .iter()
            .filter(|record| record.kind == EventKind::Thread)
            .count();
        walker.batch(&batch);
        if threads >= 4 {
            tracer.kill();
        }
    }
    assert_eq!(walker.errors, Vec::<String>::new());
    assert!(walker.killed);
    assert_eq!(walker.status, 9);
    assert_eq!(
        walker.counts[&EventKind::Thread],
        walker.counts[&EventKind::Exit]
    );
}

#[test]
fn a_signal_reaches_the_program() {
    let tracer = Tracer::start(&Options::new(["/bin/sleep", "1000"])).unwrap();
    tracer.signal(SIGTERM).unwrap();
    let mut walker = Walker::default();
    while let Some(batch) = tracer.next_batch(Duration::from_secs(1)) {
        walker.batch(&batch);
    }
    assert_eq!(walker.status, 15);
    assert!(!walker.killed);
    assert!(tracer.signal(SIGTERM).is_err());
}

#[test]
fn what_cannot_start_says_why() {
    let code = |options: &Options| Tracer::start(options).map(drop).unwrap_err().exit_code();
    assert_eq!(code(&Options::new(["no-such-program"])), 127);
    assert_eq!(code(&Options::new(["/etc/passwd"])), 126);
    assert_eq!(code(&Options::new(["/bin/true", "a\0b"])), 125);
    assert_eq!(code(&Options::new(Vec::<String>::new())), 125);
    let missing = Options {
        directory: Some("/nowhere".into()),
        ..Options::new(["/bin/true"])
    };
    assert_eq!(code(&missing), 125);
    let no_truth = Options {
        truth: Some("/nowhere/truth".into()),
        ..Options::new(["/bin/true"])
    };
    assert_eq!(code(&no_truth), 125);
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad-interpreter");
    std::fs::write(&script, "#!/nowhere/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    assert_eq!(code(&Options::new([script])), 126);
}
