//! The processes of a measurement, and a daemon of their own.

use anyhow::{Context, bail};
use fs_pairs::CONTROL_VARIABLE;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory with a daemon. Dropping it ends the daemon.
pub(super) struct Lab {
    pub(super) folder: PathBuf,
    library: PathBuf,
    daemon: Child,
}

impl Lab {
    pub(super) fn start(library: &Path) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("fastsock-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut command = own(&["up"])?;
        command.arg("--control").arg(folder.join("control.sock")).env_remove("NOTIFY_SOCKET");
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a daemon")?;
        let mut lab = Self { folder, library: library.to_owned(), daemon };
        if line_of(&mut lab.daemon)? != "ready" {
            bail!("the daemon did not start");
        }
        Ok(lab)
    }

    pub(super) fn control(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// Sets a program's library, or no library.
    pub(super) fn with<'a>(&self, command: &'a mut Command, ring: bool) -> &'a mut Command {
        command.env_remove("LD_PRELOAD").env(CONTROL_VARIABLE, self.control()).stdin(Stdio::null());
        if ring {
            command.env("LD_PRELOAD", &self.library);
        }
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        end(&mut self.daemon);
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// A child that is killed when this is dropped.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn end(child: &mut Child) {
    let _dead = child.kill().and_then(|()| child.wait());
}

/// Returns a command that runs this program with a subcommand.
pub(super) fn own(args: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find the path of this program")?);
    command.args(args).env_remove("LD_PRELOAD");
    Ok(command)
}

/// Returns the next line that a child prints.
pub(super) fn line_of(child: &mut Child) -> anyhow::Result<String> {
    let mut line = String::new();
    let output = child.stdout.as_mut().context("a child has no output")?;
    BufReader::new(output).read_line(&mut line).context("cannot read the output of a child")?;
    Ok(line.trim_end().to_owned())
}
