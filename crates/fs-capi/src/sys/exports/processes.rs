//! fork and exec.

use core::ptr::addr_of_mut;

use fs_socket::process::fork::Forking;
use libc::{
    CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK, CLONE_VM, c_char, c_int, c_void, pid_t, termios, winsize,
};

use super::descriptors::{close, dup2};
use crate::sys::atfork;
use crate::sys::errno::{errno, set_errno};
use crate::sys::real::{self, Entry};
use crate::sys::scratch::{Environment, Pointers};

define! {
    /// fork(2).
    fn fork() -> pid_t = forked_with_handlers(|| real::fork());
    /// The C library's other name.
    fn __fork() -> pid_t = fork();
    /// vfork(2), made a fork: a child that shares the parent's memory would close the parent's sockets in our tables.
    fn vfork() -> pid_t = fork();
    /// The C library's other name.
    fn __vfork() -> pid_t = fork();
    /// _Fork(3): fork without the handlers of pthread_atfork.
    fn _Fork() -> pid_t = forked(|| real::_Fork());
    /// clone(2) with a stack of the child's own. On x86-64 the last argument is on the stack, where there is something in any case.
    fn clone(entry: Option<Entry>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t) -> c_int =
        cloned(entry, stack, flags, argument, [parent, child], tls);
    /// forkpty(3), whose fork is internal to the C library.
    fn forkpty(controller: *mut c_int, name: *mut c_char, settings: *const termios, size: *const winsize) -> pid_t =
        forked_with_handlers(|| real::forkpty(controller, name, settings, size));
    /// What pthread_atfork(3) calls, which is in each program itself: our handlers are the first ones.
    fn __register_atfork(prepare: Option<unsafe extern "C" fn()>, parent: Option<unsafe extern "C" fn()>, child: Option<unsafe extern "C" fn()>, owner: *mut c_void) -> c_int = {
        atfork::register();
        real::__register_atfork(prepare, parent, child, owner)
    };
    /// daemon(3), whose fork is internal to the C library: made of calls of this library.
    fn daemon(stay: c_int, keep: c_int) -> c_int = daemonize(stay, keep);

    /// execve(2).
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int =
        exec(envp, |envp| real::execve(path, argv, envp));
    /// execv(3).
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int = execve(path, argv, environment());
    /// execvp(3).
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int = execvpe(file, argv, environment());
    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int =
        exec(envp, |envp| real::execvpe(file, argv, envp));
    /// fexecve(3).
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int =
        exec(envp, |envp| real::fexecve(fd, argv, envp));
    /// execveat(2).
    fn execveat(directory: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int =
        exec(envp, |envp| real::execveat(directory, path, argv, envp, flags));
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The process's environment.
pub(in crate::sys) fn environment() -> *const *const c_char {
    // SAFETY: the C library's variable; as with its own exec functions, a thread that changes the environment
    // meanwhile is the application's fault.
    unsafe { environ }
}

/// A fork with the tables held still around it.
///
/// # Safety
/// `fork` forks, in the way of fork(2).
pub(super) unsafe fn forked(fork: impl FnOnce() -> pid_t) -> pid_t {
    let Some(forking) = begin_fork() else { return -1 };
    let pid = fork();
    if pid == 0 {
        fs_socket::after_fork_child(forking);
    } else {
        end_fork(forking, pid);
    }
    pid
}

/// The same where the handlers of pthread_atfork(3) are run, ours among them: the tables are held still between the last
/// one before the fork and the first one after it only.
///
/// # Safety
/// As [`forked`].
unsafe fn forked_with_handlers(fork: impl FnOnce() -> pid_t) -> pid_t {
    if !atfork::is_registered() {
        // SAFETY: by contract.
        return unsafe { forked(fork) };
    }
    let Some(forking) = begin_fork() else { return -1 };
    let (pid, forking) = atfork::around(forking, fork);
    match forking {
        // The child's handler has used it up.
        None => {}
        Some(forking) if pid == 0 => fs_socket::after_fork_child(forking),
        Some(forking) => end_fork(forking, pid),
    }
    pid
}

/// `None`: the fork is to fail, errno says why.
fn begin_fork() -> Option<Forking> {
    fs_socket::before_fork().map_err(|error| set_errno(error.raw_os_error())).ok()
}

/// In the parent, with what the fork answered. Leaves errno as it is.
fn end_fork(forking: Forking, pid: pid_t) {
    let reason = errno();
    fs_socket::after_fork_parent(forking, pid > 0);
    set_errno(reason);
}

/// The flags with which a child is made that has memory of its own; `None`: it is a thread, or as good as one: memory and
/// descriptors are the caller's.
///
/// One that shares its parent's memory until it execs, with descriptors of its own (posix_spawn in programs that do it
/// themselves), is given its own memory, as vfork's: our tables say what its parent's descriptors are. Its parent waits
/// for it if no other thread could be in want of those tables meanwhile.
pub(super) fn forking_flags(flags: c_int) -> Option<c_int> {
    let flags = match flags & (CLONE_VM | CLONE_VFORK | CLONE_THREAD | CLONE_FILES) {
        shared if shared & CLONE_VM == 0 => flags,
        shared if shared == CLONE_VM | CLONE_VFORK => flags & !(CLONE_VM | CLONE_SIGHAND),
        _ => return None,
    };
    Some(if fs_socket::is_single_threaded() { flags } else { flags & !CLONE_VFORK })
}

/// What a child of clone(2) needs first.
struct Start {
    forking: Option<Forking>,
    entry: Entry,
    argument: *mut c_void,
}

/// # Safety
/// As clone(2).
unsafe fn cloned(
    entry: Option<Entry>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    [parent, child]: [*mut pid_t; 2],
    tls: *mut c_void,
) -> c_int {
    let Some(entry) = entry.filter(|_| !stack.is_null()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let Some(flags) = forking_flags(flags) else {
        // SAFETY: by contract.
        return unsafe { real::clone(entry, stack, flags, argument, parent, tls, child) };
    };
    let Some(forking) = begin_fork() else { return -1 };
    let mut start = Start { forking: Some(forking), entry, argument };
    // The child has a copy of this frame, as of all memory.
    let begin = addr_of_mut!(start).cast();
    // SAFETY: by contract; `begin_clone` gets what it asks for.
    let pid = unsafe { real::clone(begin_clone, stack, flags, begin, parent, tls, child) };
    if let Some(forking) = start.forking.take() {
        end_fork(forking, pid);
    }
    pid
}

/// The child's first function.
///
/// # Safety
/// `start` is a [`Start`] in the child's own copy of the parent's memory.
unsafe extern "C-unwind" fn begin_clone(start: *mut c_void) -> c_int {
    // SAFETY: by contract.
    let start = unsafe { &mut *start.cast::<Start>() };
    if let Some(forking) = start.forking.take() {
        fs_socket::after_fork_child(forking);
    }
    // SAFETY: what clone(2) was called with.
    unsafe { (start.entry)(start.argument) }
}

/// An exec with our variables in the new environment when sockets of ours live on in the new image.
///
/// # Safety
/// `envp` as execve(2) asks.
unsafe fn exec(envp: *const *const c_char, exec: impl FnOnce(*const *const c_char) -> c_int) -> c_int {
    let surviving = fs_socket::before_exec();
    let exec = |envp| {
        fs_socket::addresses::before_exec();
        let answer = exec(envp);
        let reason = errno();
        fs_socket::addresses::after_exec_failed();
        set_errno(reason);
        answer
    };
    let answer = match surviving.control {
        None => exec(envp),
        // SAFETY: by contract.
        Some(control) => match unsafe { Environment::with_control(envp, control, surviving.sets()) } {
            Some(environment) => {
                let answer = exec(environment.as_ptr());
                let reason = errno();
                drop(environment);
                set_errno(reason);
                answer
            }
            None => {
                set_errno(libc::ENOMEM);
                -1
            }
        },
    };
    let reason = errno();
    fs_socket::after_exec_failed(surviving);
    set_errno(reason);
    answer
}

/// daemon(3): the parent ends, the child leads a session, stands in / and has its standard streams on /dev/null.
///
/// # Safety
/// As daemon(3).
unsafe fn daemonize(stay: c_int, keep: c_int) -> c_int {
    // SAFETY: plain calls with constant strings.
    unsafe {
        match fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() == -1 {
            return -1;
        }
        if stay == 0 && libc::chdir(c"/".as_ptr()) == -1 {
            return -1;
        }
        if keep == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null == -1 {
                return -1;
            }
            for stream in 0..=2 {
                if dup2(null, stream) == -1 {
                    return -1;
                }
            }
            if null > 2 {
                close(null);
            }
        }
    }
    0
}

/// The arguments of execl and its kin, collected by [`crate::sys::variadic`]: the program, then `arguments`.
///
/// # Safety
/// As the C functions: strings ended by null, then for execle the environment (`envp`).
pub(in crate::sys) unsafe fn execl(
    path: *const c_char,
    arguments: &Pointers,
    search: bool,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: by contract.
    unsafe { if search { execvpe(path, arguments.as_ptr(), envp) } else { execve(path, arguments.as_ptr(), envp) } }
}
