//! The commands.

use crate::memory;
use anyhow::{Context, Result, bail};
use fs_shm::control::{
    self, Claimed, Client, CounterRow, Listening, Object, PeerSide, Request, SideMemory, SocketRow, Text, VERSION, Way,
};
use fs_shm::layout::SlotLocks;
use fs_shm::pages::AttachmentPage;
use fs_shm::{Addr, Arena, Bells, Channel, Geometry, OpenArgs, Side};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The daemon rings for it.
static BELLS: Ring = Ring(OnceLock::new());

struct Ring(OnceLock<Client>);

impl Bells for Ring {
    fn ring(&self, poller: u32) {
        if let Some(client) = self.0.get() {
            let _gone = client.ring(poller);
        }
    }
}

/// The objects created by commands.
#[derive(Default)]
pub(crate) struct Liar {
    geometry: Option<Geometry>,
    attachment: u32,
    page: Option<AttachmentPage>,
    fds: Vec<Option<OwnedFd>>,
    /// Handles of locks, by a handle of an arena's memory and a side.
    locks: HashMap<(usize, Side), usize>,
    arenas: Vec<&'static Arena>,
    channels: Vec<Channel<'static>>,
    more: Vec<Client>,
}

fn number<T: std::str::FromStr>(arguments: &[&str], at: usize) -> Result<T> {
    arguments.get(at).and_then(|word| word.parse().ok()).with_context(|| format!("argument {at}: a number"))
}

fn word<'a>(arguments: &[&'a str], at: usize) -> Result<&'a str> {
    arguments.get(at).copied().with_context(|| format!("argument {at} is missing"))
}

fn address(arguments: &[&str], at: usize) -> Result<SocketAddr> {
    word(arguments, at)?.parse().with_context(|| format!("argument {at}: an address"))
}

fn side(arguments: &[&str], at: usize) -> Result<Side> {
    match word(arguments, at)? {
        "A" => Ok(Side::A),
        "B" => Ok(Side::B),
        other => bail!("side {other}"),
    }
}

/// `LISTENER`, `ARENA/SLOT/SIDE`, or `kernel`.
fn object(text: &str) -> Result<Object> {
    if text == "kernel" {
        return Ok(Object::Kernel(control::KernelReason::Option));
    }
    let parts: Vec<&str> = text.split('/').collect();
    Ok(match parts[..] {
        [listener] => Object::Listener(listener.parse()?),
        [arena, slot, of] => Object::Channel {
            arena: arena.parse()?,
            slot: slot.parse()?,
            side: if of == "A" { PeerSide::A } else { PeerSide::B },
        },
        _ => bail!("object {text}"),
    })
}

fn client() -> Result<&'static Client> {
    BELLS.0.get().context("not connected")
}

impl Liar {
    fn keep(&mut self, fd: impl Into<OwnedFd>) -> usize {
        self.fds.push(Some(fd.into()));
        self.fds.len() - 1
    }

    /// Stores a memory, and returns its handle; "locks" returns the handle of its locks.
    fn keep_arena(&mut self, memory: SideMemory, side: Side) -> usize {
        let [shared, locks] = memory.into_fds().map(|fd| self.keep(fd.into_owned_fd()));
        self.locks.insert((shared, side), locks);
        shared
    }

    fn fd(&self, arguments: &[&str], at: usize) -> Result<BorrowedFd<'_>> {
        let handle: usize = number(arguments, at)?;
        Ok(self.fds.get(handle).and_then(Option::as_ref).with_context(|| format!("no descriptor {handle}"))?.as_fd())
    }

    fn geometry(&self) -> Result<Geometry> {
        self.geometry.context("no hello yet")
    }

    fn arena(&self, arguments: &[&str], at: usize) -> Result<&'static Arena> {
        self.arenas.get(number::<usize>(arguments, at)?).copied().context("no such arena")
    }

    fn channel(&self, arguments: &[&str], at: usize) -> Result<&Channel<'static>> {
        self.channels.get(number::<usize>(arguments, at)?).context("no such channel")
    }

    /// Does one command.
    pub(crate) fn obey(&mut self, command: &str, words: &[&str]) -> Result<String> {
        match command {
            "connect" | "hello" | "hello-as" | "raw" | "status" | "counters" | "sockets" | "more" | "crowd" => {
                self.attach(command, words)
            }
            "socket" | "reuse" | "bind" | "klisten" | "kconnect" | "kunconnect" | "kmove" | "kshutdown" | "kaccept"
            | "close" | "cookie" | "name" | "dup" | "pair" | "adopt" | "unix" => self.socket(command, words),
            "listen" | "route" | "arena" | "unlisten" | "watch" | "unwatch" | "shut" | "leave" | "lpage" | "bell"
            | "ring" | "poller" | "lpoller" | "rings" | "ports" | "due" | "trim" | "claim" | "share" | "unshare"
            | "fork" | "prepare" | "inherit" | "exec" | "execfailed" | "spawned" | "entry" | "fill" | "lend" => {
                self.ask(command, words)
            }
            "locks" => {
                let handle = self.locks.get(&(number(words, 0)?, side(words, 1)?)).context("not given")?;
                Ok(handle.to_string())
            }
            "map" | "open" | "flood" | "at" | "accept" | "send" | "recv" | "peer" | "local" | "state" | "closech" => {
                self.talk(command, words)
            }
            "poke" | "poke4" | "peek" | "find" | "read" | "scribble" | "place" | "addr" | "writable" => {
                self.scribble(command, words)
            }
            _ => bail!("no command {command}"),
        }
    }

    fn attach(&mut self, command: &str, words: &[&str]) -> Result<String> {
        match command {
            "connect" => {
                let path = std::env::var_os(control::PATH_VARIABLE).context("no path")?;
                let client = Client::connect(path.as_encoded_bytes()).map_err(|error| anyhow::anyhow!("{error}"))?;
                BELLS.0.set(client).map_err(|_| anyhow::anyhow!("connected before"))?;
                Ok(String::new())
            }
            // Opens one more connection. A refusal is an error.
            "more" => {
                let path = std::env::var_os(control::PATH_VARIABLE).context("no path")?;
                let client = Client::connect(path.as_encoded_bytes())?;
                client.hello(b"more")?;
                self.more.push(client);
                Ok(self.more.len().to_string())
            }
            // COUNT ADDRESS: opens that many more attachments, each with a route to a server.
            // Returns how many attach, and how many are connected.
            "crowd" => {
                let path = std::env::var_os(control::PATH_VARIABLE).context("no path")?;
                let (count, to): (usize, _) = (number(words, 0)?, address(words, 1)?);
                let (mut attached, mut led) = (0, 0);
                for _ in 0..count {
                    let Ok(client) = Client::connect(path.as_encoded_bytes()) else { break };
                    if client.hello(b"crowd").is_err() {
                        break;
                    }
                    attached += 1;
                    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))?;
                    led += usize::from(matches!(client.route(to, socket.as_fd())?.way, Way::Local { .. }));
                    self.more.push(client);
                }
                Ok(format!("{attached} {led}"))
            }
            "hello" => {
                let welcome = client()?.hello(words.first().unwrap_or(&"liar").as_bytes())?;
                self.geometry = Geometry::from_welcome(welcome.geometry);
                self.attachment = welcome.attachment;
                fs_shm::holder::set_attachment(welcome.attachment);
                self.page = Some(AttachmentPage::map(welcome.page.as_fd())?);
                let (page, directory) = (self.keep(welcome.page.into_owned_fd()), welcome.directory.into_owned_fd());
                let directory = self.keep(directory);
                Ok(format!("{} {page} {directory}", welcome.attachment))
            }
            // A name with any bytes, as hexadecimal digits.
            "hello-as" => {
                let digits = word(words, 0)?;
                let bytes: Result<Vec<u8>, _> =
                    (0..digits.len() / 2).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16)).collect();
                let request = Request::Hello { version: VERSION, name: Text::new(&bytes?) };
                let (reply, mut fds) = client()?.request(&request, &[])?;
                let control::Reply::Welcome { attachment, geometry, .. } = reply else { bail!("{reply:?}") };
                self.geometry = Geometry::from_welcome(geometry);
                let page = fds.take().context("no page")?;
                self.page = Some(AttachmentPage::map(page.as_fd())?);
                Ok(format!("{attachment}"))
            }
            // Sends a record of these bytes, without waiting for the reply.
            "raw" => {
                let digits = word(words, 0)?;
                let bytes: Result<Vec<u8>, _> =
                    (0..digits.len() / 2).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16)).collect();
                let to = if words.len() > 1 { self.fd(words, 1)? } else { client()?.fd() };
                Ok(control::socket::send(to, &bytes?, &[]).map(|()| String::new())?)
            }
            "status" => Ok(format!("{:?}", client()?.request(&Request::Status, &[])?.0)),
            "counters" => {
                let mut said = String::new();
                let each =
                    |row: CounterRow| said += &format!("{}{}={} ", row.name.as_str(), row.label.as_str(), row.value);
                client()?.rows(|cursor| Request::Counters { cursor }, each)?;
                Ok(said)
            }
            _ => {
                let mut said = String::new();
                let each = |row: SocketRow| said += &format!("{}/{}/{}/{:?} ", row.pid, row.fd, row.local, row.peer);
                client()?.rows(|cursor| Request::Sockets { cursor }, each)?;
                Ok(said)
            }
        }
    }

    fn socket(&mut self, command: &str, words: &[&str]) -> Result<String> {
        match command {
            "socket" => {
                let family = if word(words, 0)? == "v6" { AddressFamily::INET6 } else { AddressFamily::INET };
                let flags = SocketFlags::CLOEXEC;
                let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
                Ok(self.keep(socket).to_string())
            }
            "unix" => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
                let path = std::env::var_os(control::PATH_VARIABLE).context("no path")?;
                rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path.as_encoded_bytes())?)?;
                Ok(self.keep(socket).to_string())
            }
            // Takes a descriptor that this process was started with.
            "adopt" => {
                let path = format!("/proc/self/fd/{}", number::<i32>(words, 0)?);
                let _ = std::fs::read_link(&path)?;
                let pid = rustix::process::getpid();
                let me = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
                let fd =
                    rustix::process::pidfd_getfd(&me, number(words, 0)?, rustix::process::PidfdGetfdFlags::empty())?;
                Ok(self.keep(fd).to_string())
            }
            "reuse" => {
                let fd = self.fd(words, 0)?;
                match word(words, 1)? {
                    "port" => sockopt::set_socket_reuseport(fd, true)?,
                    "v6only" => sockopt::set_ipv6_v6only(fd, true)?,
                    _ => sockopt::set_socket_reuseaddr(fd, true)?,
                }
                Ok(String::new())
            }
            "bind" => Ok(rustix::net::bind(self.fd(words, 0)?, &address(words, 1)?).map(|()| String::new())?),
            "klisten" => Ok(rustix::net::listen(self.fd(words, 0)?, number(words, 1)?).map(|()| String::new())?),
            "kconnect" => Ok(rustix::net::connect(self.fd(words, 0)?, &address(words, 1)?).map(|()| String::new())?),
            "kunconnect" => Ok(rustix::net::connect_unspec(self.fd(words, 0)?).map(|()| String::new())?),
            // Releases its port and listens on another one before the daemon checks.
            "kmove" => {
                rustix::net::connect_unspec(self.fd(words, 0)?)?;
                Ok(rustix::net::listen(self.fd(words, 0)?, number(words, 1)?).map(|()| String::new())?)
            }
            "kshutdown" => {
                rustix::net::shutdown(self.fd(words, 0)?, rustix::net::Shutdown::Both)?;
                Ok(String::new())
            }
            "kaccept" => {
                let accepted = rustix::net::accept(self.fd(words, 0)?)?;
                Ok(self.keep(accepted).to_string())
            }
            "close" => {
                let handle: usize = number(words, 0)?;
                self.fds.get_mut(handle).and_then(Option::take).context("no such descriptor")?;
                Ok(String::new())
            }
            "cookie" => Ok(sockopt::socket_cookie(self.fd(words, 0)?)?.to_string()),
            "name" => Ok(SocketAddr::try_from(rustix::net::getsockname(self.fd(words, 0)?)?)?.to_string()),
            "dup" => {
                let copy = rustix::io::fcntl_dupfd_cloexec(self.fd(words, 0)?, 3)?;
                Ok(self.keep(copy).to_string())
            }
            _ => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
                Ok(format!("{} {}", self.keep(one), self.keep(other)))
            }
        }
    }

    fn ask(&mut self, command: &str, words: &[&str]) -> Result<String> {
        let client = client()?;
        let done = |request: Request, fds: &[BorrowedFd<'_>]| -> Result<String> {
            let (reply, _) = client.request(&request, fds)?;
            Ok(format!("{reply:?}"))
        };
        match command {
            "listen" => match client.listen(self.fd(words, 0)?)? {
                Listening::Yes(id, page) => {
                    let page = self.keep(page.into_owned_fd());
                    Ok(format!("{id} {page}"))
                }
                other => bail!("{other:?}"),
            },
            "route" => self.route(client, words),
            "arena" => {
                // NUMBER [SIDE]: without a side whichever there is.
                let sides =
                    words.get(1).map_or(Ok(vec![Side::B, Side::A]), |_| side(words, 1).map(|side| vec![side]))?;
                let mut answer = Err(control::Error::Failed(rustix::io::Errno::ACCESS));
                for side in sides {
                    answer = client.arena(number(words, 0)?, side).map(|memory| (side, memory));
                    if answer.is_ok() {
                        break;
                    }
                }
                let (side, memory) = answer?;
                let memory = self.keep_arena(memory, side);
                Ok(format!("{side:?} {memory}"))
            }
            "claim" => match client.claim(self.fd(words, 0)?)? {
                Some((Object::Channel { arena, slot, side }, Claimed::Arena(memory))) => {
                    Ok(format!("{arena}/{slot}/{side:?} {}", self.keep_arena(memory, side)))
                }
                Some((Object::Listener(id), Claimed::Page(memory))) => {
                    Ok(format!("{id} {}", self.keep(memory.into_owned_fd())))
                }
                Some((of, _)) => Ok(format!("{of:?}")),
                None => bail!("not ours"),
            },
            "share" => {
                let fds: Vec<BorrowedFd<'_>> =
                    words.get(3).map(|_| self.fd(words, 3)).transpose()?.into_iter().collect();
                done(
                    Request::Share {
                        object: object(word(words, 0)?)?,
                        cookie: number(words, 1)?,
                        fd: number(words, 2)?,
                    },
                    &fds,
                )
            }
            "unshare" => done(Request::Unshare { cookie: number(words, 0)? }, &[]),
            "fork" => done(Request::Fork, &[self.fd(words, 0)?]),
            "prepare" => done(Request::Prepare, &[self.fd(words, 0)?]),
            "inherit" => done(Request::Inherit { child: number(words, 0)? }, &[]),
            "exec" => done(Request::Exec, &[self.fd(words, 0)?]),
            "execfailed" => done(Request::ExecFailed, &[]),
            "spawned" => done(Request::Spawned { child: number(words, 0)? }, &[]),
            "unlisten" => done(Request::Unlisten { listener: number(words, 0)? }, &[]),
            "watch" => done(Request::Watch { listener: number(words, 0)? }, &[]),
            "shut" => done(Request::Shut { listener: number(words, 0)? }, &[]),
            "leave" => done(Request::Leave { listener: number(words, 0)? }, &[]),
            "lpage" => done(Request::Listener { listener: number(words, 0)? }, &[]),
            "lpoller" => done(Request::ListenerPoller { listener: number(words, 0)? }, &[]),
            "rings" => {
                let (reply, mut fds) = client.request(&Request::Bell { poller: number(words, 0)? }, &[])?;
                let bell = fds.take().with_context(|| format!("{reply:?}"))?;
                Ok(self.keep(bell.into_owned_fd()).to_string())
            }
            "bell" => done(Request::Bell { poller: number(words, 0)? }, &[]),
            "poller" => done(Request::Poller, &[]),
            "lend" => done(Request::Lend { arena: number(words, 0)?, slot: number(words, 1)? }, &[]),
            "ports" => done(Request::Ports { port: number(words, 0)? }, &[]),
            "ring" => Ok(client.ring(number(words, 0)?).map(|()| String::new())?),
            "due" => Ok(client.due(number(words, 0)?).map(|()| String::new())?),
            "unwatch" => Ok(client.unwatch(number(words, 0)?).map(|()| String::new())?),
            "trim" => Ok(client.trim(number(words, 0)?).map(|()| String::new())?),
            // Returns the page's entry of a descriptor: object and cookie.
            "entry" => {
                let page = self.page.as_ref().context("no page")?;
                anyhow::ensure!(
                    page.set(number(words, 0)?, object(word(words, 1)?)?, number(words, 2)?),
                    "out of range"
                );
                Ok(String::new())
            }
            // Writes that many entries, all of one object, or of kernel sockets without one.
            _ => {
                let page = self.page.as_ref().context("no page")?;
                let most: i32 = number(words, 0)?;
                for fd in 0..most {
                    let of = object(words.get(1).unwrap_or(&"kernel"))?;
                    anyhow::ensure!(page.set(fd, of, 1 << 40), "out of range");
                }
                Ok(most.to_string())
            }
        }
    }

    fn route(&mut self, client: &Client, words: &[&str]) -> Result<String> {
        let placeholder = self.fd(words, 0)?;
        let routed = client.route(address(words, 1)?, placeholder)?;
        match routed.way {
            Way::Local { source, arenas, .. } => {
                let all: Vec<String> = arenas
                    .into_iter()
                    .flatten()
                    .map(|(id, memory)| format!("{id}:{}", self.keep_arena(memory, Side::A)))
                    .collect();
                Ok(format!("local {} {source}", all.join(",")))
            }
            Way::Wire { arena, memory, core, .. } => {
                Ok(format!("wire {arena}:{} {core}", self.keep_arena(memory, Side::A)))
            }
            other => bail!("{other:?}"),
        }
    }

    fn talk(&mut self, command: &str, words: &[&str]) -> Result<String> {
        match command {
            "map" => {
                let (memory, side) = (self.fd(words, 0)?, side(words, 1)?);
                // MEMORY SIDE [own]: creates its own locks if it was not given any, or does not
                // want them.
                let own = Arena::create("own", self.geometry()?)?;
                let given = self.locks.get(&(number(words, 0)?, side)).and_then(|&handle| self.fds[handle].as_ref());
                if let Some(given) = given {
                    // Its local ports.
                    for slot in 0..4 {
                        let at = self.geometry()?.slot_locks(slot) + std::mem::offset_of!(SlotLocks, port);
                        let mut port = [0; 4];
                        rustix::io::pread(given, &mut port, at as u64)?;
                        let locks = own.locks.each_ref().map(AsFd::as_fd);
                        Arena::set_port(locks, self.geometry()?, slot, u32::from_ne_bytes(port) as u16)?;
                    }
                }
                let given = given.filter(|_| words.get(2) != Some(&"own"));
                let locks = given.map_or(own.of(side)[1], AsFd::as_fd);
                let arena = Arena::map([memory, locks], self.geometry()?, side, &BELLS)?;
                self.arenas.push(Box::leak(Box::new(arena)));
                Ok((self.arenas.len() - 1).to_string())
            }
            // ARENA LOCAL PEER [wire]: opens a connection with any addresses.
            "open" => {
                let arena = self.arena(words, 0)?;
                let (local, peer) = (Addr::from(address(words, 1)?), Addr::from(address(words, 2)?));
                let connecting = words.get(3) == Some(&"wire");
                // Port 0: uses the leased port.
                let lent = (address(words, 1)?.port() == 0 && !connecting).then_some(0);
                let args = OpenArgs { local, peer, connecting, lent, ..OpenArgs::default() };
                let opened = Channel::open(arena, &args).or_else(|error| {
                    if error != rustix::io::Errno::ADDRNOTAVAIL {
                        return Err(anyhow::Error::from(error));
                    }
                    client()?.lend(arena.number(), arena.next_free(0).context("no slot")?)?;
                    Ok(Channel::open(arena, &args)?)
                });
                let channel = opened?;
                let said = format!("{} {}", self.channels.len(), channel.slot());
                self.channels.push(channel);
                Ok(said)
            }
            // ARENA LOCAL PEER: opens and closes from here on, so that its inbox is never empty.
            "flood" => {
                let arena = self.arena(words, 0)?;
                let (local, peer) = (Addr::from(address(words, 1)?), Addr::from(address(words, 2)?));
                let args = OpenArgs { local, peer, ..OpenArgs::default() };
                std::thread::spawn(move || {
                    let mut open = VecDeque::new();
                    // Until the process ends.
                    loop {
                        match Channel::open(arena, &args) {
                            Ok(channel) => open.push_back(channel),
                            Err(_) => std::thread::sleep(Duration::from_millis(1)),
                        }
                        while open.front().is_some_and(Channel::is_reset)
                            && let Some(over) = open.pop_front()
                        {
                            // Its slot is wanted, and nothing else.
                            let _closed = over.close(true);
                        }
                    }
                });
                Ok(String::new())
            }
            "accept" => {
                let channel = Channel::accept(self.arena(words, 0)?).context("nobody waits")?;
                let said = format!("{} {}", self.channels.len(), channel.slot());
                self.channels.push(channel);
                Ok(said)
            }
            // Returns a handle to an existing connection, which any process with the memory can
            // have.
            "at" => {
                let channel = Channel::at(self.arena(words, 0)?, number(words, 1)?).context("nobody's slot")?;
                self.channels.push(channel);
                Ok((self.channels.len() - 1).to_string())
            }
            "send" => Ok(self.channel(words, 0)?.send_one(words[1..].join(" ").as_bytes())?.to_string()),
            "recv" => {
                let channel = self.channel(words, 0)?;
                let until = Instant::now() + Duration::from_millis(1500);
                let mut buffer = [0; 4096];
                loop {
                    match channel.recv_one(&mut buffer) {
                        Ok(n) => return Ok(String::from_utf8_lossy(&buffer[..n]).escape_default().to_string()),
                        Err(rustix::io::Errno::AGAIN) if Instant::now() < until => {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            "peer" => Ok(format!("{:?}", self.channel(words, 0)?.peer_addr().to_std())),
            "local" => Ok(format!("{:?}", self.channel(words, 0)?.local_addr().to_std())),
            "state" => Ok(format!("{:?}", self.channel(words, 0)?.state())),
            _ => Ok(self.channel(words, 0)?.close(false)?.to_string()),
        }
    }

    fn scribble(&mut self, command: &str, words: &[&str]) -> Result<String> {
        // PLACE: a number, or FIELD SLOT SIDE separated by commas.
        let at = |text: &str| -> Result<u64> {
            let parts: Vec<&str> = text.split(',').collect();
            match parts[..] {
                [number] if number.chars().all(|c| c.is_ascii_digit()) => Ok(number.parse()?),
                [field] => memory::place(self.geometry()?, field, 0, 0),
                [field, slot, side] => memory::place(self.geometry()?, field, slot.parse()?, side.parse()?),
                _ => bail!("place {text}"),
            }
        };
        match command {
            "place" => Ok(at(word(words, 0)?)?.to_string()),
            "poke" => {
                let value: u64 = number(words, 2)?;
                Ok(rustix::io::pwrite(self.fd(words, 0)?, &value.to_le_bytes(), at(word(words, 1)?)?)?.to_string())
            }
            "poke4" => {
                let value: u32 = number(words, 2)?;
                Ok(rustix::io::pwrite(self.fd(words, 0)?, &value.to_le_bytes(), at(word(words, 1)?)?)?.to_string())
            }
            // MEMORY SLOT SIDE(0, 1) ADDRESS
            "addr" => {
                let place = memory::place(self.geometry()?, "block.addr", number(words, 1)?, number(words, 2)?)?;
                for (n, value) in Addr::from(address(words, 3)?).0.into_iter().enumerate() {
                    rustix::io::pwrite(self.fd(words, 0)?, &value.to_le_bytes(), place + 8 * n as u64)?;
                }
                Ok(String::new())
            }
            "peek" => {
                let mut value = [0; 8];
                rustix::io::pread(self.fd(words, 0)?, &mut value, at(word(words, 1)?)?)?;
                Ok(u64::from_le_bytes(value).to_string())
            }
            "read" => {
                let mut bytes = vec![0; number(words, 2)?];
                let n = rustix::io::pread(self.fd(words, 0)?, &mut bytes[..], number(words, 1)?)?;
                Ok(String::from_utf8_lossy(&bytes[..n]).escape_default().to_string())
            }
            "find" => match memory::find(self.fd(words, 0)?, words[1..].join(" ").as_bytes())? {
                Some(place) => Ok(place.to_string()),
                None => bail!("not there"),
            },
            "scribble" => Ok(memory::scribble(self.fd(words, 0)?, number(words, 1)?, number(words, 2)?)?.to_string()),
            // Tries every way to make read-only memory writable, and returns the first that works.
            _ => {
                let fd = self.fd(words, 0)?;
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let reopened = std::fs::OpenOptions::new()
                    .write(true)
                    .open(path)
                    .is_ok_and(|file| rustix::io::pwrite(&file, &[0xff; 8], 0).is_ok());
                let ways = [
                    ("pwrite", rustix::io::pwrite(fd, &[0xff; 8], 0).is_ok()),
                    ("open and pwrite", reopened),
                    ("ftruncate", rustix::fs::ftruncate(fd, 0).is_ok()),
                    (
                        "fallocate",
                        rustix::fs::fallocate(
                            fd,
                            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
                            0,
                            4096,
                        )
                        .is_ok(),
                    ),
                ];
                match ways.iter().find(|(_, works)| *works) {
                    Some((way, _)) => Ok((*way).to_owned()),
                    None => bail!("read-only"),
                }
            }
        }
    }
}
