//! One end: an echo server with its own connections to the other end. It writes the progress of
//! each to a file.

use anyhow::{Context, Result};
use clap::Args;
use fs_stacks::{Core, Cores, StackArgs, Stream};
use fs_tests::random::Random;
use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Limit for making a connection while nothing changes.
const BEGIN: Duration = Duration::from_secs(30);
/// Limit for making a connection during changes, before another one is tried.
const TRY: Duration = Duration::from_secs(3);
/// Bytes of such a connection.
const SHORT: usize = 3000;

#[derive(Args, Clone, Debug)]
pub(crate) struct EndArgs {
    /// Addresses at which to echo.
    #[arg(long = "listen")]
    listen: Vec<SocketAddr>,
    /// A connection: `TO` or `TO,FROM`.
    #[arg(long = "connection", value_parser = wanted)]
    connections: Vec<Wanted>,
    /// The file with the progress of each connection.
    #[arg(long)]
    report: PathBuf,
    /// A new connection may be reset before its first echo: the peers' kernel drops a handshake if
    /// it cannot send the SYN-ACK again, because a link, an address or a route is missing
    /// (`reqsk_timer_handler`).
    #[arg(long)]
    peers_forget: bool,
    #[command(flatten)]
    stack: StackArgs,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    to: SocketAddr,
    from: Option<IpAddr>,
}

fn wanted(text: &str) -> Result<Wanted, String> {
    let (to, from) = text.split_once(',').map_or((text, None), |(to, from)| (to, Some(from)));
    let from = from.map(|from| from.parse().map_err(|error| format!("{from}: {error}"))).transpose()?;
    Ok(Wanted { to: to.parse().map_err(|error| format!("{to}: {error}"))?, from })
}

/// The state of a connection, or of those that are made repeatedly.
#[derive(Debug, Default)]
struct State {
    name: String,
    /// Bytes echoed, or connections made.
    done: AtomicU64,
    /// Connections that were reset before their first echo, if peers may forget them.
    forgotten: AtomicU64,
    error: Mutex<Option<String>>,
}

impl State {
    fn fail(&self, error: String) {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

pub(crate) fn run(args: EndArgs) -> Result<()> {
    fs_stacks::init_log();
    let name = |wanted: &Wanted| match wanted.from {
        Some(from) => format!("{from}->{}", wanted.to),
        None => format!("*->{}", wanted.to),
    };
    let state = |name: String| State { name, ..State::default() };
    let long = args.connections.iter().map(|wanted| state(name(wanted)));
    let short = args.connections.iter().map(|wanted| state(format!("new:{}", name(wanted))));
    let states: Arc<Vec<State>> = Arc::new(long.chain(short).collect());
    let (told, report) = (states.clone(), args.report.clone());
    let cores = Cores::start(&args.stack.clone(), move |core| on_core(core, args.clone(), states.clone()))?;
    let counters = cores.counters();
    std::thread::spawn(move || {
        loop {
            // The stack's counters, for a round that fails.
            let rows: String = counters.snapshot().iter().map(|row| format!("{row:?}\n")).collect();
            let _ = std::fs::write(report.with_extension("counters"), rows);
            let mut text = String::new();
            for state in told.iter() {
                let error = state.error.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
                let (done, forgotten) = (state.done.load(Ordering::Relaxed), state.forgotten.load(Ordering::Relaxed));
                text += &format!("{}\t{done}\t{forgotten}\t{}\n", state.name, error.replace('\n', " "));
            }
            let part = report.with_extension("part");
            // Written under another name first, so that readers see none or a whole one. Without
            // the folder the lab is gone.
            if std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, &report)).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    cores.join()
}

async fn on_core(core: Core, args: EndArgs, states: Arc<Vec<State>>) -> Result<()> {
    for at in &args.listen {
        let listener = core.listen(*at).await.with_context(|| format!("listen at {at}"))?;
        tokio::task::spawn_local(async move {
            loop {
                // A connection that was reset before it was accepted is no failure of the listener.
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                };
                tokio::task::spawn_local(echo(stream));
            }
        });
    }
    let core = Rc::new(core);
    let count = args.connections.len();
    for (n, wanted) in args.connections.iter().copied().enumerate().filter(|(n, _)| n % core.count == core.index) {
        let (on, states) = (core.clone(), states.clone());
        tokio::task::spawn_local(async move {
            let (long, short) = (&states[n], &states[n + count]);
            if let Err(error) =
                tokio::join!(busy(&on, wanted, n as u64, long), again(&on, wanted, short, args.peers_forget)).0
            {
                long.fail(format!("{error:#}"));
            }
        });
    }
    core.stop_requested().await;
    Ok(())
}

async fn echo(mut stream: Stream) {
    let mut buffer = vec![0; 1 << 14];
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// One connection for as long as the program runs.
async fn busy(core: &Core, wanted: Wanted, seed: u64, state: &State) -> Result<()> {
    let begin = async {
        loop {
            match core.connect(wanted.to, wanted.from).await {
                Ok(stream) => return stream,
                // The server does not listen yet.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let stream = tokio::time::timeout(BEGIN, begin).await.context("it is not made")?;
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sending = async {
        let (mut bytes, mut sizes) = (Random::new(seed), Random::new(!seed));
        let (mut at, mut word, mut buffer) = (0, [0; 8], vec![0; 30_000]);
        loop {
            let part = &mut buffer[..1 + sizes.below(30_000) as usize];
            bytes.fill(part, at, &mut word);
            at += part.len() as u64;
            writer.write_all(part).await.with_context(|| format!("write of byte {at}"))?;
            tokio::time::sleep(Duration::from_millis(5 + sizes.below(30))).await;
        }
        #[allow(unreachable_code, reason = "names the error's type")]
        Ok::<(), anyhow::Error>(())
    };
    let receiving = async {
        let mut bytes = Random::new(seed);
        let (mut at, mut word, mut buffer, mut expected) = (0, [0; 8], vec![0; 1 << 14], vec![0; 1 << 14]);
        loop {
            let n = reader.read(&mut buffer).await.with_context(|| format!("read of byte {at}"))?;
            anyhow::ensure!(n > 0, "it ends after {at} bytes");
            bytes.fill(&mut expected[..n], at, &mut word);
            let wrong = buffer[..n].iter().zip(&expected[..n]).position(|(got, expected)| got != expected);
            anyhow::ensure!(wrong.is_none(), "byte {} is not what was sent", at + wrong.unwrap_or(0) as u64);
            at += n as u64;
            state.done.store(at, Ordering::Relaxed);
        }
        #[allow(unreachable_code, reason = "names the error's type")]
        Ok::<(), anyhow::Error>(())
    };
    tokio::try_join!(sending, receiving).map(|_| ())
}

/// Makes connections one after the other. They may get no response in between, but must not be
/// refused, reset or answered with other bytes.
async fn again(core: &Core, wanted: Wanted, state: &State, peers_forget: bool) {
    loop {
        let came_back = Cell::new(false);
        let exchange = async {
            let mut stream = core.connect(wanted.to, wanted.from).await?;
            let mut back = [0; SHORT];
            stream.write_all(&[7; SHORT]).await?;
            stream.read_exact(&mut back[..1]).await?;
            came_back.set(true);
            stream.read_exact(&mut back[1..]).await?;
            Ok::<_, io::Error>(back)
        };
        match tokio::time::timeout(TRY, exchange).await {
            Ok(Ok(back)) if back == [7; SHORT] => {
                state.done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Ok(_)) => state.fail("other bytes came back".into()),
            Ok(Err(error)) => {
                let is_wrong = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
                );
                let is_forgotten = peers_forget && !came_back.get() && error.kind() == io::ErrorKind::ConnectionReset;
                // Before the first connection the other end may not listen yet.
                if is_forgotten && state.done.load(Ordering::Relaxed) > 0 {
                    state.forgotten.fetch_add(1, Ordering::Relaxed);
                } else if is_wrong && state.done.load(Ordering::Relaxed) > 0 {
                    state.fail(error.to_string());
                }
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
