//! The tree's chores, one verb each: `cargo xtask help`. `make` has its own names for the most
//! common ones.

mod check;
mod labs;
mod nextest;
mod part;
mod parts;
mod proof;
mod run;
mod sources;
mod tools;
mod tree;
mod verbs;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask VERB [ARGUMENT…]

  test [PART…]           what `make test` runs: every deterministic test, in 15 minutes; without parts all of it
  proof [--again] [PART…]
                         what `make proof` runs: the long rest, part by part; goes on where the last run of this
                         commit stopped, --again begins again; the table goes to target/proof/PROOF-RUN.md
  proof --keep           writes that table into docs/PROOF-RUN.md
  parts                  lists the parts of both, a line each
  check [PART…]          what `make check` runs: format, sources, clippy, docs, deny
  sources                rules about sources and documents that no compiler checks
  tree [CRATE…]          the largest files, functions and types of a crate, and modules that import one another in a circle
  bench [--quick] [--keep] [PART…]
                         memory veth (raw short latency bulk proxy bodies flood) unmodified grid, each with a peer
                         measured in the same run; --keep writes README.md and docs/PERFORMANCE.md
  experiments [--quick | --smoke] [--keep] [PART…]
                         organisations messages fastsocket mtcp replay applications bulk peers; --keep writes
                         docs/EXPERIMENTS.md
  icount [--check | --record | SCENARIO…]
                         instructions per piece of work, by callgrind: benches/icount.md
  fuzz [--seconds S] [--seed N] [--stable] [TARGET…]
                         all fuzz targets, with the stable driver and with libFuzzer where cargo-fuzz is installed
  suites [--short] [SUITE…]
                         others' test suites under preload; --help has the options
  vm list | run KERNEL CARD | matrix [--quick] [--only PART] | fetch
                         other kernels and cards in QEMU
  deb [--test [SUITE…]]  Debian packages in target/debian; --test: in clean roots of Debian 12 and 13
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = match arguments.split_first() {
        Some((verb, rest)) => (verb.as_str(), rest),
        None => ("help", &[][..]),
    };
    let ended = match verb {
        "test" => parts::test(rest),
        "proof" => proof::proof(rest),
        "parts" => {
            proof::list();
            Ok(true)
        }
        "check" => check::check(rest),
        "sources" => sources::sources(),
        "tree" => tree::tree(rest),
        "bench" => verbs::bench(rest),
        "experiments" => verbs::experiments(rest),
        "icount" => verbs::icount(rest),
        "fuzz" => verbs::fuzz(rest),
        "suites" => verbs::suites(rest),
        "vm" => verbs::vm(rest),
        "deb" => verbs::deb(rest),
        "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(true)
        }
        _ => Err(format!("no verb '{verb}': cargo xtask help")),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}
