//! `fastsock capture`: writes the data of accelerated connections as pcapng.

mod extcap;
mod file;
mod stream;

use crate::control::{ControlArgs, status};
use anyhow::{Context, anyhow, bail};
use file::{ETHERNET, Packet, PcapNg, Way};
use fs_shm::control::{CAPTURE_HEADER, CaptureRecord, Client, Error, Request, socket};
use fs_shm::follow::Follow;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use stream::Streams;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Output file (pcapng); `-` is standard output, for `| wireshark -k -i -` or `| tshark -r -`.
    #[arg(long, short = 'w', value_name = "FILE")]
    write: Option<PathBuf>,
    /// Capture only shared memory, or only frames of the device [default: both, if the daemon has a
    /// device].
    #[arg(long, value_enum, value_name = "WHAT")]
    only: Option<What>,
    /// Stop after this many packets.
    #[arg(long, short = 'c', value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this many seconds.
    #[arg(long, short = 'd', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400 * 365))]
    duration: Option<u64>,
    #[command(flatten)]
    extcap: extcap::Args,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Connections between processes of this host.
    Memory,
    /// Frames of the device.
    Wire,
}

/// Number of polls of the arenas without news after which it sleeps between polls.
const EAGER: u32 = 200;
/// The length of this sleep. Connections must not fill their rings within it, or data is missed.
const NAP: Duration = Duration::from_micros(50);
/// Records of the daemon that are taken in a row.
const RECORDS: usize = 256;
/// At the end it takes earlier frames, until none has arrived for this long.
const REST: Duration = Duration::from_secs(1);
/// Bytes that the daemon may be ahead; less if net.core.wmem_max is smaller.
const AHEAD: usize = 8 << 20;

pub(crate) fn capture(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(answer) = extcap::answer(&args.extcap)? {
        io::stdout().write_all(answer.as_bytes()).context("cannot write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    until_signal(stop.clone())?;
    let client = args.control.connect()?;
    // Late data is lost, so run before the captured programs if permitted.
    let _refused = rustix::process::nice(-10);
    let (records, device) = ask(&client, args.only)?;
    let output = open(args.write.as_deref().or(args.extcap.fifo.as_deref()))?;
    let mut file = PcapNg::new(BufWriter::with_capacity(1 << 18, output)).context("cannot write the capture")?;
    let mut capture = Capture::new(records, &mut file, args.only, device.as_deref())?;
    let until = args.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let is_full = |packets: u64| args.count.is_some_and(|count| packets >= count);
    if args.write.is_some() {
        eprintln!("fastsock: capturing; press ^C to end");
    }
    let mut lost_daemon = false;
    let result = loop {
        if stop.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until) || is_full(file.packets) {
            break Ok(());
        }
        match capture.turn(&mut file) {
            Ok(true) => {}
            Ok(false) => {
                lost_daemon = true;
                break Ok(());
            }
            Err(error) => break Err(error),
        }
    };
    // The reader of the pipe has ended, which is no error.
    let is_broken_pipe = |error: &anyhow::Error| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    let wants_more = !is_full(file.packets);
    match result.and_then(|()| capture.end(&mut file, wants_more)) {
        Err(error) if !is_broken_pipe(&error) => return Err(error.context("cannot write the capture")),
        _ => {}
    }
    // Wireshark reports a program's output as an error.
    if args.extcap.fifo.is_none() {
        eprintln!("fastsock: {}", capture.says(file.packets));
    }
    if lost_daemon {
        bail!("the daemon has ended: the packets so far are written");
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens standard output or a file.
fn open(path: Option<&Path>) -> anyhow::Result<Box<dyn Write>> {
    match path {
        Some(path) if path != Path::new("-") => {
            // The data of other programs is private.
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            Ok(Box::new(file.with_context(|| path.display().to_string())?))
        }
        None if io::stdout().is_terminal() => {
            bail!("a capture is binary and cannot go to the terminal: name a file with -w FILE, or pipe it with -w -")
        }
        _ => Ok(Box::new(io::stdout())),
    }
}

/// Sets `stop` at SIGINT and SIGTERM.
fn until_signal(stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut term, mut int) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}

/// Asks the daemon for a capture. Returns the socket for its records, and the device if its frames
/// are captured.
fn ask(client: &Client, only: Option<What>) -> anyhow::Result<(OwnedFd, Option<String>)> {
    let status = status(client).context("cannot read the daemon's status")?;
    let has_device = !status.device.is_empty();
    if only == Some(What::Wire) && !has_device {
        bail!("the daemon serves no device, so there are no frames to capture: omit --only, or use --only memory");
    }
    let (memory, wire) = (only != Some(What::Wire), only != Some(What::Memory) && has_device);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // Only privileged users may exceed wmem_max. With a smaller buffer more is missed.
    if sockopt::set_socket_send_buffer_size_force(&theirs, AHEAD).is_err() {
        sockopt::set_socket_send_buffer_size(&theirs, AHEAD)?;
    }
    let ask = |wire| client.request(&Request::Capture { memory, wire }, &[theirs.as_fd()]);
    let (answer, wire) = match ask(wire) {
        // A user without permission for the device's frames may still capture their own
        // connections.
        Err(Error::Failed(Errno::PERM)) if wire && only.is_none() => {
            eprintln!(
                "fastsock: only root and the daemon's user can capture frames of the device: capturing shared \
                       memory only"
            );
            (ask(false), false)
        }
        answer => (answer, wire),
    };
    match answer {
        Ok(_) => Ok((ours, wire.then_some(status.device))),
        Err(Error::Failed(Errno::PERM)) if wire => {
            bail!("only root and the daemon's user can capture frames of the device")
        }
        Err(Error::Failed(Errno::PERM)) => bail!(
            "only root and the daemon's user can capture here; other users can capture their own connections if the \
             daemon is root's and kernel.yama.ptrace_scope is 0"
        ),
        Err(Error::Failed(Errno::BUSY)) => {
            bail!("too many captures are running (at most 8, and one for each user but root): end another one")
        }
        Err(Error::Failed(Errno::BADMSG)) => bail!("the daemon is of an older version and cannot capture: restart it"),
        Err(error) => Err(anyhow!(error).context("the daemon refused the capture")),
    }
}

/// An arena that is followed.
struct Followed {
    number: u32,
    follow: Follow,
}

struct Capture {
    records: OwnedFd,
    buffer: Vec<u8>,
    arenas: Vec<Followed>,
    streams: Option<Streams>,
    wire: Option<Wire>,
    idle: u32,
    /// Time of the daemon's latest frame.
    latest: u64,
    missed_arenas: u64,
    missed_connections: u64,
}

/// The device's frames.
struct Wire {
    interface: u32,
    frames: u64,
    missed: u64,
    /// Frames that are not complete.
    cut: u64,
}

impl Capture {
    fn new(
        records: OwnedFd,
        file: &mut PcapNg<impl Write>,
        only: Option<What>,
        device: Option<&str>,
    ) -> anyhow::Result<Self> {
        let streams = (only != Some(What::Wire)).then(|| Streams::new(file)).transpose()?;
        let wire = device.map(|device| {
            let interface = file.interface(ETHERNET, device, "frames of accelerated connections, past the kernel")?;
            Ok::<_, io::Error>(Wire { interface, frames: 0, missed: 0, cut: 0 })
        });
        // Written at once for a waiting reader.
        file.flush()?;
        Ok(Capture {
            records,
            buffer: vec![0; CAPTURE_HEADER + (1 << 16)],
            arenas: Vec::new(),
            streams,
            wire: wire.transpose()?,
            idle: 0,
            latest: 0,
            missed_arenas: 0,
            missed_connections: 0,
        })
    }

    /// Takes new records, and waits a moment if there were none. Returns `false` after the daemon
    /// has ended.
    fn turn(&mut self, file: &mut PcapNg<impl Write>) -> anyhow::Result<bool> {
        let mut news = false;
        for _ in 0..RECORDS {
            match self.record(file)? {
                Some(true) => news = true,
                Some(false) => break,
                None => return Ok(false),
            }
        }
        news |= self.look(file)?;
        if news {
            self.idle = 0;
            return Ok(true);
        }
        self.idle = self.idle.saturating_add(1);
        if self.idle < EAGER && !self.arenas.is_empty() {
            std::thread::yield_now();
            return Ok(true);
        }
        if self.idle == EAGER || self.arenas.is_empty() {
            file.flush()?;
        }
        let nap = if self.arenas.is_empty() { Duration::from_millis(100) } else { NAP };
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(&self.records, PollFlags::IN)], Some(&nap)) {
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(error) => Err(anyhow!(error).context("poll")),
        }
    }

    /// Takes one record. `Some(false)`: there is none; `None`: none will come.
    fn record(&mut self, file: &mut PcapNg<impl Write>) -> anyhow::Result<Option<bool>> {
        let mut received = match socket::receive(&self.records, &mut self.buffer) {
            Ok(received) if received.len == 0 => return Ok(None),
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Some(false)),
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(anyhow!(error).context("cannot read the daemon's records")),
        };
        let (record, frame) =
            CaptureRecord::decode(&self.buffer[..received.len]).context("cannot read the daemon's records")?;
        match record {
            CaptureRecord::Arena { arena, fresh, missed, geometry } => {
                self.missed_arenas += u64::from(missed);
                let memory = received.fds.take().context("an arena without memory")?;
                // Needs no descriptors: mappings keep the memory.
                match Follow::new(memory.as_fd(), geometry, fresh) {
                    Ok(follow) => self.arenas.push(Followed { number: arena, follow }),
                    Err(error) => {
                        eprintln!("fastsock: two processes' connections cannot be followed: {error}");
                        self.missed_arenas += 1;
                    }
                }
            }
            CaptureRecord::Frame { sent, missed, time, len, .. } => {
                let Some(wire) = &mut self.wire else { return Ok(Some(true)) };
                wire.missed += missed;
                self.latest = time;
                if len == 0 {
                    return Ok(Some(true));
                }
                wire.frames += 1;
                wire.cut += u64::from(frame.len() < len as usize);
                let comment = (missed != 0).then(|| format!("{missed} frames before this one were missed"));
                let way = if sent { Way::Out } else { Way::In };
                let interface = wire.interface;
                file.packet(&Packet { interface, time, way, comment: comment.as_deref(), len, bytes: frame })?;
            }
        }
        Ok(Some(true))
    }

    fn look(&mut self, file: &mut PcapNg<impl Write>) -> anyhow::Result<bool> {
        let Some(streams) = &mut self.streams else { return Ok(false) };
        let time = now();
        let (mut news, mut result) = (false, Ok(()));
        for Followed { number, follow } in &mut self.arenas {
            news |= follow.look(&mut |connection, seen| {
                if result.is_ok() {
                    result = streams.see(file, time, *number, connection, seen);
                }
            });
            self.missed_connections += follow.take_missed();
        }
        result?;
        self.arenas.retain(|arena| {
            let is_over = arena.follow.is_over();
            if is_over {
                streams.forget(arena.number);
            }
            !is_over
        });
        Ok(news)
    }

    /// Takes the last records, with `more` also those that are still on their way, and prints the
    /// summary.
    fn end(&mut self, file: &mut PcapNg<impl Write>, more: bool) -> anyhow::Result<()> {
        self.look(file)?;
        let time = now();
        // Earlier frames are still on their way.
        while more && self.wire.is_some() && self.latest < time {
            let left = Timespec { tv_sec: REST.as_secs() as i64, tv_nsec: i64::from(REST.subsec_nanos()) };
            match self.record(file)? {
                Some(true) => {}
                Some(false) => match rustix::event::poll(&mut [PollFd::new(&self.records, PollFlags::IN)], Some(&left))
                {
                    Ok(0) => break,
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => break,
                },
                None => break,
            }
        }
        if let Some(streams) = &self.streams {
            file.statistics(streams.interface(), time, streams.connections, self.missed_connections)?;
        }
        if let Some(wire) = &self.wire {
            file.statistics(wire.interface, time, wire.frames + wire.missed, wire.missed)?;
        }
        file.flush()?;
        Ok(())
    }

    fn says(&self, packets: u64) -> String {
        let mut says = format!("{packets} packets");
        if let Some(streams) = &self.streams {
            says += &format!("; shared memory: {} connections, {} bytes", streams.connections, streams.bytes);
            if streams.missed != 0 || self.missed_connections != 0 || self.missed_arenas != 0 {
                says += &format!(
                    " (missed: {} more bytes, {} connections, all connections of {} pairs of processes)",
                    streams.missed, self.missed_connections, self.missed_arenas
                );
            }
        }
        if let Some(wire) = &self.wire {
            says += &format!("; device: {} frames", wire.frames);
            if wire.missed != 0 {
                says += &format!(", {} missed", wire.missed);
            }
            if wire.cut != 0 {
                says += &format!(", {} cut because they are longer than the capture's socket accepts", wire.cut);
            }
        }
        says
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
