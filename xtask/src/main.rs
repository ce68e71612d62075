//! The tree's chores, one verb each: `cargo xtask help`. `make` has the same under the names that users know.

mod nextest;
mod part;
mod parts;
mod proof;
mod run;
mod sources;
mod tree;

use std::process::ExitCode;

const HELP: &str = "\
usage: cargo xtask VERB [ARGUMENT…]

  test [PART…]           what `make test` runs: every deterministic test, in 15 minutes; without parts all of it
  proof [--again] [PART…]
                         what `make proof` runs: the long rest, part by part; goes on where the last run of this
                         commit stopped, --again begins anew; the table goes to target/proof/PROOF-RUN.md
  parts                  lists the parts of both, a line each
  sources                rules about sources and documents that no compiler checks
  tree [CRATE…]          the largest files, functions and types of a crate, and modules that import one another in a circle
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
            parts::list();
            Ok(true)
        }
        "sources" => sources::sources(),
        "tree" => tree::tree(rest),
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
