//! A program that runs on a connection, as one that a server starts for a client.

use super::process::{close, ended, pointers, posix_spawn, raise, read_whole, strings, write_whole};
use std::sync::Mutex;

/// The program that has been started last: its process, and the socket that it waits for.
static JOB: Mutex<Option<(i32, i32)>> = Mutex::new(None);

/// Starts this program with `connection` as its standard output. It waits for [`end`].
pub fn begin(connection: i32, by_vfork: bool) -> String {
    let words = ["fs-differ".into(), "job".into()];
    let (here, there) = own_pair();
    let begun =
        if by_vfork { vfork(&words, [there, connection]) } else { posix_spawn(&words, Some([there, connection])) };
    close(there);
    let pid = match begun {
        Ok(pid) => pid,
        Err(error) => {
            close(here);
            return super::calls::errno_name(error);
        }
    };
    // Under the library, vfork(2) does not wait for the exec.
    if !read_whole(here, &mut [0]) {
        close(here);
        return ended(pid);
    }
    if let Ok(mut job) = JOB.lock() {
        *job = Some((pid, here));
    }
    "ok".into()
}

/// Lets the program send its byte, and waits for its end.
pub fn end() -> String {
    let Some((pid, here)) = JOB.lock().ok().and_then(|mut job| job.take()) else { return "none".into() };
    write_whole(here, &[1]);
    close(here);
    ended(pid)
}

/// Says that this program runs, and waits until the one that has started it says so, or has ended. Returns true if
/// it has said so.
pub fn await_go() -> bool {
    write_whole(0, &[1]) && read_whole(0, &mut [0])
}

/// Makes a socket pair with descriptors above the program's numbers. A started program gets the second one only.
fn own_pair() -> (i32, i32) {
    let mut both = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, both.as_mut_ptr()) } != 0 {
        return (-1, -1);
    }
    let (here, there) = (raise(both[0]), raise(both[1]));
    // SAFETY: a number.
    unsafe { libc::fcntl(here, libc::F_SETFD, libc::FD_CLOEXEC) };
    (here, there)
}

fn vfork(words: &[String], streams: [i32; 2]) -> Result<i32, i32> {
    let words = strings(words);
    let pointers = pointers(&words);
    // SAFETY: zero-terminated path and arguments, and a null-terminated list.
    let pid = unsafe { vfork_and_exec(streams, c"/proc/self/exe".as_ptr(), pointers.as_ptr()) };
    // SAFETY: the thread's own errno.
    if pid >= 0 { Ok(pid) } else { Err(unsafe { *libc::__errno_location() }) }
}

/// Not a part of its caller: the child uses the parent's stack, and the parent needs nothing of this
/// frame but its return address.
///
/// # Safety
/// A zero-terminated path, and a null-terminated list of zero-terminated arguments.
#[inline(never)]
unsafe fn vfork_and_exec(streams: [i32; 2], path: *const libc::c_char, words: *const *const libc::c_char) -> i32 {
    unsafe extern "C" {
        fn vfork() -> i32;
    }
    // SAFETY: the child only calls dup2(2), exec and _exit(2); the rest by contract.
    unsafe {
        let pid = vfork();
        if pid == 0 {
            libc::dup2(streams[0], 0);
            libc::dup2(streams[1], 1);
            libc::execv(path, words);
            libc::_exit(libc::ENOEXEC);
        }
        pid
    }
}
