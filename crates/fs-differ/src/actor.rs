//! An actor: a process or a thread that executes commanded steps and returns the result of each.

use crate::awake::Watched;
use crate::interpret::perform;
use crate::program::{ACTORS, Call, Mode, Program};
use crate::sys::{calls, names, process, progress, storm};

/// The pipes of all actors and the program, which every actor's process inherits.
#[derive(Clone, Debug)]
pub struct Stage {
    /// For each actor, the pipe for its commands.
    pub commands: Vec<(i32, i32)>,
    /// For each actor, the pipe for its results.
    pub replies: Vec<(i32, i32)>,
    /// The program's text, for exec.
    pub text: i32,
}

impl Stage {
    /// Makes the pipes of all actors.
    pub fn new(text: &str) -> Stage {
        let pipes = || (0..ACTORS).map(|_| process::own_pipe()).collect();
        Stage { commands: pipes(), replies: pipes(), text: process::keep_text(text) }
    }

    /// Closes them.
    pub fn close(&self) {
        for (read, write) in self.commands.iter().chain(&self.replies) {
            process::close(*read);
            process::close(*write);
        }
        process::close(self.text);
    }

    fn words(&self, actor: usize) -> Vec<String> {
        let numbers = |list: &[(i32, i32)]| {
            list.iter().map(|(read, write)| format!("{read},{write}")).collect::<Vec<_>>().join(":")
        };
        let slots: Vec<String> = calls::slots().iter().map(i32::to_string).collect();
        vec![
            "fs-differ".into(),
            "actor".into(),
            "--".into(),
            actor.to_string(),
            numbers(&self.commands),
            numbers(&self.replies),
            self.text.to_string(),
            names::base().to_string(),
            progress::file().to_string(),
            slots.join(","),
        ]
    }

    fn reply(&self, actor: usize, text: &str) {
        let mut bytes = (std::process::id()).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        process::write_frame(self.replies[actor].1, &bytes);
    }
}

/// Continues as the actor of a process that called exec.
pub fn resume(words: &[String]) -> Option<()> {
    let pairs = |word: &String| -> Option<Vec<(i32, i32)>> {
        word.split(':')
            .map(|pair| {
                let (read, write) = pair.split_once(',')?;
                Some((read.parse().ok()?, write.parse().ok()?))
            })
            .collect()
    };
    let [actor, commands, replies, text, base, progress, slots] = words else { return None };
    let stage = Stage { commands: pairs(commands)?, replies: pairs(replies)?, text: text.parse().ok()? };
    names::set_base(base.parse().ok()?);
    progress::map(progress.parse().ok()?);
    for (index, descriptor) in slots.split(',').enumerate() {
        calls::put(index as i32, descriptor.parse().ok()?);
    }
    let program = Program::parse(&process::kept_text(stage.text)).ok()?;
    let actor = actor.parse().ok()?;
    calls::handler(libc::SIGPIPE, 0);
    stage.reply(actor, "ok");
    run(actor, &stage, &program)
}

/// Executes steps until the command to end.
pub fn run(actor: usize, stage: &Stage, program: &Program) -> ! {
    if program.mode == Mode::Signals {
        storm::begin(program.steps.iter().any(|step| step.call == Call::Thread));
    }
    loop {
        let mut number = [0; 4];
        if !process::read_whole(stage.commands[actor].0, &mut number) {
            process::exit(0);
        }
        let number = u32::from_le_bytes(number) as usize;
        let Some(step) = program.steps.get(number) else { process::leave() };
        progress::report();
        let other = step.args.first().map_or(0, |arg| *arg as usize).min(ACTORS - 1);
        match step.call {
            Call::Fork => {
                let forked = process::fork();
                if forked.value == 0 {
                    storm::forked();
                    stage.reply(other, "begins");
                    run(other, stage, program);
                }
                let text = if forked.is_ok() { "ok".into() } else { forked.text() };
                stage.reply(actor, &text);
            }
            Call::Thread => {
                let (stage_of, program_of) = (stage.clone(), program.clone());
                let begun = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
                    stage_of.reply(other, "begins");
                    run(other, &stage_of, &program_of)
                });
                stage.reply(actor, if begun.is_ok() { "ok" } else { "failed" });
            }
            Call::Exec | Call::ExecPlain => {
                if step.call != Call::Exec {
                    process::forget_preload();
                }
                let text = process::exec(&stage.words(actor));
                stage.reply(actor, &text);
            }
            Call::Exit => process::exit(0),
            _ => {
                let watched = Watched::begin();
                let mut text = perform(number, step);
                // Other calls have work of their own: bytes to move, memory to map.
                let only_waits = matches!(step.call, Call::Poll | Call::Wait | Call::Accept | Call::Recv);
                if only_waits && watched.has_spun() {
                    text.push_str(" +spins");
                }
                stage.reply(actor, &text);
            }
        }
    }
}
