//! Processes: fork, exec, posix_spawn.

use core::ffi::{c_char, c_void};

use libc::{
    CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK, CLONE_VM, FILE, c_int, pid_t, posix_spawn_file_actions_t,
    posix_spawnattr_t,
};

use crate::descriptor;
use crate::sys::real::{self, Entry};
use crate::sys::start::{around_fork, around_vfork, in_child as begin_child};

define! {
    /// vfork(2), made a fork: a child in its parent's memory would close the parent's sockets in the library's table.
    fn vfork() -> pid_t = {
        descriptor::before_spawn();
        around_vfork(|| real::_Fork())
    };
    /// The C library's other name.
    fn __vfork() -> pid_t = vfork();
    /// _Fork(3): fork without the handlers of pthread_atfork(3).
    fn _Fork() -> pid_t = around_fork(|| real::_Fork());
    /// clone(2). A child with memory of its own is one of a fork; a child in its parent's memory until it execs gets its own.
    fn clone(entry: Entry, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t) -> c_int = {
        // Without a function the C library returns EINVAL.
        match forking_flags(flags).filter(|_| entry.is_some()) {
            None => real::clone(entry, stack, flags, argument, parent, tls, child),
            // The child does not return from here. It notices by the wiped page that it is new. Its
            // locks are free, because no thread of the parent holds one.
            Some(flags) => {
                let mut start = Start { entry, argument };
                around_fork(|| real::clone(Some(begin_clone), stack, flags, (&raw mut start).cast(), parent, tls, child))
            }
        }
    };

    /// execve(2).
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = {
        descriptor::before_exec();
        real::execve(path, argv, envp)
    };
    /// execv(3).
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int = execve(path, argv, environ);
    /// execvp(3).
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int = execvpe(file, argv, environ);
    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = {
        descriptor::before_exec();
        real::execvpe(file, argv, envp)
    };
    /// fexecve(3).
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int = {
        descriptor::before_exec();
        real::fexecve(fd, argv, envp)
    };
    /// execveat(2).
    fn execveat(directory: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int = {
        descriptor::before_exec();
        real::execveat(directory, path, argv, envp, flags)
    };
    /// posix_spawn(3), whose child is made inside of the C library.
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int = {
        descriptor::before_spawn();
        real::posix_spawn(pid, path, actions, attributes, argv, envp)
    };
    /// posix_spawnp(3).
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int = {
        descriptor::before_spawn();
        real::posix_spawnp(pid, file, actions, attributes, argv, envp)
    };
    /// posix_spawn_file_actions_adddup2(3): the child gets the descriptor.
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int = {
        descriptor::leave_to_other(fd);
        real::posix_spawn_file_actions_adddup2(actions, fd, new)
    };
    /// popen(3): a child made inside of the C library.
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE = {
        descriptor::before_spawn();
        real::popen(command, mode)
    };
    /// system(3): a child made inside of the C library.
    fn system(command: *const c_char) -> c_int = {
        if !command.is_null() {
            descriptor::before_spawn();
        }
        real::system(command)
    };
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The function and argument of a child of clone(2).
struct Start {
    entry: Entry,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn begin_clone(start: *mut c_void) -> c_int {
    begin_child();
    // SAFETY: the child has a copy of its parent's memory, in which `start` lives.
    let Start { entry, argument } = unsafe { start.cast::<Start>().read() };
    // SAFETY: by the contract of clone(2).
    entry.map_or(0, |entry| unsafe { entry(argument) })
}

/// Returns the flags for a child with its own memory. Returns `None` for a thread, or for a child
/// that is like one.
fn forking_flags(flags: c_int) -> Option<c_int> {
    match flags & (CLONE_VM | CLONE_VFORK | CLONE_THREAD | CLONE_FILES) {
        shared if shared & CLONE_VM == 0 => Some(flags),
        shared if shared == CLONE_VM | CLONE_VFORK => Some(flags & !(CLONE_VM | CLONE_SIGHAND | CLONE_VFORK)),
        _ => None,
    }
}
