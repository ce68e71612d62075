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

use anyhow::{Context, Result, bail, ensure};
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
    let (began, mut rounds, mut changes, mut worked, mut as_the_kernel) = (Instant::now(), 0, 0, 0, 0);
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
                let before = world.worked();
                let made = world.round(round, &args.told);
                worked += world.worked() - before;
                match made {
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
            Some(reason) if kind(&reason).is_some() && kind(&reason) == kind(&error) => {
                as_the_kernel += 1;
                println!("  on the kernel's sockets too: {reason:#}");
            }
            other => {
                if let Some(reason) = other {
                    println!("  on the kernel's sockets it fails in another way: {reason:#}");
                }
                return Err(error.context(format!(
                    "round {round}, which the kernel's sockets survive (--seed {round} --rounds 1, in a world from seed {seed})"
                )));
            }
        }
    }
    let seconds = began.elapsed().as_secs();
    println!(
        "{rounds} rounds with {changes} changes from seed {seed} in {seconds} s: 0 wrong, {as_the_kernel} as on the kernel; {worked} changes worked"
    );
    ensure!(
        rounds == 0 || as_the_kernel < rounds,
        "the kernel's sockets fail in every round as well: nothing is shown"
    );
    // A few may all be impossible in their states.
    ensure!(changes < 20 || worked * 2 >= changes, "{worked} of {changes} changes worked: is a command missing?");
    Ok(())
}

/// The ways in which a round fails, as texts of the error. The first that it contains counts.
const KINDS: [&str; 9] = [
    "is not what was sent",
    "other bytes came back",
    "it ends after",
    "refused",
    "has sent",
    "were reset",
    "reset",
    "do not go on",
    "an end has ended",
];

/// Returns the kind of a failure, so that one on the kernel's sockets excuses no other one.
fn kind(error: &anyhow::Error) -> Option<usize> {
    let text = format!("{error:#}");
    KINDS.iter().position(|kind| text.contains(kind))
}

/// Runs a round on kernel sockets and returns its failure.
fn on_kernel(round: u64, told: &Told) -> Result<Option<anyhow::Error>> {
    // Let earlier programs in the lab finish.
    std::thread::sleep(Duration::from_millis(100));
    let lab = Lab::up(&["--queues", "4"])?.context("a lab")?;
    let mut world = World::begin(&lab, Stack::Kernel, round)?;
    Ok(world.round(round, told).err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn kernel_excuses_the_same_failure_only() {
        let lost =
            anyhow!("10.77.1.2:7410 after 81: byte 81 is not what was sent").context("after\n  ip link set down");
        let reset = anyhow!("[fd77:1::2]:7411 after 5: read of byte 5: Connection reset by peer (os error 104)");
        let late = anyhow!("these do not go on within 60s: new:10.77.1.2:7410 (3 then 3)");
        assert_eq!(kind(&lost), kind(&anyhow!("10.77.2.2:7410 after 7: byte 9 is not what was sent")));
        assert_eq!(kind(&late), kind(&anyhow!("these do not go on within 60s: 10.77.2.2:7410 (0 then 0)")));
        assert!(kind(&lost) != kind(&reset) && kind(&reset) != kind(&late) && kind(&lost) != kind(&late));
    }
}
