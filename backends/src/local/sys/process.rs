//! Starting processes: init in its namespaces, and jobs in the caller's.
//!
//! Both share the caller's memory until they exec (`CLONE_VM | CLONE_VFORK`), which costs a tenth of a fork. The code
//! that runs in between may only make system calls and touch what was prepared before: no allocation, no locks.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::unistd::Pid;

use crate::step::Step;

/// Ids of a user namespace with one user: `inside outside 1`.
#[derive(Debug, Clone, Copy)]
pub struct OneUser {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// User id outside.
    pub host_uid: u32,
    /// Group id outside.
    pub host_gid: u32,
}

/// How to start init.
#[derive(Debug)]
pub struct InitSpec<'a> {
    /// The program, opened O_PATH.
    pub program: RawFd,
    /// Its arguments.
    pub args: &'a [CString],
    /// The control socket; becomes descriptor 0.
    pub control: RawFd,
    /// `CLONE_NEW*`; 0 for none.
    pub namespaces: i32,
    /// Written to the id maps when `namespaces` has `CLONE_NEWUSER`.
    pub user: OneUser,
    /// Become `user.host_uid` first, dropping all groups (callers that are root).
    pub drop_root: bool,
    /// Numbers of the capabilities kept over the exec.
    pub capabilities: &'a [u32],
    /// `cgroup.procs` files to join by writing "0".
    pub cgroups: &'a [RawFd],
}

/// What the child leaves behind for the parent when it cannot exec.
#[derive(Debug, Clone, Copy)]
struct Failure {
    step: Step,
    errno: i32,
}

/// 64 KiB is far more than the calls below need.
const STACK: usize = 64 * 1024;

struct Stack(Vec<u128>);

impl Stack {
    fn new() -> Self {
        Self(Vec::with_capacity(STACK / size_of::<u128>()))
    }

    fn top(&mut self) -> *mut libc::c_void {
        // SAFETY: one past the end of the reserved allocation; stacks grow down on every architecture we build for.
        unsafe { self.0.as_mut_ptr().add(self.0.capacity()).cast() }
    }
}

/// A line for an id map, formatted before the clone because the child may not allocate.
struct MapLine {
    text: [u8; 40],
    len: usize,
}

impl MapLine {
    fn new(inside: u32, outside: u32) -> Self {
        let line = format!("{inside} {outside} 1\n");
        let mut text = [0; 40];
        text[..line.len()].copy_from_slice(line.as_bytes());
        Self { text, len: line.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

struct InitChild<'a> {
    spec: &'a InitSpec<'a>,
    argv: Vec<*const libc::c_char>,
    uid_map: MapLine,
    gid_map: MapLine,
    inner_stack: *mut libc::c_void,
    pid: i32,
    failure: Option<Failure>,
}

/// Starts init and returns once it has been executed. The calling thread becomes its PDEATHSIG parent.
pub fn spawn_init(spec: &InitSpec<'_>) -> Result<Pid, (Step, Errno)> {
    let mut stack = Stack::new();
    let mut inner = Stack::new();
    let mut argv: Vec<*const libc::c_char> = spec.args.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    let mut child = InitChild {
        spec,
        argv,
        uid_map: MapLine::new(spec.user.uid, spec.user.host_uid),
        gid_map: MapLine::new(spec.user.gid, spec.user.host_gid),
        inner_stack: inner.top(),
        pid: 0,
        failure: None,
    };
    let argument = (&raw mut child).cast::<libc::c_void>();
    // SAFETY: integers.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    let result = if spec.drop_root {
        // The namespaces must belong to the unprivileged user, so they are made by a child that has become it.
        vfork(outer_main, stack.top(), 0, argument)
    } else {
        vfork(init_main, stack.top(), spec.namespaces, argument)
    };
    // The child shares our memory and made it dumpable; a supervisor that has left root must not stay so, because it
    // still holds root's variables and descriptors.
    // SAFETY: integers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable == 1), 0, 0, 0) };
    let first = result.map_err(|errno| (Step::Namespaces, errno))?;
    let failure = child.failure;
    let pid = if spec.drop_root {
        let _ = nix::sys::wait::waitpid(first, None);
        // Killed before it could tell; and 0 would stand for our own process group.
        if child.pid <= 0 && failure.is_none() {
            return Err((Step::Namespaces, Errno::ESRCH));
        }
        Pid::from_raw(child.pid)
    } else {
        first
    };
    match failure {
        None => Ok(pid),
        Some(failure) => {
            if pid.as_raw() > 0 {
                let _ = nix::sys::wait::waitpid(pid, None);
            }
            Err((failure.step, Errno::from_raw(failure.errno)))
        }
    }
}

type Main = extern "C" fn(*mut libc::c_void) -> libc::c_int;

fn vfork(main: Main, stack: *mut libc::c_void, flags: i32, argument: *mut libc::c_void) -> Result<Pid, Errno> {
    let flags = flags | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: CLONE_VFORK suspends this thread until the child execs or exits, so `stack` and `argument` outlive its
    // use of them; `main` only makes system calls.
    Errno::result(unsafe { libc::clone(main, stack, flags, argument) }).map(Pid::from_raw)
}

fn sys(result: libc::c_long) -> Result<libc::c_long, Errno> {
    Errno::result(result)
}

/// Runs in a child that shares memory: leaves the root user, then starts the real init as a sibling.
extern "C" fn outer_main(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn_init` passes its own InitChild and is suspended.
    let child = unsafe { &mut *argument.cast::<InitChild<'_>>() };
    let (uid, gid) = (child.spec.user.host_uid, child.spec.user.host_gid);
    // Raw system calls: the C library's setuid would change all threads of the (shared) process image.
    // SAFETY: integers and a null pointer with length 0.
    let dropped = unsafe {
        sys(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()))
            .and_then(|_| sys(libc::syscall(libc::SYS_setresgid, gid, gid, gid)))
            .and_then(|_| sys(libc::syscall(libc::SYS_setresuid, uid, uid, uid)))
    };
    if let Err(errno) = dropped {
        child.failure = Some(Failure { step: Step::Identity, errno: errno as i32 });
        return 1;
    }
    let stack = child.inner_stack;
    match vfork(init_main, stack, child.spec.namespaces | libc::CLONE_PARENT, argument) {
        Ok(pid) => child.pid = pid.as_raw(),
        Err(errno) => child.failure = Some(Failure { step: Step::Namespaces, errno: errno as i32 }),
    }
    0
}

fn write_file(path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: NUL-terminated path; the buffer is valid for its length; the descriptor is ours.
    unsafe {
        let fd = sys(libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?;
        let written = sys(libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()));
        libc::syscall(libc::SYS_close, fd);
        written.map(drop)
    }
}

fn init_steps(child: &InitChild<'_>) -> Result<(), Failure> {
    let spec = child.spec;
    let at = |step: Step| move |errno: Errno| Failure { step, errno: errno as i32 };
    for &procs in spec.cgroups {
        // SAFETY: one byte from a literal.
        sys(unsafe { libc::syscall(libc::SYS_write, procs, b"0".as_ptr(), 1) }).map_err(at(Step::Cgroup))?;
    }
    if spec.namespaces & libc::CLONE_NEWUSER != 0 {
        // Dropping root made the process undumpable, and its /proc files root's.
        // SAFETY: integers.
        sys(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0) }).map_err(at(Step::IdMap))?;
        write_file(c"/proc/self/setgroups", b"deny").map_err(at(Step::IdMap))?;
        write_file(c"/proc/self/uid_map", child.uid_map.bytes()).map_err(at(Step::IdMap))?;
        write_file(c"/proc/self/gid_map", child.gid_map.bytes()).map_err(at(Step::IdMap))?;
        keep_capabilities(spec.capabilities).map_err(at(Step::Capabilities))?;
    }
    // SAFETY: descriptors by number; 0 has no owner object in the child that execs next.
    unsafe {
        if spec.control == 0 {
            sys(libc::syscall(libc::SYS_fcntl, 0, libc::F_SETFD, 0)).map_err(at(Step::Descriptor))?;
        } else {
            sys(libc::syscall(libc::SYS_dup3, spec.control, 0, 0)).map_err(at(Step::Descriptor))?;
        }
        // Only the control socket and, until the exec, the program itself go in.
        sys(libc::syscall(libc::SYS_close_range, 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)).map_err(at(Step::Descriptor))?;
        let envp = [std::ptr::null::<libc::c_char>()];
        sys(libc::syscall(
            libc::SYS_execveat,
            spec.program,
            c"".as_ptr(),
            child.argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        ))
        .map_err(at(Step::Spawn))?;
    }
    Ok(())
}

extern "C" fn init_main(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn_init` passes its own InitChild and is suspended.
    let child = unsafe { &mut *argument.cast::<InitChild<'_>>() };
    if let Err(failure) = init_steps(child) {
        child.failure = Some(failure);
    }
    // SAFETY: ends this process only; the C library's exit would run the parent's handlers.
    unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    unreachable!("exit_group returned")
}

/// `__user_cap_header_struct` of `linux/capability.h`.
#[repr(C)]
pub(super) struct CapabilityHeader {
    version: u32,
    pid: i32,
}

impl CapabilityHeader {
    /// 64 capabilities in two words, of the calling thread.
    pub(super) const VERSION_3: Self = Self { version: 0x2008_0522, pid: 0 };
}

/// `__user_cap_data_struct`, one word of it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CapabilityData {
    pub(super) effective: u32,
    pub(super) permitted: u32,
    pub(super) inheritable: u32,
}

/// Makes the capabilities inheritable and ambient, so that the exec of a program by a user other than 0 keeps them.
fn keep_capabilities(capabilities: &[u32]) -> Result<(), Errno> {
    let (mut header, mut data) = (CapabilityHeader::VERSION_3, [CapabilityData::default(); 2]);
    for &capability in capabilities {
        let (word, bit) = ((capability / 32) as usize, 1 << (capability % 32));
        data[word].effective |= bit;
        data[word].permitted |= bit;
        data[word].inheritable |= bit;
    }
    // SAFETY: header and two data words as version 3 of capset(2) wants them.
    sys(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    for &capability in capabilities {
        // SAFETY: integers.
        sys(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0) })?;
    }
    Ok(())
}

/// How to start a job.
#[derive(Debug)]
pub struct JobSpec<'a> {
    /// Paths to try in order.
    pub candidates: &'a [CString],
    /// Arguments.
    pub args: &'a [CString],
    /// Environment, `NAME=VALUE`.
    pub environment: &'a [CString],
    /// Working directory.
    pub cwd: &'a CStr,
    /// Descriptors that become 0, 1, 2 and so on; all above those.
    pub stdio: &'a [RawFd],
    /// Make descriptor `n` the controlling terminal.
    pub terminal: Option<usize>,
    /// File mode creation mask.
    pub umask: u32,
    /// Resource limits.
    pub limits: &'a [(libc::c_int, libc::rlimit)],
    /// Make it a child of the calling process's parent.
    pub sibling: bool,
}

struct JobChild<'a> {
    spec: &'a JobSpec<'a>,
    argv: Vec<*const libc::c_char>,
    script: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    failure: Option<Failure>,
}

/// Starts a job from the calling thread and returns once it has been executed.
pub fn spawn_job(spec: &JobSpec<'_>) -> Result<Pid, (Step, Errno)> {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let argv = pointers(spec.args);
    // What execvp does with a program that has no known format: /bin/sh PROGRAM ARGS.
    let mut script = vec![c"/bin/sh".as_ptr(), std::ptr::null()];
    script.extend(argv.iter().skip(1));
    let mut child = JobChild { spec, argv, script, envp: pointers(spec.environment), failure: None };
    let mut stack = Stack::new();
    let flags = if spec.sibling { libc::CLONE_PARENT } else { 0 };
    let pid = vfork(job_main, stack.top(), flags, (&raw mut child).cast()).map_err(|errno| (Step::Spawn, errno))?;
    match child.failure {
        None => Ok(pid),
        Some(failure) => {
            // A sibling is reaped by the parent.
            let _ = nix::sys::wait::waitpid(pid, None);
            Err((failure.step, Errno::from_raw(failure.errno)))
        }
    }
}

/// Signals that this process was started to ignore have their default effect again, but for SIGPIPE, which Rust ignores.
pub fn reset_ignored_signals() {
    for signal in (1..libc::SIGRTMIN()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: zero is a valid `sigaction` (default action); both structures outlive the calls. What cannot be changed is an error
        // that says so.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN {
                now.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const now, std::ptr::null_mut());
            }
        }
    }
}

fn job_steps(child: &mut JobChild<'_>) -> Failure {
    let spec = child.spec;
    let fail = |step: Step, errno: Errno| Failure { step, errno: errno as i32 };
    // SAFETY: system calls on integers and on buffers prepared by `spawn_job`, which is suspended. Handlers and the
    // signal mask are this process's own (no CLONE_SIGHAND).
    unsafe {
        // Rust ignores SIGPIPE in init, and ignoring is inherited; what the caller ignores (nohup) stays ignored.
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGPIPE, &raw const default, std::ptr::null_mut());
        let empty: u64 = 0;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut::<u64>(), 8);
        libc::syscall(libc::SYS_setsid);
        for (target, &source) in (0..).zip(spec.stdio) {
            if let Err(errno) = sys(libc::syscall(libc::SYS_dup3, source, target, 0)) {
                return fail(Step::Descriptor, errno);
            }
        }
        if let Some(terminal) = spec.terminal
            && let Err(errno) = sys(libc::c_long::from(libc::ioctl(terminal as i32, libc::TIOCSCTTY as _, 0)))
        {
            return fail(Step::Terminal, errno);
        }
        if let Err(errno) = sys(libc::syscall(libc::SYS_close_range, spec.stdio.len() as u32, u32::MAX, 0)) {
            return fail(Step::Descriptor, errno);
        }
        libc::syscall(libc::SYS_umask, spec.umask);
        if let Err(errno) = sys(libc::syscall(libc::SYS_chdir, spec.cwd.as_ptr())) {
            return fail(Step::WorkingDirectory, errno);
        }
        for (resource, limit) in spec.limits {
            if let Err(errno) = sys(libc::syscall(
                libc::SYS_prlimit64,
                0,
                *resource,
                std::ptr::from_ref(limit),
                std::ptr::null_mut::<libc::rlimit>(),
            )) {
                return fail(Step::Limits, errno);
            }
        }
        exec(child)
    }
}

/// As execvp: the first candidate that exists decides, EACCES is remembered, ENOEXEC goes to the shell.
///
/// # Safety
/// `child` holds NULL-terminated vectors of valid strings.
unsafe fn exec(child: &mut JobChild<'_>) -> Failure {
    let mut errno = Errno::ENOENT;
    for candidate in child.spec.candidates {
        // SAFETY: promised by the caller.
        unsafe { libc::syscall(libc::SYS_execve, candidate.as_ptr(), child.argv.as_ptr(), child.envp.as_ptr()) };
        match Errno::last() {
            Errno::ENOENT | Errno::ENOTDIR => {}
            // Only what can be seen counts: a directory of PATH that may not be searched holds nothing for this user.
            Errno::EACCES => {
                // SAFETY: a valid string.
                let seen = unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, candidate.as_ptr(), libc::F_OK) };
                if seen == 0 {
                    errno = Errno::EACCES;
                }
            }
            Errno::ENOEXEC => {
                child.script[1] = candidate.as_ptr();
                // SAFETY: as above.
                unsafe { libc::syscall(libc::SYS_execve, c"/bin/sh".as_ptr(), child.script.as_ptr(), child.envp.as_ptr()) };
                errno = Errno::ENOEXEC;
                break;
            }
            other => {
                errno = other;
                break;
            }
        }
    }
    Failure { step: Step::Exec, errno: errno as i32 }
}

extern "C" fn job_main(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn_job` passes its own JobChild and is suspended.
    let child = unsafe { &mut *argument.cast::<JobChild<'_>>() };
    child.failure = Some(job_steps(child));
    // SAFETY: ends this process only.
    unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    unreachable!("exit_group returned")
}

/// Runs `main` in a copy of the calling process and ends the copy with what it returns. To be called while there is one
/// thread: the copy would wait for ever for locks that others held.
pub fn fork(main: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    // SAFETY: the only thread goes on in the copy, so all of its state is as consistent as here.
    match Errno::result(unsafe { libc::fork() })? {
        // SAFETY: ends this process only, without the handlers and destructors that belong to the original.
        0 => unsafe { libc::_exit(main()) },
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the calling process when `parent` ends, or now if it has: the kernel sends no signal for a death before the call
/// (`PR_SET_PDEATHSIG`). In a new pid namespace, where every parent outside it is 0, nothing is known of an earlier death.
/// To be called again after a change of user, which takes the link away.
pub fn die_with(parent: Pid) {
    let linked = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
    let now = nix::unistd::getppid();
    if linked.is_err() || (now != parent && now.as_raw() != 0) {
        // SAFETY: ends this process only.
        unsafe { libc::_exit(1) };
    }
}

/// A user namespace with one mapped user, for id-mapped mounts. Only root can make one for another user.
pub fn user_namespace(user: OneUser) -> Result<std::os::fd::OwnedFd, Errno> {
    use nix::fcntl::{AT_FDCWD, OFlag, openat};
    use nix::sys::signal::{Signal, kill};
    use nix::sys::stat::Mode;

    extern "C" fn wait_to_be_killed(parent: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the caller passes its own pid, of which this process has a copy.
        die_with(unsafe { *parent.cast::<Pid>() });
        loop {
            // SAFETY: no arguments.
            unsafe { libc::syscall(libc::SYS_rt_sigsuspend, &0u64, 8) };
        }
    }
    let mut stack = Stack::new();
    let mut parent = nix::unistd::getpid();
    // Not vfork: the child has to wait while its maps are written. It gets a copy of the memory and touches none.
    // SAFETY: without CLONE_VM the child runs on its own copy of `stack`.
    let pid = Errno::result(unsafe {
        libc::clone(wait_to_be_killed, stack.top(), libc::CLONE_NEWUSER | libc::SIGCHLD, (&raw mut parent).cast())
    })?;
    let namespace = || {
        let write = |file: &str, inside, outside| {
            std::fs::write(format!("/proc/{pid}/{file}"), MapLine::new(inside, outside).bytes())
                .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO)))
        };
        write("uid_map", user.uid, user.host_uid)?;
        write("gid_map", user.gid, user.host_gid)?;
        openat(AT_FDCWD, format!("/proc/{pid}/ns/user").as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
    };
    let result = namespace();
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    let _ = nix::sys::wait::waitpid(Pid::from_raw(pid), None);
    result
}
