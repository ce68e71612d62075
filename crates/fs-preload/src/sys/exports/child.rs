//! Processes: fork, exec, posix_spawn.

use core::ffi::{CStr, c_char, c_void};
use core::mem::MaybeUninit;

use libc::{
    AT_EACCESS, AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_VFORK,
    CLONE_VM, FILE, PATH_MAX, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t,
};

use crate::sys::errno::{errno, keeping_errno};
use crate::sys::real::{self, Entry};
use crate::sys::start::{around_fork, in_child as begin_child};
use crate::{confined, descriptor};

define! {
    /// vfork(2), made a fork: a child in its parent's memory would close the parent's sockets in the library's table.
    /// It counts as one too: before its exec, the child may duplicate any descriptor to a standard stream. Descriptors
    /// without close-on-exec are left to the kernel now: the parent of a fork does not wait for the exec.
    fn vfork() -> pid_t = {
        descriptor::before_spawn();
        _Fork()
    };
    /// The C library's other name.
    fn __vfork() -> pid_t = vfork();
    /// _Fork(3): fork without the handlers of pthread_atfork(3).
    fn _Fork() -> pid_t = around_fork(|| real::_Fork());
    /// clone(2). A child with memory of its own is one of a fork; a child in its parent's memory
    /// until it execs gets its own.
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
        before_exec_at(AT_FDCWD, path, 0);
        real::execve(path, argv, envp)
    };
    /// execv(3).
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int = execve(path, argv, environ);
    /// execvp(3).
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int = execvpe(file, argv, environ);
    /// execvpe(3).
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int = {
        before_exec_of(file);
        real::execvpe(file, argv, envp)
    };
    /// fexecve(3).
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int = {
        before_exec_at(fd, c"".as_ptr(), AT_EMPTY_PATH);
        real::fexecve(fd, argv, envp)
    };
    /// execveat(2).
    fn execveat(directory: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int = {
        before_exec_at(directory, path, flags);
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
    /// pidfd_spawn(3) of glibc 2.39. It returns an error number, without the function that of a kernel that is too old.
    fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int = {
        if real::address::pidfd_spawn().is_null() {
            return libc::ENOSYS;
        }
        descriptor::before_spawn();
        real::pidfd_spawn(pidfd, path, actions, attributes, argv, envp)
    };
    /// pidfd_spawnp(3).
    fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int = {
        if real::address::pidfd_spawnp().is_null() {
            return libc::ENOSYS;
        }
        descriptor::before_spawn();
        real::pidfd_spawnp(pidfd, file, actions, attributes, argv, envp)
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

/// Called before an exec. One that fails because of its file leaves the process and its connections as they are.
///
/// # Safety
/// Like execveat(2).
pub(super) unsafe fn before_exec_at(directory: c_int, path: *const c_char, flags: c_int) {
    /// `AT_EXECVE_CHECK`: nothing is executed.
    const ONLY_CHECKS: c_int = 0x10000;
    // SAFETY: by contract.
    if flags & ONLY_CHECKS == 0 && unsafe { may_be_executed(directory, path, flags) } {
        descriptor::before_exec();
    }
}

/// Like [`before_exec_at`]. A name without a slash is looked for in PATH.
///
/// # Safety
/// Like execvp(3).
pub(super) unsafe fn before_exec_of(file: *const c_char) {
    // SAFETY: by contract, a string.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    // SAFETY: execvp(3) reads the environment in the same way.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if name.contains(&b'/') {
        // SAFETY: a string.
        return unsafe { before_exec_at(AT_FDCWD, file, 0) };
    }
    if path.is_null() {
        // The C library has a path of its own, in which the file may be.
        return descriptor::before_exec();
    }
    // SAFETY: a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_found = path.split(|&byte| byte == b':').any(|folder| {
        let mut whole = [0_u8; PATH_MAX as usize];
        let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
        let mut at = 0;
        for part in [folder, slash, name] {
            // One that is too long is not executed; the last byte stays zero.
            let Some(place) = whole[..PATH_MAX as usize - 1].get_mut(at..at + part.len()) else { return false };
            place.copy_from_slice(part);
            at += part.len();
        }
        // SAFETY: a string.
        unsafe { may_be_executed(AT_FDCWD, whole.as_ptr().cast(), 0) }
    });
    if is_found {
        descriptor::before_exec();
    }
}

/// Returns false if exec(2) of a file is certain to fail.
///
/// # Safety
/// `path` is a string, or an address that the kernel refuses.
unsafe fn may_be_executed(directory: c_int, path: *const c_char, flags: c_int) -> bool {
    if confined::is_confined() {
        return true;
    }
    let flags = flags & (AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
    let mut about = MaybeUninit::<libc::stat>::uninit();
    keeping_errno(|| {
        // SAFETY: by contract.
        if unsafe { libc::faccessat(directory, path, libc::X_OK, flags | AT_EACCESS) } != 0 {
            return !matches!(
                errno(),
                libc::ENOENT
                    | libc::EACCES
                    | libc::ENOTDIR
                    | libc::ELOOP
                    | libc::ENAMETOOLONG
                    | libc::EFAULT
                    | libc::EBADF
            );
        }
        // SAFETY: by contract, and there is room for the result.
        let has_kind = unsafe { libc::fstatat(directory, path, about.as_mut_ptr(), flags) } == 0;
        // SAFETY: the call has written it.
        !has_kind || unsafe { about.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFREG
    })
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
