//! Writes the manual pages into a folder: `man DIRECTORY`. fs-proxy(8) is made from the options,
//! fs-proxy.toml(5) from the tables of docs/PROXY.md, which a test compares with the types.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The end of fs-proxy(8).
const MORE: &str = r#".SH SIGNALS
.TP
.B SIGHUP
Reads the configuration again. If it has an error, the old one stays in use, and the log has the
reason.
.TP
.B SIGUSR1
Opens the access log again. After SIGUSR2 the process before has the log open too, until it ends. Under systemd,
.B systemctl kill \-\-signal=SIGUSR1 fs\-proxy
signals both.
.TP
.B SIGUSR2
Starts the program again and gives the new process the listening sockets. No connection is refused.
Open connections end in the old process. With
.B \-\-stack fastsock
the new process uses kernel sockets until the old one has ended. Refused on a shared device, with
AF_PACKET, and after a device fell back to a slower XDP mode than
.B \-\-link
names; the log has the reason.
.TP
.BR SIGTERM ", " SIGINT ", " SIGQUIT
Accepts no more connections. Open connections have
.I timeouts.drain
(10 s) to end. A second signal ends the process at once.
.SH EXIT STATUS
0 after a signal; 1 after an error, which is printed; 2 for wrong options.
.SH FILES
.TP
.I /etc/fs\-proxy/fs\-proxy.toml
The configuration of
.IR fs\-proxy.service ,
which is neither enabled nor started by the package.
.TP
.I /etc/logrotate.d/fs\-proxy
The rotation of
.IR /var/log/fs\-proxy/*.log .
.TP
.I /usr/share/doc/fastsock\-proxy/PROXY.md
The guide.
.SH SEE ALSO
.BR fs\-proxy.toml (5),
.BR systemd.exec (5)
"#;

const HEAD: &str = r#".TH FS-PROXY.TOML 5
.SH NAME
fs\-proxy.toml \- configuration of fs\-proxy
.SH SYNOPSIS
.I /etc/fs\-proxy/fs\-proxy.toml
.SH DESCRIPTION
.BR fs\-proxy (8)
reads this TOML file at its start and after SIGHUP. Every key is checked, and an error names its
line. A key of a table is written with the table's name:
.I listener.mode
is the key
.I mode
of a table
.IR [[listener]] .
"#;

const TAIL: &str = r#".SH EXAMPLE
.EX
[[listener]]
address = \(dq0.0.0.0:80\(dq
mode = \(dqhttp\(dq
upstream = \(dqweb\(dq

[[upstream]]
name = \(dqweb\(dq
servers = [\(dq10.0.0.1:80\(dq, \(dq10.0.0.2:80\(dq]
balance = \(dqleast_connections\(dq
health_check = { path = \(dq/health\(dq }
.EE
.SH SEE ALSO
.BR fs\-proxy (8)
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: man DIRECTORY")?);
    std::fs::create_dir_all(&folder)?;
    let mut command = fs_proxy::command();
    command.build();
    pages(&command, MORE, &folder)?;
    let keys = keys(include_str!("../../../docs/PROXY.md"))?;
    std::fs::write(folder.join("fs-proxy.toml.5"), format!("{HEAD}{keys}{TAIL}"))?;
    Ok(())
}

/// Writes the page of a command, with `more` at its end, and of its subcommands.
fn pages(command: &clap::Command, more: &str, folder: &Path) -> std::io::Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).section("8").render(&mut page)?;
    page.extend_from_slice(more.as_bytes());
    let name = command.get_display_name().unwrap_or(command.get_name());
    std::fs::write(folder.join(format!("{name}.8")), page)?;
    command.get_subcommands().try_for_each(|command| pages(command, "", folder))
}

/// Returns the tables of the section "Every key" as sections of a manual page.
fn keys(guide: &str) -> Result<String, Box<dyn std::error::Error>> {
    let section = guide.split("\n## Every key\n").nth(1).ok_or("docs/PROXY.md has no section \"Every key\"")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut page = String::from(".SH THE WHOLE FILE\n");
    for line in section.lines() {
        if let Some(title) = line.strip_prefix("### ") {
            writeln!(page, ".SH {}", roff(&title.replace('`', "")))?;
        } else if line.starts_with("| `") {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [key, default, meaning] = cells[..] else { return Err(format!("not three cells: {line}").into()) };
            writeln!(page, ".TP\n.B {}\n{}", roff(&key.replace('`', "")), roff(&meaning.replace('`', "")))?;
            match default {
                "" => {}
                "required" => writeln!(page, "(required)")?,
                default => writeln!(page, "(default: {})", roff(default))?,
            }
        } else if !line.is_empty() && !line.starts_with('|') {
            writeln!(page, "{}", roff(line))?;
        }
    }
    Ok(page)
}

/// Escapes a line's text.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
