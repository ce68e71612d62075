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

/// The end of fastsock(1), which is not generated from the options.
const MORE: &str = r#".SH EXAMPLES
.TP
.B fastsock enable \-\-now nginx redis\-server
Puts two services on fastsock: their connections to each other get rings.
.TP
.B fastsock why 6379
Tells in one sentence whether the service at this port is accelerated, and why not.
.TP
.B fastsock disable \-\-now nginx
Takes a service off again.
.TP
.B fastsock run \-\- curl http://127.0.0.1/
Runs one program.
.SH FILES
.TP
.I /etc/fastsock/fastsock.toml
The configuration of the system's daemon.
.TP
.I /run/fastsock/control.sock
Its control socket.
.TP
.I /usr/lib/fastsock/libfastsock.so
The library that programs load.
.TP
.I /etc/systemd/system/SERVICE.service.d/50\-fastsock.conf
A drop\-in of
.BR "fastsock enable" .
.SH SEE ALSO
.BR fastsock.toml (5),
.BR fastsock\-counters (7),
.BR libfastsock.so (7),
.BR systemd.unit (5)
"#;

pub(crate) fn man(args: ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    if let Some(directory) = args.to {
        std::fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
        clap_mangen::generate_to(command, &directory).with_context(|| format!("{}", directory.display()))?;
        let main = directory.join("fastsock.1");
        let page = std::fs::read_to_string(&main).with_context(|| format!("{}", main.display()))?;
        std::fs::write(&main, page + MORE).with_context(|| format!("{}", main.display()))?;
        let counters = directory.join("fastsock-counters.7");
        std::fs::write(&counters, crate::counters::manual()).with_context(|| format!("{}", counters.display()))?;
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
