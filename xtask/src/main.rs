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

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Tests, checks, measures and packages the tree. `make` has its own names for the most common
/// verbs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs what `make test` runs: every deterministic test, in 15 minutes
    Test {
        /// The parts to run; by default all. `cargo xtask parts` lists them
        #[arg(value_name = "PART")]
        parts: Vec<String>,
    },
    /// Runs what `make proof` runs: the long rest of the tests, part by part
    ///
    /// Parts that have passed on this commit are skipped. The results are written to
    /// target/proof/PROOF-RUN.md.
    Proof(proof::Options),
    /// Lists the parts of both, a line each
    Parts,
    /// Runs what `make check` runs: format, sources, clippy, docs, deny
    Check {
        /// The parts to run; by default all
        #[arg(value_name = "PART")]
        parts: Vec<String>,
    },
    /// Checks rules about sources and documents that no compiler checks
    Sources,
    /// Prints the largest files, functions and types of crates, and modules that import one another
    /// in a circle
    Tree {
        /// The crates; by default those of the data path
        #[arg(value_name = "CRATE")]
        crates: Vec<String>,
    },
    /// Measures figures, each with a peer measured in the same run
    Bench(verbs::BenchOptions),
    /// Runs the experiments of the papers next to the kernel and other stacks
    Experiments(verbs::ExperimentsOptions),
    /// Counts instructions per piece of work with callgrind: benches/icount.md
    ///
    /// `cargo xtask icount --help` has the options.
    #[command(disable_help_flag = true)]
    Icount {
        #[command(flatten)]
        program: PassedOn,
    },
    /// Runs all fuzz targets, with the stable driver, and with libFuzzer where cargo-fuzz is
    /// installed
    Fuzz(verbs::FuzzOptions),
    /// Runs other projects' test suites under preload
    ///
    /// `cargo xtask suites --help` has the options.
    #[command(disable_help_flag = true)]
    Suites {
        #[command(flatten)]
        program: PassedOn,
    },
    /// Runs other kernels and cards in QEMU
    ///
    /// `cargo xtask vm --help` has the options.
    #[command(disable_help_flag = true)]
    Vm {
        #[command(flatten)]
        program: PassedOn,
    },
    /// Builds the Debian packages in target/debian
    Deb(verbs::DebOptions),
}

/// Arguments that another program parses.
#[derive(Debug, clap::Args)]
struct PassedOn {
    /// Arguments of the program that does it
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    let Some(verb) = Arguments::parse().verb else {
        print!("{}", Arguments::command().render_help());
        return ExitCode::SUCCESS;
    };
    let ended = match &verb {
        Verb::Test { parts } => parts::test(parts),
        Verb::Proof(options) => proof::proof(options),
        Verb::Parts => {
            proof::list();
            Ok(true)
        }
        Verb::Check { parts } => check::check(parts),
        Verb::Sources => sources::sources(),
        Verb::Tree { crates } => tree::tree(crates),
        Verb::Bench(options) => verbs::bench(options),
        Verb::Experiments(options) => verbs::experiments(options),
        Verb::Icount { program } => verbs::icount(&program.arguments),
        Verb::Fuzz(options) => verbs::fuzz(options),
        Verb::Suites { program } => verbs::suites(&program.arguments),
        Verb::Vm { program } => verbs::vm(&program.arguments),
        Verb::Deb(options) => verbs::deb(options),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Verb, clap::Error> {
        let arguments = Arguments::try_parse_from(std::iter::once("xtask").chain(line.split(' ')))?;
        Ok(arguments.verb.expect("a verb"))
    }

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn passes_arguments_on_to_other_programs() {
        for (line, expected) in [
            ("icount --check", &["--check"][..]),
            ("suites --help", &["--help"]),
            ("vm matrix --quick --only 6.12/virtio4", &["matrix", "--quick", "--only", "6.12/virtio4"]),
        ] {
            let Ok(Verb::Icount { program } | Verb::Suites { program } | Verb::Vm { program }) = parse(line) else {
                panic!("{line}");
            };
            assert_eq!(program.arguments, expected);
        }
    }

    #[test]
    fn refuses_unknown_arguments() {
        for line in [
            "bench --slow",
            "bench no-part",
            "experiments --smoke --keep",
            "fuzz --seconds many",
            "deb --quick",
            "no-verb",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("bench --quick --dry-run raw short").is_ok());
        assert!(parse("deb --test install remove").is_ok());
    }
}
