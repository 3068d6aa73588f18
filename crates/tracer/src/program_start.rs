//! Starts the program: finds its file as execvp(3) does, forks, and executes it once it is traced.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, ptr};

use libc::{c_char, c_int, pid_t};

use crate::{procfs, ptrace, Error, TraceOptions};

/// Everything that exec needs, allocated before the fork: after it only async-signal-safe calls are allowed.
pub(crate) struct LaunchPlan {
    path: PathBuf,
    file: CString,
    arguments: Vec<CString>,
    /// `/bin/sh file arguments`, for a file that the kernel may not recognize.
    script: Option<Vec<CString>>,
    environment: Vec<CString>,
    directory: Option<(PathBuf, CString)>,
    no_aslr: bool,
    default_signals: Vec<c_int>,
    mask: libc::sigset_t,
}

/// The step that failed in the child.
#[derive(Clone, Copy)]
#[repr(u8)]
enum LaunchStage {
    Directory = 1,
    Exec = 2,
}

/// A child that waits until it may call exec.
pub(crate) struct WaitingChild {
    pub(crate) pid: pid_t,
    gate: OwnedFd,
    report: OwnedFd,
}

fn to_c_string(text: &OsStr, what: &str) -> Result<CString, Error> {
    CString::new(text.as_bytes()).map_err(|_| Error::Argument {
        what: format!("{what} with a NUL byte: {}", text.to_string_lossy()),
    })
}

/// Returns the set `blocked`, or the signals that this thread blocks.
fn signal_set(blocked: Option<&[i32]>) -> libc::sigset_t {
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
pub(crate) fn block_all_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset initialises the set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

impl LaunchPlan {
    /// Looks everything up. The program may get the calling thread's signal mask.
    pub(crate) fn new(options: &TraceOptions) -> Result<LaunchPlan, Error> {
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
        to_c_string(program, "an argument")?;
        let directory = options.directory.as_deref();
        if let Some(directory) = directory {
            std::fs::read_dir(directory).map(drop).or_else(|error| {
                // A directory can be entered without being readable.
                match error.raw_os_error() {
                    Some(libc::EACCES) => Ok(()),
                    _ => Err(Error::Directory {
                        path: directory.to_owned(),
                        error,
                    }),
                }
            })?;
        }
        let path = find_program(program, &environment, directory)?;
        let arguments: Vec<CString> = options
            .arguments
            .iter()
            .map(|argument| to_c_string(argument, "an argument"))
            .collect::<Result<_, _>>()?;
        let file = to_c_string(path.as_os_str(), "a path")?;
        let full = directory.map_or_else(|| path.clone(), |directory| directory.join(&path));
        let script = may_be_script(&full).then(|| {
            let mut script = vec![c"/bin/sh".to_owned(), file.clone()];
            script.extend(arguments.iter().skip(1).cloned());
            script
        });
        Ok(LaunchPlan {
            file,
            script,
            arguments,
            environment: environment
                .iter()
                .map(|entry| to_c_string(entry, "an environment entry"))
                .collect::<Result<_, _>>()?,
            directory: match directory {
                Some(directory) => Some((
                    directory.to_owned(),
                    to_c_string(directory.as_os_str(), "a directory")?,
                )),
                None => None,
            },
            no_aslr: options.no_aslr,
            default_signals: options.default_signals.clone(),
            mask: signal_set(options.blocked_signals.as_deref()),
            path,
        })
    }

    /// Forks a child that waits until it is traced.
    pub(crate) fn fork_child(&self) -> Result<WaitingChild, Error> {
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
        let (gate_out, gate_in) = create_pipe()?;
        let (report_out, report_in) = create_pipe()?;
        // SAFETY: the child makes async-signal-safe calls on memory that was made before, and never returns.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(Error::from_last_os_error("fork"));
        }
        if pid == 0 {
            // The child's end must not keep its own gate open, or it would wait for ever for a parent that is gone.
            // SAFETY: as above; the descriptors are the child's copies.
            unsafe {
                libc::close(gate_in.as_raw_fd());
                self.run_child(
                    gate_out.as_raw_fd(),
                    report_in.as_raw_fd(),
                    &arguments,
                    script.as_deref(),
                    &environment,
                )
            }
        }
        Ok(WaitingChild {
            pid,
            gate: gate_in,
            report: report_out,
        })
    }

    /// Executes the program in the child, after waiting.
    ///
    /// # Safety Only for a process that has just been forked; the vectors end with a null pointer.
    unsafe fn run_child(
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
        // Handlers would run this process's code in the child once the mask allows them.
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
                report_failed_stage(report, LaunchStage::Directory);
            }
        }
        libc::execve(self.file.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        if let (libc::ENOEXEC, Some(script)) = (*libc::__errno_location(), script) {
            libc::execve(c"/bin/sh".as_ptr(), script.as_ptr(), environment.as_ptr());
        }
        report_failed_stage(report, LaunchStage::Exec)
    }

    fn error_of_stage(&self, stage: u8, code: i32) -> Error {
        let error = io::Error::from_raw_os_error(code);
        if stage == LaunchStage::Directory as u8 {
            return Error::Directory {
                path: self
                    .directory
                    .as_ref()
                    .map(|(path, _)| path.clone())
                    .unwrap_or_default(),
                error,
            };
        }
        // The file exists (it was looked up), so ENOENT is about its interpreter.
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

/// Sends the failed step and errno to the parent.
unsafe fn report_failed_stage(report: RawFd, stage: LaunchStage) -> ! {
    let code = (*libc::__errno_location()).to_le_bytes();
    let message = [stage as u8, code[0], code[1], code[2], code[3]];
    libc::write(report, message.as_ptr().cast(), message.len());
    libc::_exit(127)
}

pub(crate) fn create_pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds: [c_int; 2] = [-1; 2];
    // SAFETY: two descriptors fit.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::from_last_os_error("pipe2"));
    }
    // SAFETY: the kernel has just made them for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

impl WaitingChild {
    /// Traces the child. If that is forbidden, the child ends and the error explains why.
    pub(crate) fn seize_child(&self) -> Result<(), Error> {
        let Err(error) = ptrace::seize_new_child(self.pid) else {
            return Ok(());
        };
        Err(Error::PtraceForbidden {
            why: explain_refused_seize(self.pid, &error),
        })
    }

    /// Lets the child call exec.
    pub(crate) fn let_child_exec(&self) -> Result<(), Error> {
        let mut gate = std::fs::File::from(
            self.gate
                .try_clone()
                .map_err(Error::from_failed_call("dup"))?,
        );
        gate.write_all(&[1])
            .map_err(Error::from_failed_call("write"))
    }

    /// Returns why the child ended without running the program, if it reported that.
    pub(crate) fn launch_error(self, plan: &LaunchPlan) -> Option<Error> {
        let mut message = [0u8; 5];
        std::fs::File::from(self.report)
            .read_exact(&mut message)
            .ok()?;
        let [stage, code @ ..] = message;
        Some(plan.error_of_stage(stage, i32::from_le_bytes(code)))
    }
}

fn explain_refused_seize(pid: pid_t, error: &io::Error) -> String {
    let (filtered, tracer) = procfs::seccomp_filter_and_tracer(pid);
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

/// The path that execvp searches if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Returns the file of `program`: the path itself if it has a slash, otherwise the first executable file in the PATH of
/// `environment`. Relative paths start at `directory`, where the program will start.
pub(crate) fn find_program(
    program: &OsStr,
    environment: &[OsString],
    directory: Option<&Path>,
) -> Result<PathBuf, Error> {
    let not_found = || Error::NotFound {
        program: program.to_string_lossy().into_owned(),
    };
    if program.is_empty() {
        return Err(not_found());
    }
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        let path = environment
            .iter()
            .find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="))
            .unwrap_or(DEFAULT_PATH.as_bytes());
        path.split(|&b| b == b':')
            .map(|part| match part {
                b"" => Path::new(".").join(program),
                _ => Path::new(OsStr::from_bytes(part)).join(program),
            })
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        let path = match directory {
            Some(directory) => directory.join(&candidate),
            None => candidate.clone(),
        };
        match check_executable(&path) {
            Ok(()) => return Ok(candidate),
            Err(error) if is_file_missing(&error) => {}
            Err(error) => {
                refused.get_or_insert(Error::NotExecutable {
                    path: candidate,
                    error,
                });
            }
        }
    }
    Err(refused.unwrap_or_else(not_found))
}

fn is_file_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

fn check_executable(path: &Path) -> io::Result<()> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` ends with a NUL.
    let allowed =
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    if allowed != 0 || metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    Ok(())
}

/// Returns whether a file that the kernel does not recognize is text, which execvp passes to /bin/sh.
pub(crate) fn may_be_script(path: &Path) -> bool {
    let mut head = [0u8; 128];
    let Ok(count) = fs::File::open(path).and_then(|mut file| file.read(&mut head)) else {
        return false;
    };
    !head[..count].contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(path: &str) -> Vec<OsString> {
        vec!["A=1".into(), format!("PATH={path}").into()]
    }

    #[test]
    fn path_is_searched_in_order() {
        let found =
            find_program("sh".as_ref(), &environment("/nowhere:/bin:/usr/bin"), None).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
        assert_eq!(
            find_program("sh".as_ref(), &[], None).unwrap(),
            Path::new("/bin/sh")
        );
    }

    #[test]
    fn name_with_a_slash_is_a_path() {
        let root = Some(Path::new("/"));
        assert_eq!(
            find_program("bin/sh".as_ref(), &environment(""), root).unwrap(),
            Path::new("bin/sh")
        );
    }

    #[test]
    fn exit_code_of_a_program_that_cannot_run() {
        let code = |name: &str, path: &str| {
            find_program(name.as_ref(), &environment(path), None)
                .unwrap_err()
                .exit_code()
        };
        assert_eq!(code("no-such-program", "/bin"), 127);
        assert_eq!(code("", "/bin"), 127);
        assert_eq!(code("/etc/passwd", ""), 126);
        assert_eq!(code("passwd", "/etc:/nowhere"), 126);
        assert_eq!(code("/etc", ""), 126);
        assert_eq!(code("/etc/passwd/x", ""), 127);
    }
}
