//! Random changes of a running program's environment: links, addresses, routes, neighbours, link
//! addresses and queues, with busy connections. No byte may be lost or changed, and no connection
//! reset. All must continue after the changes are reversed, and the host's kernel must reply to
//! none of their packets with RST. A round that fails is repeated on kernel sockets: failures that
//! also occur there are ignored.
//!
//! Everything depends on one seed, which is printed: `--seed N --rounds 1` repeats a round.

mod change;
mod end;
mod world;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use fs_tests::{Lab, Stack};
use std::time::{Duration, Instant};
use world::{Told, World};

/// Random changes of devices, addresses, routes and neighbours, with connections.
#[derive(Parser, Debug)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    play: Play,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// One end of the connections: started by this program in a namespace.
    #[command(hide = true)]
    End(end::EndArgs),
}

#[derive(clap::Args, Debug)]
struct Play {
    /// Seed of the first round; by the clock without one.
    #[arg(long)]
    seed: Option<u64>,
    /// Begin no round after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Rounds at most.
    #[arg(long)]
    rounds: Option<u64>,
    /// Whose sockets the host has: `fastsock` or `kernel`.
    #[arg(long, default_value = "fastsock")]
    stack: String,
    #[command(flatten)]
    told: Told,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.command {
        Some(Command::End(end)) => end::run(end),
        None => play(&args.play),
    }
}

/// Rounds before the environment is created again: new queues of a device stay, and so do the
/// counters of sent bytes.
const ROUNDS_OF_A_WORLD: u64 = 20;

fn play(args: &Play) -> Result<()> {
    let stack = match args.stack.as_str() {
        "fastsock" => Stack::Fastsock,
        "kernel" => Stack::Kernel,
        other => bail!("--stack {other}: fastsock or kernel"),
    };
    let seed = args.seed.unwrap_or_else(fs_tests::random::by_the_clock);
    println!("seed {seed}");
    let (began, mut rounds, mut changes, mut as_the_kernel) = (Instant::now(), 0, 0, 0);
    let is_over =
        |rounds: u64| began.elapsed().as_secs() >= args.seconds || args.rounds.is_some_and(|most| rounds >= most);
    while !is_over(rounds) {
        let Some(lab) = Lab::up(&["--queues", "4"])? else { return Ok(()) };
        let mut failed = None;
        lab.check(|lab| {
            let mut world = World::begin(lab, stack, seed + rounds)?;
            for _ in 0..ROUNDS_OF_A_WORLD {
                if is_over(rounds) {
                    break;
                }
                let round = seed + rounds;
                rounds += 1;
                match world.round(round, &args.told) {
                    Ok(made) => changes += made,
                    Err(error) => {
                        lab.print_logs();
                        failed = Some((round, error));
                        return Ok(());
                    }
                }
            }
            world.end(seed + rounds)
        })?;
        drop(lab);
        let Some((round, error)) = failed else { continue };
        if stack == Stack::Kernel {
            return Err(error.context(format!("round {round} on the kernel's sockets")));
        }
        println!("round {round} failed: {error:#}");
        let on_kernel = on_kernel(round, &args.told)?;
        match on_kernel {
            Some(reason) => {
                as_the_kernel += 1;
                println!("  on the kernel's sockets too: {reason:#}");
            }
            None => {
                return Err(error.context(format!(
                    "round {round}, which the kernel's sockets survive (--seed {round} --rounds 1, in a world from seed {seed})"
                )));
            }
        }
    }
    let seconds = began.elapsed().as_secs();
    println!(
        "{rounds} rounds with {changes} changes from seed {seed} in {seconds} s: 0 wrong, {as_the_kernel} as on the kernel"
    );
    Ok(())
}

/// Runs a round on kernel sockets and returns its failure.
fn on_kernel(round: u64, told: &Told) -> Result<Option<anyhow::Error>> {
    // Let earlier programs in the lab finish.
    std::thread::sleep(Duration::from_millis(100));
    let lab = Lab::up(&["--queues", "4"])?.context("a lab")?;
    let mut world = World::begin(&lab, Stack::Kernel, round)?;
    Ok(world.round(round, told).err())
}
