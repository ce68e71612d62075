//! `fastsock man` and `fastsock completions`, generated from the options themselves.

use anyhow::Context;
use clap::Command;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct ManArgs {
    /// Write the pages of all commands into this directory instead of one page to standard output.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "page")]
    to: Option<PathBuf>,
    /// Command whose page is printed [default: `fastsock` itself].
    #[arg(value_name = "COMMAND")]
    page: Option<String>,
}

pub(crate) fn man(args: ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    if let Some(directory) = args.to {
        std::fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
        clap_mangen::generate_to(command, &directory).with_context(|| format!("{}", directory.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = command;
    // Sets each command's full name.
    command.build();
    let command = match &args.page {
        None => command,
        Some(name) => command
            .find_subcommand(name)
            .with_context(|| {
                format!(
                    "there is no command `{name}`: `fastsock \
                                                                             --help` lists the commands"
                )
            })?
            .clone(),
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot write the page")?;
    std::io::stdout().write_all(&page).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

#[derive(clap::Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// Shell to print completions for.
    shell: clap_complete::Shell,
}

pub(crate) fn completions(args: CompletionsArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "fastsock", &mut script);
    std::io::stdout().write_all(&script).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
