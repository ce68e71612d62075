//! Filters of system calls that refuse sched_setaffinity(2), as systemd's `SystemCallFilter=` may.
#![allow(unsafe_code)]

use fs_rt::{LinkChoice, Runtime};
use std::thread;

/// Applies a filter to the calling thread and to threads that it starts.
fn refuse_affinity(action: u32) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The call's number, which `seccomp_data` begins with.
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_sched_setaffinity as u32),
        step(RETURN, 0, 0, action),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` and its filter live during the calls, which read them.
    let set = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn kernel_sockets_need_no_affinity() {
    for (pin, action) in [(true, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32), (false, libc::SECCOMP_RET_KILL_PROCESS)]
    {
        let run = thread::spawn(move || {
            refuse_affinity(action);
            let runtime = Runtime::builder().link(LinkChoice::Kernel).pin(pin).build().unwrap();
            runtime.run(|_| async { tokio::task::spawn_blocking(|| ()).await.unwrap() }).map(drop)
        });
        let ended = run.join().unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    }
}
