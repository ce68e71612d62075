//! posix_spawn.

use libc::{c_char, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::sys::real;
use crate::sys::scratch::Environment;

define! {
    /// posix_spawn(3).
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int =
        spawned(actions, envp, |envp| real::posix_spawn(pid, path, actions, attributes, argv, envp));
    /// posix_spawnp(3).
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int =
        spawned(actions, envp, |envp| real::posix_spawnp(pid, file, actions, attributes, argv, envp));
    /// posix_spawn_file_actions_adddup2(3): looked at for its source, which may be a socket of ours.
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int = {
        fs_socket::process::exec::record_duplicated(fd);
        real::posix_spawn_file_actions_adddup2(actions, fd, new)
    };
}

/// A spawn whose child is attached beforehand when it inherits sockets of ours. The answer is an error number.
///
/// # Safety
/// `envp` as posix_spawn(3) asks.
unsafe fn spawned(
    actions: *const posix_spawn_file_actions_t,
    envp: *const *mut c_char,
    spawn: impl FnOnce(*const *mut c_char) -> c_int,
) -> c_int {
    let surviving = match fs_socket::before_spawn(!actions.is_null()) {
        Ok(surviving) => surviving,
        Err(error) => return error.raw_os_error(),
    };
    let answer = match surviving.control {
        None => spawn(envp),
        // SAFETY: by contract.
        Some(control) => match unsafe { Environment::with_control(envp.cast(), control, surviving.sets()) } {
            Some(environment) => spawn(environment.as_ptr().cast()),
            None => libc::ENOMEM,
        },
    };
    fs_socket::process::exec::after_spawn(surviving, answer == 0);
    answer
}
