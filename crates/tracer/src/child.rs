//! The start of the program: fork, the few steps between fork and exec, and what went wrong in them.

use std::ffi::{CString, OsStr};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use libc::{c_char, c_int, pid_t};

use crate::{lookup, procfs, sys, Error, Options};

/// Everything that exec needs, made before fork: afterwards only async-signal-safe calls are allowed.
pub(crate) struct Plan {
    path: PathBuf,
    file: CString,
    arguments: Vec<CString>,
    /// `/bin/sh file arguments`, if the kernel may not recognise the file.
    script: Option<Vec<CString>>,
    environment: Vec<CString>,
    directory: Option<(PathBuf, CString)>,
    no_aslr: bool,
    default_signals: Vec<c_int>,
    mask: libc::sigset_t,
}

/// What the child reports instead of running the program.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Stage {
    Directory = 1,
    Exec = 2,
}

/// A child that waits to be let go.
pub(crate) struct Child {
    pub(crate) pid: pid_t,
    gate: OwnedFd,
    report: OwnedFd,
}

fn c_string(text: &OsStr, what: &str) -> Result<CString, Error> {
    CString::new(text.as_bytes()).map_err(|_| Error::Argument {
        what: format!("{what} with a NUL byte: {}", text.to_string_lossy()),
    })
}

/// `blocked`, or the signals that this thread blocks.
fn signal_mask(blocked: Option<&[i32]>) -> libc::sigset_t {
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the calls only write the mask, and a zeroed one is an empty one; numbers that are no signals are refused.
    unsafe {
        match blocked {
            Some(signals) => {
                for &signal in signals {
                    libc::sigaddset(mask.as_mut_ptr(), signal);
                }
            }
            None => {
                libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), mask.as_mut_ptr());
            }
        }
        mask.assume_init()
    }
}

/// Blocks all signals in this thread, so that other threads of the process handle them.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset initialises the set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

impl Plan {
    /// Looks everything up. The calling thread's signal mask is what the program may get.
    pub(crate) fn new(options: &Options) -> Result<Plan, Error> {
        let Some(program) = options.arguments.first() else {
            return Err(Error::Argument {
                what: "no program is given".to_owned(),
            });
        };
        let environment = options.environment.clone().unwrap_or_else(|| {
            std::env::vars_os()
                .map(|(mut name, value)| {
                    name.push("=");
                    name.push(value);
                    name
                })
                .collect()
        });
        c_string(program, "an argument")?;
        let directory = options.directory.as_deref();
        if let Some(directory) = directory {
            std::fs::read_dir(directory).map(drop).or_else(|error| {
                // A directory that may be entered need not be readable.
                match error.raw_os_error() {
                    Some(libc::EACCES) => Ok(()),
                    _ => Err(Error::Directory {
                        path: directory.to_owned(),
                        error,
                    }),
                }
            })?;
        }
        let path = lookup::find(program, &environment, directory)?;
        let arguments: Vec<CString> = options
            .arguments
            .iter()
            .map(|argument| c_string(argument, "an argument"))
            .collect::<Result<_, _>>()?;
        let file = c_string(path.as_os_str(), "a path")?;
        let full = directory.map_or_else(|| path.clone(), |directory| directory.join(&path));
        let script = lookup::is_script(&full).then(|| {
            let mut script = vec![c"/bin/sh".to_owned(), file.clone()];
            script.extend(arguments.iter().skip(1).cloned());
            script
        });
        Ok(Plan {
            file,
            script,
            arguments,
            environment: environment
                .iter()
                .map(|entry| c_string(entry, "an environment entry"))
                .collect::<Result<_, _>>()?,
            directory: match directory {
                Some(directory) => Some((
                    directory.to_owned(),
                    c_string(directory.as_os_str(), "a directory")?,
                )),
                None => None,
            },
            no_aslr: options.no_aslr,
            default_signals: options.default_signals.clone(),
            mask: signal_mask(options.blocked_signals.as_deref()),
            path,
        })
    }

    /// Forks a child that waits until it is traced.
    pub(crate) fn fork(&self) -> Result<Child, Error> {
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings
                .iter()
                .map(|s| s.as_ptr())
                .chain([ptr::null()])
                .collect()
        };
        let arguments = pointers(&self.arguments);
        let environment = pointers(&self.environment);
        let script = self.script.as_deref().map(pointers);
        let (gate_out, gate_in) = pipe()?;
        let (report_out, report_in) = pipe()?;
        // SAFETY: the child makes async-signal-safe calls on memory that was made before, and never returns.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(Error::system("fork"));
        }
        if pid == 0 {
            // The child's end must not keep its own gate open, or it would wait for ever for a parent that is gone.
            // SAFETY: as above; the descriptors are the child's copies.
            unsafe {
                libc::close(gate_in.as_raw_fd());
                self.run(
                    gate_out.as_raw_fd(),
                    report_in.as_raw_fd(),
                    &arguments,
                    script.as_deref(),
                    &environment,
                )
            }
        }
        Ok(Child {
            pid,
            gate: gate_in,
            report: report_out,
        })
    }

    /// The child's life before exec.
    ///
    /// # Safety
    /// Only for a process that has just been forked; the vectors end with a null pointer.
    unsafe fn run(
        &self,
        gate: RawFd,
        report: RawFd,
        arguments: &[*const c_char],
        script: Option<&[*const c_char]>,
        environment: &[*const c_char],
    ) -> ! {
        let mut go = 0u8;
        loop {
            let got = libc::read(gate, ptr::from_mut(&mut go).cast(), 1);
            if got == 1 {
                break;
            }
            if got == 0 || *libc::__errno_location() != libc::EINTR {
                libc::_exit(125);
            }
        }
        // Handlers would run our code in the child as soon as the mask lets them.
        for signal in 1..=64 {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
                continue;
            }
            let handler = (*action.as_ptr()).sa_sigaction;
            let handled = handler != libc::SIG_DFL && handler != libc::SIG_IGN;
            if handled || self.default_signals.contains(&signal) {
                (*action.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, action.as_ptr(), ptr::null_mut());
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, ptr::null_mut());
        if self.no_aslr {
            let old = libc::personality(0xffff_ffff);
            if old >= 0 {
                libc::personality((old | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
            }
        }
        if let Some((_, directory)) = &self.directory {
            if libc::chdir(directory.as_ptr()) != 0 {
                fail(report, Stage::Directory);
            }
        }
        libc::execve(self.file.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        if let (libc::ENOEXEC, Some(script)) = (*libc::__errno_location(), script) {
            libc::execve(c"/bin/sh".as_ptr(), script.as_ptr(), environment.as_ptr());
        }
        fail(report, Stage::Exec)
    }

    fn error(&self, stage: u8, code: i32) -> Error {
        let error = io::Error::from_raw_os_error(code);
        if stage == Stage::Directory as u8 {
            return Error::Directory {
                path: self
                    .directory
                    .as_ref()
                    .map(|(path, _)| path.clone())
                    .unwrap_or_default(),
                error,
            };
        }
        // The file is there (it was looked up), so ENOENT means its interpreter.
        Error::NotExecutable {
            path: self.path.clone(),
            error: match code {
                libc::ENOENT if Path::new(&self.path).exists() => {
                    io::Error::other("its interpreter or loader does not exist")
                }
                _ => error,
            },
        }
    }
}

/// Tells the parent what failed, and errno.
unsafe fn fail(report: RawFd, stage: Stage) -> ! {
    let code = (*libc::__errno_location()).to_le_bytes();
    let message = [stage as u8, code[0], code[1], code[2], code[3]];
    libc::write(report, message.as_ptr().cast(), message.len());
    libc::_exit(127)
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds: [c_int; 2] = [-1; 2];
    // SAFETY: two descriptors fit.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::system("pipe2"));
    }
    // SAFETY: the kernel has just made them for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

impl Child {
    /// Traces the child; if that is forbidden, the child ends and the error says why.
    pub(crate) fn seize(&self) -> Result<(), Error> {
        let Err(error) = sys::seize(self.pid) else {
            return Ok(());
        };
        Err(Error::PtraceForbidden {
            why: why_forbidden(self.pid, &error),
        })
    }

    /// Lets the child go on to exec.
    pub(crate) fn release(&self) -> Result<(), Error> {
        let mut gate = std::fs::File::from(self.gate.try_clone().map_err(system("dup"))?);
        gate.write_all(&[1]).map_err(system("write"))
    }

    /// Why the child has ended without running the program, if it said so.
    pub(crate) fn failure(self, plan: &Plan) -> Option<Error> {
        let mut message = [0u8; 5];
        std::fs::File::from(self.report)
            .read_exact(&mut message)
            .ok()?;
        let [stage, code @ ..] = message;
        Some(plan.error(stage, i32::from_le_bytes(code)))
    }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::System { call, error }
}

fn why_forbidden(pid: pid_t, error: &io::Error) -> String {
    let (filtered, tracer) = procfs::restrictions(pid);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if tracer != 0 {
        return format!("process {tracer} traces us already ({error})");
    }
    if scope.trim() == "3" || scope.trim() == "2" {
        return format!("kernel.yama.ptrace_scope is {} ({error})", scope.trim());
    }
    if filtered {
        return format!(
            "a seccomp filter, as containers have, does not let ptrace through ({error}); \
             docker run --cap-add=SYS_PTRACE allows it"
        );
    }
    format!("the kernel refuses ptrace ({error})")
}
