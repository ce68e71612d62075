//! Formats a program as Python, for reading, changing and running it separately: `fs-differ python
//! FILE >x.py`, then `python3 x.py` and `fastsock run -- python3 x.py`. Calls use ctypes, so that
//! each step is exactly the C library's call.

use crate::program::{Kind, Program, Step};
use crate::values::{OPTION, OPTIONS, name_of};
use std::fmt::Write;

const HEAD: &str = include_str!("emit.py");

/// Returns the program as Python.
pub fn python(program: &Program) -> String {
    let mut text = HEAD.to_owned();
    let _ = writeln!(text, "\n# {}", program.head());
    for (number, step) in program.steps.iter().enumerate() {
        let _ = writeln!(
            text,
            "step({number}, {}, {:<60} # {step}",
            step.actor,
            format!("{:?}, {})", step.call.name(), arguments(step))
        );
    }
    text.push_str("finish()\n");
    text
}

fn arguments(step: &Step) -> String {
    let one = |(kind, arg): (&Kind, &i32)| match kind {
        Kind::Slot | Kind::New | Kind::Number | Kind::Actor => arg.to_string(),
        Kind::One(table) if std::ptr::eq(*table, OPTION) => {
            format!("{:?}", OPTIONS.get(*arg as usize).unwrap_or(&(0, 0)))
        }
        Kind::One(table) => format!("{:?}", name_of(table, *arg).unwrap_or("?")),
        Kind::Bits(_) => format!("{arg:#x}"),
    };
    step.call.kinds().iter().zip(&step.args).map(one).collect::<Vec<_>>().join(", ")
}
