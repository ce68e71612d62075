//! The code blocks of scripts. As in packetdrill, they are one program, which python3 runs after the
//! script's last event. Names persist between blocks.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The program's beginning. `block` runs the code of a script's line. For an error, it writes that
/// line and a message to standard error, and ends the program.
const PRELUDE: &str = r#"
import inspect, re, sys, traceback
names = {}
def block(line, code):
    code = inspect.cleandoc(code)
    try:
        exec(compile(code, "block", "exec"), names)
    except Exception as error:
        at = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "block"]
        text = code.splitlines()[(at or [getattr(error, "lineno", 1)])[-1] - 1].strip()
        known = [f"{n} = {names[n]}" for n in dict.fromkeys(re.findall(r"\w+", text)) if isinstance(names.get(n), int)]
        where = f" (where {', '.join(known)})" if known else ""
        sys.exit(f"{line} {type(error).__name__}: {error}, in: {text}{where}")
"#;

/// The program that the code blocks form.
#[derive(Debug)]
pub struct Python(String);

/// Output of the program, and the failed block's line with what failed.
pub type Outcome = (String, Result<(), (u32, String)>);

impl Python {
    /// Makes a program with these names and without blocks.
    pub fn new(names: &[(&str, i64)]) -> Self {
        let mut python = Self(String::new());
        names.iter().for_each(|(name, value)| python.set(name, *value));
        python
    }

    /// Sets a name for the blocks that follow.
    pub fn set(&mut self, name: &str, value: i64) {
        let _ = writeln!(self.0, "names[{name:?}] = {value}");
    }

    /// Adds the block of a script's line.
    pub fn add(&mut self, line: u32, code: &str) {
        let bytes: String = code.bytes().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(self.0, "block({line}, bytes.fromhex('{bytes}').decode())");
    }

    /// Runs the program, if it has blocks.
    ///
    /// # Errors
    /// If python3 cannot be run.
    pub fn run(&self) -> std::io::Result<Outcome> {
        if !self.0.contains("block(") {
            return Ok((String::new(), Ok(())));
        }
        let mut child = Command::new("python3")
            .args(["-IS", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{PRELUDE}{}", self.0).as_bytes())?;
        drop(input);
        let done = child.wait_with_output()?;
        let (printed, failed) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let (line, message) = failed.trim().split_once(' ').unwrap_or_default();
        let failure = || (line.parse().unwrap_or(0), message.to_owned());
        Ok((printed.into_owned(), if done.status.success() { Ok(()) } else { Err(failure()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(blocks: &[&str]) -> Outcome {
        let mut python = Python::new(&[("TCPI_OPT_SYN_DATA", 32)]);
        python.set("tcpi_snd_cwnd", 10);
        (1..).zip(blocks).for_each(|(line, code)| python.add(line, code));
        python.run().unwrap()
    }

    #[test]
    fn blocks_share_names_and_need_no_indentation() {
        let blocks =
            [" cwnd = tcpi_snd_cwnd ", "\n    # a comment\n    assert cwnd == 10, cwnd\n    print(cwnd, 'x')\n"];
        assert_eq!(run(&blocks), ("10 x\n".into(), Ok(())));
        assert_eq!(run(&[]), (String::new(), Ok(())));
    }

    #[test]
    fn failures_report_line_and_values() {
        let failed = |code| run(&["pass", code]).1.unwrap_err();
        let text = "AssertionError: 10, in: assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd (where tcpi_snd_cwnd = 10)";
        assert_eq!(failed("\nassert tcpi_snd_cwnd == 11, tcpi_snd_cwnd"), (2, text.into()));
        assert!(failed("assert tcpi_nonsense == 1").1.contains("'tcpi_nonsense' is not defined"));
        assert!(failed("assert 1 ==").1.starts_with("SyntaxError"));
    }
}
