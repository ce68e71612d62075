//! Executes one step as a call, and formats its result.

use crate::program::{Call, Step};
use crate::sys::{bytes, calls, descriptors, job, names, options, process, ready, storm, traffic};

/// Makes the step's call. Steps that start or end actors are handled elsewhere.
pub fn perform(number: usize, step: &Step) -> String {
    let arg = |i: usize| step.args.get(i).copied().unwrap_or(0);
    let slot = |i: usize| calls::slot(arg(i));
    let mut text = match step.call {
        Call::Socket => descriptors::socket(arg(0), arg(1), arg(2)),
        Call::Pair => descriptors::two(true, arg(0), arg(1), arg(2)),
        Call::Pipe => descriptors::two(false, arg(0), arg(1), arg(2)),
        Call::File => descriptors::file(arg(0), arg(1), number),
        Call::Close => calls::numbers!(close(slot(0))).text(),
        Call::CloseRange => descriptors::close_range(slot(0), slot(1)),
        Call::Dup => calls::made(calls::numbers!(dup(slot(0))), arg(1)),
        Call::Dup2 | Call::Dup3 if slot(1) < 3 => "skipped".into(),
        Call::Dup2 => calls::numbers!(dup2(slot(0), slot(1))).text(),
        Call::Dup3 => {
            let flags = if arg(2) == 1 { libc::O_CLOEXEC } else { 0 };
            calls::numbers!(dup3(slot(0), slot(1), flags)).text()
        }
        Call::DupFd => {
            let command = if arg(2) == 1 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
            calls::made(calls::numbers!(fcntl(slot(0), command, 3)), arg(1))
        }
        Call::GetFl => calls::numbers!(fcntl(slot(0), libc::F_GETFL)).text(),
        Call::SetFl => descriptors::set_nonblocking(slot(0), arg(1) & libc::SOCK_NONBLOCK != 0),
        Call::GetFd => calls::numbers!(fcntl(slot(0), libc::F_GETFD)).text(),
        Call::SetFd => calls::numbers!(fcntl(slot(0), libc::F_SETFD, arg(1))).text(),
        Call::FioNbio => descriptors::fionbio(slot(0), arg(1)),
        Call::Seek => calls::numbers!(lseek(slot(0), 0, libc::SEEK_CUR)).text(),
        Call::Stat => descriptors::stat(slot(0)),
        Call::Bind => names::bind(slot(0), arg(1), arg(2)),
        Call::Listen => calls::numbers!(listen(slot(0), arg(1))).text(),
        Call::Connect => names::connect(slot(0), arg(1), arg(2)),
        Call::Accept => names::accept(slot(0), arg(1), arg(2), arg(3)),
        Call::Name => names::name(slot(0)),
        Call::Peer => names::peer(slot(0)),
        Call::Send => bytes::send(slot(0), arg(1), arg(2), arg(3), number),
        Call::Recv => bytes::receive(slot(0), arg(1), arg(2), arg(3)),
        Call::Fill => bytes::fill(slot(0), arg(1), number),
        Call::Drain => bytes::drain(slot(0)),
        Call::NameLength => bytes::receive_name(slot(0), arg(1)),
        Call::SendFile => bytes::send_file(slot(0), slot(1), arg(2)),
        Call::Splice => bytes::splice(slot(0), slot(1), arg(2)),
        Call::Shutdown => bytes::shutdown(slot(0), arg(1)),
        Call::Ioctl => descriptors::ask(slot(0), arg(1)),
        Call::SetOption => options::set(slot(0), arg(1), arg(2)),
        Call::GetOption => options::get(slot(0), arg(1)),
        Call::SetTimeout => options::set_timeout(slot(0), arg(1), arg(2)),
        Call::Poll => ready::poll(slot(0), slot(1), arg(2), arg(3), arg(4)),
        Call::Epoll => ready::create(arg(0), arg(1)),
        Call::Ctl => ready::control(slot(0), arg(1), slot(2), arg(3), arg(2)),
        Call::Wait => ready::wait(slot(0), arg(1), arg(2), arg(3)),
        Call::Handler => calls::handler(arg(0), arg(1)),
        Call::Give => bytes::give(slot(0), slot(1)),
        Call::Take => bytes::take(slot(0), arg(1)),
        Call::NoFile => calls::limit_descriptors(arg(0)),
        Call::Pause => {
            process::pause(arg(0).clamp(0, 200) as u64);
            "ok".into()
        }
        Call::Spawn => process::spawn(&["fs-differ".into(), "probe".into(), "--".into(), slot(0).to_string()]),
        Call::Job => job::begin(slot(0), arg(1) == 0),
        Call::JobEnd => job::end(),
        Call::React => storm::set_reaction(arg(0), arg(1), arg(2)),
        Call::Timer => storm::start(arg(0), arg(1), arg(2)),
        Call::StopTimer => storm::stop(),
        Call::Tally => storm::tally(slot(0)),
        Call::Brood => storm::brood(arg(0), arg(1), arg(2) == 1),
        Call::Doze => traffic::doze(slot(0), arg(1), arg(2)),
        Call::ReactChild => storm::set_child_reaction(arg(0), arg(1), arg(2)),
        Call::Hand => traffic::hand(arg(0), arg(1)),
        Call::Serve => traffic::serve(slot(0), arg(1), arg(2), arg(3) == 1),
        Call::Dial => traffic::dial([arg(0), arg(1)], arg(2), arg(3), arg(4), arg(5) == 1, number),
        Call::Churn => traffic::churn(slot(0), arg(1), arg(2)),
        Call::Calls => process::set_calls(arg(0)),
        Call::ServeLoop => traffic::serve_loop(slot(0), arg(1), arg(2)),
        Call::DialLoop => traffic::dial_loop([arg(0), arg(1)], arg(2), [arg(3), arg(4), arg(5)], arg(6), number),
        Call::Fork | Call::Thread | Call::Exec | Call::ExecPlain | Call::Exit | Call::Signal => "not here".into(),
    };
    for (signal, count) in calls::signals() {
        text.push_str(&format!(" +signal {signal} x{count}"));
    }
    text
}

/// Returns a spawned process's result for a descriptor: the error of sending a byte over it.
pub fn probe(descriptor: i32) -> i32 {
    let sent = bytes::send(descriptor, 2, 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL, 0);
    if sent == "1" {
        return 0;
    }
    std::io::Error::last_os_error().raw_os_error().unwrap_or(255)
}
