//! What the victim does when it is killed, and what the others have to see.

use crate::process_unsafe::fork;
use crate::sockets::{
    accept, close, connect, dup, is_ours, listener, pass, peek, read_to_end, receive, recv, send, send_now,
    wait_at_most,
};
use crate::{Actor, Line};
use fs_shm::word::{kill_after, stores_left};
use fs_socket::Errno;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;

/// The processes of a run. Each begins when it was told the daemon's path.
pub(crate) struct Actors {
    pub(crate) survivor: Actor,
    pub(crate) victim: Actor,
    /// A client that comes when the victim is gone.
    pub(crate) next: Actor,
}

pub(crate) struct Scenario {
    pub(crate) survivor: fn(&Line),
    /// Is killed after so many stores.
    pub(crate) victim: fn(&Line, u32),
    /// Leads the others; answers how many stores the victim made.
    pub(crate) judge: fn(&Actors) -> Result<u32, String>,
}

pub(crate) fn find(name: &str) -> Scenario {
    let served = |victim| Scenario { survivor: serve, victim, judge: judge_served };
    match name {
        "opener" => served(opener),
        "closer" => served(closer),
        "duplicator" => served(duplicator),
        "forker" => served(forker),
        "sharer" => served(sharer),
        "receiver" => served(receiver),
        "acceptor" => Scenario { survivor: ask, victim: acceptor, judge: judge_asked },
        "listener_closer" => Scenario { survivor: ask, victim: listener_closer, judge: judge_asked },
        "acceptor_of_two" => Scenario { survivor: share, victim: ask_in_place, judge: judge_shared },
        "filler" => Scenario { survivor: share_filled, victim: drain_in_place, judge: judge_filled },
        _ => panic!("no scenario {name}"),
    }
}

/// Runs `act`, killed after the `after`-th store; tells how many it made.
fn armed<T>(line: &Line, after: u32, act: impl FnOnce() -> T) -> T {
    line.say("armed");
    kill_after(after);
    let answer = act();
    let left = stores_left();
    kill_after(0);
    line.say(&format!("done {}", after - left));
    answer
}

fn port(words: &str) -> u16 {
    words.strip_prefix("port ").and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{words}"))
}

/// Serves every connection to its end, that of [`next_client`] included; says what came on the others.
fn serve(line: &Line) {
    let (fd, port) = listener();
    line.say(&format!("port {port}"));
    serve_and_say(line, fd);
}

fn serve_and_say(line: &Line, fd: RawFd) {
    let mut seen = Vec::new();
    line.say(&match serve_all(fd, &mut seen) {
        Ok(()) => format!("ok {}", seen.join(",")),
        Err(error) => format!("bad {error}, after {seen:?}"),
    });
    // The listener stays, so that its arenas are not looked at for that reason.
    line.hear();
    close(fd);
}

fn serve_all(fd: RawFd, seen: &mut Vec<String>) -> Result<(), String> {
    let mut last = false;
    loop {
        let connection = match accept(fd) {
            Ok(connection) => connection,
            Err(Errno::AGAIN) if last => return Ok(()),
            Err(error) => return Err(format!("accept: {error}")),
        };
        if !is_ours(connection) {
            return Err("a connection came over the kernel".into());
        }
        let mut room = [0; 8];
        let first = recv(connection, &mut room);
        if first == Ok(2) && room.starts_with(b"hi") {
            let _ = send(connection, b"!");
            read_to_end(connection)?;
            close(connection);
            // Who came before, and was not first for that, is there already.
            last = true;
            wait_at_most(fd, 0, 1000);
            continue;
        }
        let mut all = room[..first.unwrap_or(0)].to_vec();
        if first.is_ok_and(|len| len > 0) {
            if all == b"ask" {
                let _ = send(connection, b"!");
            } else {
                all.extend(read_to_end(connection)?);
            }
        } else if first == Err(Errno::AGAIN) {
            return Err("the peer is gone, and the connection does not end".into());
        }
        close(connection);
        seen.push(String::from_utf8_lossy(&all).into_owned());
    }
}

/// Comes when the victim is gone.
pub(crate) fn next_client(line: &Line) {
    let port = port(&line.hear());
    line.say(&match connect(port) {
        Err(error) => format!("bad connect: {error}"),
        Ok(fd) => {
            let _ = send(fd, b"hi");
            let mut room = [0; 8];
            let answer = recv(fd, &mut room);
            close(fd);
            if answer == Ok(1) { "ok".into() } else { format!("bad the next client is answered {answer:?}") }
        }
    });
    line.hear();
}

fn opener(line: &Line, after: u32) {
    let port = port(&line.hear());
    armed(line, after, || {
        let fd = connect(port).unwrap();
        line.say("connected");
        let _ = send(fd, b"abc");
        line.say("sent");
        close(fd);
    });
    line.hear();
}

/// A connection to the survivor that has been accepted, or soon will be.
fn connected(line: &Line) -> RawFd {
    let fd = connect(port(&line.hear())).unwrap();
    let _ = send(fd, b"abc");
    line.say("connected");
    line.say("sent");
    // The survivor has read that, and sleeps.
    std::thread::sleep(std::time::Duration::from_millis(20));
    fd
}

fn closer(line: &Line, after: u32) {
    let fd = connected(line);
    armed(line, after, || close(fd));
    line.hear();
}

fn duplicator(line: &Line, after: u32) {
    let fd = connected(line);
    armed(line, after, || {
        let second = dup(fd);
        close(fd);
        if let Ok(second) = second {
            close(second);
        }
    });
    line.hear();
}

fn forker(line: &Line, after: u32) {
    let fd = connected(line);
    armed(line, after, || {
        let mut forking = Some(fs_socket::before_fork().unwrap());
        let _child = fork(|| {
            fs_socket::after_fork_child(forking.take().unwrap());
            close(fd);
            0
        });
        fs_socket::after_fork_parent(forking.take().unwrap(), true);
        close(fd);
    });
    line.hear();
}

/// A child of a process that uses our sockets, as the library's fork makes it.
fn child(body: impl FnOnce()) {
    let mut forking = Some(fs_socket::before_fork().unwrap());
    let _child = fork(|| {
        fs_socket::after_fork_child(forking.take().unwrap());
        body();
        0
    });
    fs_socket::after_fork_parent(forking.take().unwrap(), true);
}

/// Sends its connection to another process over a Unix socket (SCM_RIGHTS), and closes it.
fn sharer(line: &Line, after: u32) {
    let (out, into) = UnixStream::pair().unwrap();
    let mut ends = Some((out, into));
    child(|| {
        let (out, into) = ends.take().unwrap();
        drop(out);
        if let Some(fd) = receive(&into) {
            close(fd);
        }
    });
    let (out, into) = ends.take().unwrap();
    drop(into);
    let fd = connected(line);
    armed(line, after, || {
        pass(&out, fd);
        close(fd);
        drop(out);
    });
    line.hear();
}

/// Is sent a connection by a process that is gone then.
fn receiver(line: &Line, after: u32) {
    let (out, into) = UnixStream::pair().unwrap();
    child(|| {
        let fd = connected(line);
        pass(&out, fd);
        close(fd);
    });
    drop(out);
    // The message lies there.
    peek(&into);
    armed(line, after, || {
        if let Some(fd) = receive(&into) {
            close(fd);
        }
    });
    line.hear();
}

/// Hears of the victim until it has done all, or is dead. What it said, and how many stores it made if it lives.
fn watch(victim: &Actor) -> Result<(Vec<String>, Option<u32>), String> {
    let mut said = Vec::new();
    loop {
        let dead = victim.is_dead();
        while let Some(words) = victim.line.hear_now() {
            if let Some(stores) = words.strip_prefix("done ").and_then(|stores| stores.parse().ok()) {
                victim.line.say("end");
                return Ok((said, Some(stores)));
            }
            said.push(words);
        }
        if dead {
            return Ok((said, None));
        }
        if victim.age() > 40 {
            return Err(format!("the victim hangs after {said:?}"));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn expect_ok(actor: &Actor, who: &str) -> Result<String, String> {
    let said = actor.line.hear_within(40).ok_or_else(|| format!("{who} hangs"))?;
    match said.strip_prefix("ok") {
        Some(rest) => Ok(rest.trim().to_string()),
        None => Err(format!("{who}: {said}")),
    }
}

fn judge_served(actors: &Actors) -> Result<u32, String> {
    let at = actors.survivor.line.hear();
    actors.victim.line.say(&at);
    let (said, stores) = watch(&actors.victim)?;
    actors.victim.bury()?;
    actors.next.line.say(&at);
    let next = expect_ok(&actors.next, "the next client");
    actors.next.line.say("end");
    let seen = expect_ok(&actors.survivor, "the survivor").map_err(|error| format!("{error}; the victim: {said:?}"))?;
    next?;
    // What was acknowledged to the opener reaches the acceptor.
    let wanted = if said.iter().any(|word| word == "sent") { "abc" } else { "" };
    let connected = said.iter().any(|word| word == "connected");
    if connected && !seen.starts_with(wanted) || !["", "abc"].contains(&seen.as_str()) {
        return Err(format!("the server saw {seen:?}, the victim said {said:?}"));
    }
    Ok(stores.unwrap_or(0))
}

/// Asks the victim, which listens; the answer is "!" or the end.
fn ask(line: &Line) {
    let port = port(&line.hear());
    line.say(&ask_once(port, || line.say("asked")));
    line.hear();
}

/// `asked`: told once the question waits, if it comes to that.
fn ask_once(port: u16, asked: impl FnOnce()) -> String {
    let fd = match connect(port) {
        Ok(fd) => fd,
        Err(error) => return format!("ok {error}"),
    };
    if !is_ours(fd) {
        return "bad the connection is the kernel's".into();
    }
    let _ = send(fd, b"ask");
    asked();
    let answer = read_to_end(fd);
    close(fd);
    match answer {
        Ok(bytes) => format!("ok {}", String::from_utf8_lossy(&bytes)),
        Err(error) => format!("bad {error}"),
    }
}

fn acceptor(line: &Line, after: u32) {
    let (fd, port) = listener();
    line.say(&format!("port {port}"));
    // The client's connection waits.
    line.hear();
    armed(line, after, || {
        let connection = accept(fd).unwrap();
        let _ = recv(connection, &mut [0; 8]);
        let _ = send(connection, b"!");
        close(connection);
    });
    line.hear();
}

fn listener_closer(line: &Line, after: u32) {
    let (fd, port) = listener();
    line.say(&format!("port {port}"));
    line.hear();
    armed(line, after, || close(fd));
    line.hear();
}

fn judge_asked(actors: &Actors) -> Result<u32, String> {
    let at = actors.victim.line.hear();
    actors.survivor.line.say(&at);
    match actors.survivor.line.hear_within(40) {
        Some(said) if said == "asked" => {}
        said => return Err(format!("the client did not ask: {said:?}")),
    }
    actors.victim.line.say("connected");
    let (said, stores) = watch(&actors.victim)?;
    actors.victim.bury()?;
    expect_ok(&actors.survivor, "the client").map_err(|error| format!("{error}; the victim: {said:?}"))?;
    actors.survivor.line.say("end");
    actors.survivor.bury()?;
    Ok(stores.unwrap_or(0))
}

/// A listener that two processes hold: the forked one is killed while it accepts.
fn share(line: &Line) {
    let (fd, port) = listener();
    line.say(&format!("port {port}"));
    let after: u32 = line.hear().parse().unwrap();
    let mut forking = Some(fs_socket::before_fork().unwrap());
    let child = fork(|| {
        fs_socket::after_fork_child(forking.take().unwrap());
        armed(line, after, || {
            let connection = accept(fd).unwrap();
            let _ = recv(connection, &mut [0; 8]);
            let _ = send(connection, b"!");
            close(connection);
        });
        0
    });
    fs_socket::after_fork_parent(forking.take().unwrap(), true);
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    line.say("dead");
    serve_and_say(line, fd);
}

/// The client of [`share`], in the victim's place as it is told the number of stores.
fn ask_in_place(line: &Line, after: u32) {
    let port = port(&line.hear());
    line.say(&format!("{after}"));
    line.say(&ask_once(port, || ()));
    line.hear();
}

fn judge_shared(actors: &Actors) -> Result<u32, String> {
    let at = actors.survivor.line.hear();
    let client = &actors.victim;
    client.line.say(&at);
    let after = client.line.hear();
    std::thread::sleep(std::time::Duration::from_millis(30));
    actors.survivor.line.say(&after);
    let mut stores = 0;
    loop {
        let said = actors.survivor.line.hear_within(40).ok_or("the forked acceptor hangs")?;
        match said.strip_prefix("done ") {
            Some(number) => stores = number.parse().map_err(|_| said.clone())?,
            None if said == "dead" => break,
            None => {}
        }
    }
    actors.next.line.say(&at);
    let next = expect_ok(&actors.next, "the next client");
    actors.next.line.say("end");
    let answered = expect_ok(client, "the client");
    let seen = expect_ok(&actors.survivor, "the survivor");
    let (Ok(_), Ok(answered), Ok(seen)) = (&next, &answered, &seen) else {
        return Err([next, answered, seen].into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; "));
    };
    // Whoever was not accepted by the one is by the other.
    if !["", "!"].contains(&answered.as_str()) || !["", "ask"].contains(&seen.as_str()) {
        return Err(format!("the client was answered {answered:?}, the survivor saw {seen:?}"));
    }
    client.line.say("end");
    Ok(stores)
}

/// More than a slot's ring holds.
const LONG: usize = 200_000;

/// A listener that two processes hold: the forked one is killed while it sends what takes a large ring.
fn share_filled(line: &Line) {
    let (fd, port) = listener();
    line.say(&format!("port {port}"));
    let after: u32 = line.hear().parse().unwrap();
    let mut forking = Some(fs_socket::before_fork().unwrap());
    let child = fork(|| {
        fs_socket::after_fork_child(forking.take().unwrap());
        let connection = accept(fd).unwrap();
        armed(line, after, || {
            let _ = send_now(connection, &[b'x'; LONG]);
            // It has read all, and the ring is given back.
            let _ = recv(connection, &mut [0; 8]);
            let _ = send_now(connection, &[b'y'; 100]);
            close(connection);
        });
        0
    });
    fs_socket::after_fork_parent(forking.take().unwrap(), true);
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    line.say("dead");
    line.hear();
    close(fd);
}

/// The client of [`share_filled`], in the victim's place as it is told the number of stores. When that is dead no large ring is
/// missing in the arena, which goes on.
fn drain_in_place(line: &Line, after: u32) {
    let port = port(&line.hear());
    line.say(&format!("{after}"));
    let fd = connect(port).unwrap();
    line.say("connected");
    // It sends meanwhile.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let (mut got, mut room) = (0, vec![0; LONG]);
    while got < LONG {
        match recv(fd, &mut room) {
            Ok(len) if len > 0 => got += len,
            _ => break,
        }
    }
    let _ = send(fd, b"!");
    let _ = read_to_end(fd);
    close(fd);
    line.hear();
    line.say(&all_large_rings(port));
    line.hear();
}

/// Takes both that an arena of `Geometry::SMALL` has.
fn all_large_rings(port: u16) -> String {
    for number in 0..2 {
        let fd = connect(port).unwrap();
        if !is_ours(fd) {
            return "bad the connection is the kernel's".into();
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut sent = 0;
        while sent < LONG {
            sent += send_now(fd, &vec![b'z'; LONG - sent]).unwrap_or(0);
            if std::time::Instant::now() > until {
                return format!("bad connection {number} takes {sent} bytes: a large ring is missing");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    "ok".into()
}

fn judge_filled(actors: &Actors) -> Result<u32, String> {
    let at = actors.survivor.line.hear();
    let client = &actors.victim;
    client.line.say(&at);
    let after = client.line.hear();
    actors.survivor.line.say(&after);
    let mut stores = 0;
    loop {
        let said = actors.survivor.line.hear_within(40).ok_or("the forked sender hangs")?;
        match said.strip_prefix("done ") {
            Some(number) => stores = number.parse().map_err(|_| said.clone())?,
            None if said == "dead" => break,
            None => {}
        }
    }
    client.line.hear();
    client.line.say("dead");
    let all = expect_ok(client, "the client");
    actors.survivor.line.say("end");
    actors.survivor.bury()?;
    client.line.say("end");
    client.bury()?;
    all.map(|_| stores)
}
