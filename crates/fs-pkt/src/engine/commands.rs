//! Shell commands of scripts: those that set sysctls or the interface, interpreted without a shell.

use super::{Engine, IFACE, SYN_CACHE};
use std::path::Path;

/// Programs without an effect here: the engine has no device queue, no kernel counters, no files.
/// They are not run, and the report lists them.
const NOT_RUN: &[&str] = &["tc", "nstat", "modprobe", "ethtool", "echo", "grep", "cat", "rm"];

impl Engine {
    /// Applies the settings to future connections.
    pub(super) fn apply_sysctls(&mut self) {
        // The size of the SYN cache is fixed when a stack is made.
        if self.sysctls.always_cookies != self.always_cookies && self.fds.is_empty() {
            self.always_cookies = self.sysctls.always_cookies;
            let now = self.instant(self.now);
            self.stack = Self::stack(&self.config, if self.always_cookies { 0 } else { SYN_CACHE });
            self.stack.set_now(now);
        }
        let tcp = self.sysctls.tcp.clone();
        self.stack.update_tcp(|config| *config = tcp);
    }

    /// Runs a command line. `Err` names the unsupported part.
    pub(super) fn run_command(&mut self, line: &str) -> Result<(), String> {
        for command in split(line) {
            self.run_one(&command)?;
        }
        self.apply_sysctls();
        Ok(())
    }

    fn run_one(&mut self, words: &[String]) -> Result<(), String> {
        let (words, file) = redirection(words);
        let Some((program, args)) = words.split_first() else { return Ok(()) };
        let name = Path::new(program).file_name().and_then(|n| n.to_str()).unwrap_or(program);
        match name {
            "sysctl" => self.sysctl(args),
            // Sysctls by their files' names. Its output, which restores them, need not be run.
            "set_sysctls.py" => args.iter().try_for_each(|arg| self.proc_setting(arg)),
            "echo" if file.as_deref().is_some_and(|f| f.starts_with("/proc/sys/")) => {
                self.proc_setting(&format!("{}={}", file.unwrap_or_default(), args.join(" ")))
            }
            "ip" => self.ip(args),
            _ if name.starts_with("sysctl_restore_") => Ok(()),
            _ if name.ends_with(".sh") => self.shell_file(program),
            "true" => Ok(()),
            // The engine's link already is first in, first out, without a rate.
            "tc" if args.ends_with(&["pfifo".into()]) || args.ends_with(&["pfifo_fast".into()]) => {
                self.sysctls.tcp.slow_start_pacing = false;
                Ok(())
            }
            // The queue discipline that paces CUBIC's segments.
            "tc" if args.ends_with(&["fq".into()]) => {
                self.sysctls.tcp.slow_start_pacing = true;
                Ok(())
            }
            "sleep" => self.sleep(args),
            _ if NOT_RUN.contains(&name) => {
                let line = words.join(" ");
                if !self.not_run.contains(&line) {
                    self.not_run.push(line);
                }
                Ok(())
            }
            _ => Err(format!("unknown command '{program}'")),
        }
    }

    /// `sysctl -q -w name=value …`
    fn sysctl(&mut self, args: &[String]) -> Result<(), String> {
        for arg in args.iter().filter(|arg| !arg.starts_with('-')) {
            // Without a value, sysctl only prints.
            let Some((name, value)) = arg.split_once('=') else { continue };
            self.sysctls.set(name.trim(), value.trim_matches(['"', '\'']))?;
        }
        Ok(())
    }

    /// `sleep 0.2`
    fn sleep(&mut self, args: &[String]) -> Result<(), String> {
        let seconds: Option<f64> = match args {
            [time] => time.strip_suffix('s').unwrap_or(time).parse().ok().filter(|s| (0.0..1e6).contains(s)),
            _ => None,
        };
        let seconds = seconds.ok_or_else(|| format!("unknown command 'sleep {}'", args.join(" ")))?;
        crate::run::target::Target::wait_until(self, self.now + (seconds * 1e6) as i64);
        Ok(())
    }

    fn proc_setting(&mut self, setting: &str) -> Result<(), String> {
        let setting = setting.strip_prefix("/proc/sys/").ok_or_else(|| format!("not a sysctl's file: {setting}"))?;
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("no value for {setting}"))?;
        self.sysctls.set(name, value)
    }

    /// Runs a shell script with settings, such as the public suites' `defaults.sh`, relative to the
    /// script's directory.
    fn shell_file(&mut self, path: &str) -> Result<(), String> {
        let full = self.directory.join(path);
        let text = match std::fs::read_to_string(&full) {
            Ok(text) => text,
            // The suite's own file, which scripts copied from the suite still name.
            Err(_) if path.ends_with("defaults.sh") => DEFAULTS.into(),
            Err(e) => return Err(format!("{path}: {e}")),
        };
        let text = text.replace("\\\n", " ");
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            for command in split(line) {
                self.run_one(&command).map_err(|e| format!("{path}: {e}"))?;
            }
        }
        Ok(())
    }

    /// `ip route change … mtu lock 1500`, `ip link set … mtu 1500`. There is no metrics cache.
    fn ip(&mut self, args: &[String]) -> Result<(), String> {
        let words: Vec<&str> = args.iter().map(String::as_str).filter(|w| !w.starts_with('-')).collect();
        match words.first() {
            // The cache is empty at the start; later commands are not run.
            Some(&"tcp_metrics") if self.now == 0 => Ok(()),
            Some(&"tcp_metrics") => {
                self.not_run.push(format!("ip {}", words.join(" ")));
                Ok(())
            }
            Some(&("link" | "route")) => {
                let mut rest = words.iter().skip_while(|w| **w != "mtu").skip(1).filter(|w| **w != "lock");
                let Some(mtu) = rest.next().and_then(|w| w.parse().ok()) else {
                    return Err(format!("unknown command 'ip {}'", words.join(" ")));
                };
                self.stack.update_interface(IFACE, |interface| interface.mtu = mtu);
                Ok(())
            }
            _ => Err(format!("unknown command 'ip {}'", words.join(" "))),
        }
    }
}

/// First lines of the public suite's scripts, for copies outside of the suite.
const DEFAULTS: &str = include_str!("../../../../tests/packet/defaults.sh");

/// Returns the words of each command of a line: separated by `;`, `&&`, `||` or line ends, with
/// quotes and `$((…))`.
fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars().peekable();
    let finish = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
        if let (Some(word), Some(command)) = (word.take(), commands.last_mut()) {
            command.push(word);
        }
    };
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('$', q) if q != Some('\'') && chars.peek() == Some(&'(') => {
                let rest: String = chars.clone().collect();
                let end = rest.find("))").map(|n| n + 2);
                let value = end.and_then(|n| arithmetic(rest[..n].strip_prefix("((")?.strip_suffix("))")?));
                match (value, end) {
                    (Some(value), Some(n)) => {
                        word.get_or_insert_default().push_str(&value.to_string());
                        for _ in 0..n {
                            chars.next();
                        }
                    }
                    _ => word.get_or_insert_default().push('$'),
                }
            }
            (_, Some(q)) if c == q => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            ('\\', None) => {
                if let Some(next) = chars.next().filter(|n| *n != '\n') {
                    word.get_or_insert_default().push(next);
                }
            }
            (';' | '\n', None) => {
                finish(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            ('&' | '|', None) if word.as_deref() != Some(">") && !word.as_deref().is_some_and(|w| w.ends_with('>')) => {
                finish(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            _ if c.is_whitespace() => finish(&mut word, &mut commands),
            _ => word.get_or_insert_default().push(c),
        }
    }
    finish(&mut word, &mut commands);
    commands.retain(|command| !command.is_empty());
    commands
}

/// Evaluates a product of numbers.
fn arithmetic(text: &str) -> Option<i64> {
    text.split('*').map(|factor| factor.trim().parse::<i64>().ok()).product()
}

/// Returns a command's words without redirections, and the file that its output is redirected to.
fn redirection(words: &[String]) -> (Vec<String>, Option<String>) {
    let mut kept = Vec::new();
    let mut file = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.find('>') {
            Some(at) if word[..at].chars().all(|c| c.is_ascii_digit()) => {
                let to = word[at..].trim_start_matches('>');
                let to = if to.is_empty() { words.next().cloned() } else { Some(to.to_string()) };
                file = file.or(to);
            }
            _ => kept.push(word.clone()),
        }
    }
    (kept, file)
}
