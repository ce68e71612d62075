//! Processes, and the pipes between the runner and its actors.

use super::calls::{Answer, FIRST_OWN, answer, numbers};
use std::time::Duration;

/// Sleeps.
pub fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// fork(2): returns 0 in the child.
pub fn fork() -> Answer {
    // SAFETY: the child continues with this thread alone, and takes no lock that another thread may
    // have held: an actor's only other threads are the program's, which block in read(2) or in a
    // call of the program.
    answer(unsafe { libc::fork() })
}

/// exit(3): the library leaves its counters.
pub fn leave() -> ! {
    // SAFETY: the process's own end.
    unsafe { libc::exit(0) }
}

/// _exit(2).
pub fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Makes orphans of this process's descendants its children.
pub fn adopt_orphans() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

extern "C" fn end_group(_: i32) {
    // SAFETY: numbers only; kill(2) may be called in a signal handler.
    unsafe { libc::kill(0, libc::SIGKILL) };
}

/// Ends the process and its group together with its parent. Must be called by the leader of the
/// group.
pub fn end_with_parent() {
    // SAFETY: a handler that only calls kill(2), and numbers.
    unsafe {
        libc::signal(libc::SIGTERM, end_group as extern "C" fn(i32) as usize);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0);
    }
}

/// Makes this process ignore SIGHUP, which is for the actors of its group ([`end_group_but_own`]).
pub fn outlive_group() {
    // SAFETY: numbers only.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

/// Reverts [`outlive_group`] in an actor.
pub fn end_with_group() {
    // SAFETY: numbers only.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
}

/// Ends all processes of this group except those that ignore SIGHUP: also stopped and unknown ones.
pub fn end_group_but_own() {
    kill(0, libc::SIGHUP);
    kill(0, libc::SIGCONT);
}

/// kill(2).
pub fn kill(pid: i32, signal: i32) -> Answer {
    numbers!(kill(pid, signal))
}

/// Returns the CPU time of this thread.
pub fn own_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reaps all children that have ended. Returns true if others are left.
pub fn reap() -> bool {
    loop {
        // SAFETY: no status is requested.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => return true,
            -1 => return false,
            _ => {}
        }
    }
}

/// Waits until the process has ended (or is a zombie), at most this long.
pub fn await_end(pid: i32, milliseconds: i32) -> bool {
    // SAFETY: numbers only.
    let handle = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if handle < 0 {
        return true;
    }
    let ended = readable(&[handle], milliseconds)[0];
    close(handle);
    ended
}

/// close(2).
pub fn close(descriptor: i32) {
    // SAFETY: a number; the caller owns it.
    unsafe { libc::close(descriptor) };
}

/// Makes a pipe with descriptors above the program's numbers.
pub fn own_pipe() -> (i32, i32) {
    let mut both = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe(both.as_mut_ptr()) } != 0 {
        return (-1, -1);
    }
    (raise(both[0]), raise(both[1]))
}

/// Moves a descriptor above the program's numbers.
pub fn raise(descriptor: i32) -> i32 {
    // SAFETY: a number.
    let high = unsafe { libc::fcntl(descriptor, libc::F_DUPFD, FIRST_OWN) };
    close(descriptor);
    high
}

/// Prepares descriptors 0 to 2 of a runner: nothing to read, and errors as before. Returns the
/// descriptors to and from the judge. Closes all others that it was started with, such as a shell's
/// own: the numbers below [`FIRST_OWN`] are the program's.
pub fn own_streams() -> (i32, i32) {
    // SAFETY: numbers, and a zero-terminated string.
    unsafe {
        let (input, output) = (libc::fcntl(0, libc::F_DUPFD, FIRST_OWN), libc::fcntl(1, libc::F_DUPFD, FIRST_OWN));
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(null, 0);
        libc::dup2(null, 1);
        libc::close_range(3, FIRST_OWN as u32 - 1, 0);
        (input, output)
    }
}

/// Returns which of these are readable, waiting at most this long for the first.
pub fn readable(descriptors: &[i32], milliseconds: i32) -> Vec<bool> {
    let mut entries: Vec<libc::pollfd> =
        descriptors.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the entries and their number.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as u64, milliseconds) };
    entries.iter().map(|entry| entry.revents != 0).collect()
}

/// Reads exactly this many bytes. Returns false at the end.
pub fn read_whole(from: i32, bytes: &mut [u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: the rest of the buffer.
        let got = answer(unsafe { libc::read(from, rest.as_mut_ptr().cast(), rest.len()) } as i64);
        match got.value {
            1.. => done += got.value as usize,
            -1 if got.errno == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

/// Writes all bytes. Returns false if there is no reader.
pub fn write_whole(to: i32, bytes: &[u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        // SAFETY: the rest of the buffer.
        let got = answer(unsafe { libc::write(to, rest.as_ptr().cast(), rest.len()) } as i64);
        match got.value {
            0.. => done += got.value as usize,
            _ if got.errno == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

/// Writes a frame: its length, then its bytes, by one write(2).
pub fn write_frame(to: i32, bytes: &[u8]) -> bool {
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(bytes);
    write_whole(to, &frame)
}

/// Reads a frame; `None` at the end.
pub fn read_frame(from: i32) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    if !read_whole(from, &mut length) {
        return None;
    }
    let length = u32::from_le_bytes(length) as usize;
    let mut bytes = vec![0; length.min(16 << 20)];
    read_whole(from, &mut bytes).then_some(bytes)
}

/// Stores the program's text for an actor that calls exec: in a file without a name, with a
/// descriptor above the program's.
pub fn keep_text(text: &str) -> i32 {
    // SAFETY: a zero-terminated string.
    let file = unsafe { libc::memfd_create(c"program".as_ptr(), 0) };
    write_whole(file, text.as_bytes());
    raise(file)
}

/// Reads the text that `keep_text` has stored.
pub fn kept_text(file: i32) -> String {
    let mut bytes = vec![0u8; 1 << 20];
    // SAFETY: the buffer and its length.
    let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.truncate(got.max(0) as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn strings(words: &[String]) -> Vec<std::ffi::CString> {
    words.iter().filter_map(|word| std::ffi::CString::new(word.as_str()).ok()).collect()
}

pub(super) fn pointers(words: &[std::ffi::CString]) -> Vec<*const libc::c_char> {
    words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Removes the preloaded library from programs that this process executes later.
pub fn forget_preload() {
    // SAFETY: the actor's own threads do not access the environment.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
}

/// Sets how many data calls precede a promotion in programs that this process executes later.
pub fn set_calls(number: i32) -> String {
    let value = std::ffi::CString::new(number.to_string()).unwrap_or_default();
    // SAFETY: zero-terminated strings. The actor's own threads do not access the environment.
    unsafe { libc::setenv(c"FASTSOCK_CALLS".as_ptr(), value.as_ptr(), 1) };
    "ok".into()
}

/// execv(2) of this program with these arguments.
pub fn exec(words: &[String]) -> String {
    let words = strings(words);
    let pointers = pointers(&words);
    // SAFETY: zero-terminated path and arguments, and a null-terminated list.
    answer(unsafe { libc::execv(c"/proc/self/exe".as_ptr(), pointers.as_ptr()) }).text()
}

/// posix_spawn(3) of this program. Returns how it ended.
pub fn spawn(words: &[String]) -> String {
    match posix_spawn(words, None) {
        Ok(pid) => ended(pid),
        Err(error) => super::calls::errno_name(error),
    }
}

/// posix_spawn(3) of this program, with these standard input and output.
pub(super) fn posix_spawn(words: &[String], streams: Option<[i32; 2]>) -> Result<i32, i32> {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let words = strings(words);
    let pointers = pointers(&words);
    let mut pid = 0;
    let mut actions = std::mem::MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    let actions = actions.as_mut_ptr();
    // SAFETY: room for actions, which are made before they are used; zero-terminated path and arguments,
    // null-terminated lists, and no attributes.
    let error = unsafe {
        libc::posix_spawn_file_actions_init(actions);
        let mut error = 0;
        for (new, old) in streams.into_iter().flatten().enumerate() {
            error |= libc::posix_spawn_file_actions_adddup2(actions, old, new as i32);
        }
        if error == 0 {
            let path = c"/proc/self/exe".as_ptr();
            error = libc::posix_spawn(&raw mut pid, path, actions, std::ptr::null(), pointers.as_ptr().cast(), environ);
        }
        libc::posix_spawn_file_actions_destroy(actions);
        error
    };
    if error == 0 { Ok(pid) } else { Err(error) }
}

/// Waits for a child's end. Returns how it ended.
pub(super) fn ended(pid: i32) -> String {
    let mut status = 0;
    // SAFETY: room for a status.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1 {
        // SAFETY: the thread's own errno.
        if unsafe { *libc::__errno_location() } != libc::EINTR {
            return "lost".into();
        }
    }
    match libc::WEXITSTATUS(status) {
        _ if libc::WIFSIGNALED(status) => format!("signal {}", libc::WTERMSIG(status)),
        0 => "child 0".into(),
        errno => format!("child {}", super::calls::errno_name(errno)),
    }
}
