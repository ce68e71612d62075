//! The language of programs: steps, each a call of one actor with numbers as arguments. A program
//! is printed as text, one step per line, and parsed from it.

use crate::values::*;
use anyhow::{Context, Result, bail};
use std::fmt;

/// Meaning of an argument, which determines its notation.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A descriptor: the number in a slot of the actor's process, `s3`; -1 for an empty slot.
    Slot,
    /// The slot for a call's new descriptor, `>s3`.
    New,
    /// One of these names.
    One(&'static [Named]),
    /// A union of these flags.
    Bits(&'static [Named]),
    /// A number.
    Number,
    /// An actor, `@1`.
    Actor,
}

macro_rules! calls {
    ($($name:ident $text:literal ($($arg:expr),*)),* $(,)?) => {
        /// The call of a step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Call { $(#[allow(missing_docs)] $name),* }

        impl Call {
            /// All calls.
            pub const ALL: &'static [Call] = &[$(Call::$name),*];

            /// Returns its name in the text.
            pub fn name(self) -> &'static str {
                match self { $(Call::$name => $text),* }
            }

            /// Returns the meanings of its arguments.
            pub fn kinds(self) -> &'static [Kind] {
                use Kind::*;
                match self { $(Call::$name => const { &[$($arg),*] }),* }
            }
        }
    };
}

calls! {
    // Descriptors
    Socket "socket" (New, One(FAMILY), Bits(MAKE)),
    Pair "socketpair" (New, New, Bits(MAKE)),
    Pipe "pipe" (New, New, Bits(MAKE)),
    File "memfd" (New, Number),
    Close "close" (Slot),
    CloseRange "close_range" (Slot, Slot),
    Dup "dup" (Slot, New),
    Dup2 "dup2" (Slot, Slot),
    Dup3 "dup3" (Slot, Slot, One(CLOEXEC)),
    DupFd "f_dupfd" (Slot, New, One(CLOEXEC)),
    GetFl "f_getfl" (Slot),
    SetFl "f_setfl" (Slot, Bits(MAKE)),
    GetFd "f_getfd" (Slot),
    SetFd "f_setfd" (Slot, One(CLOEXEC)),
    FioNbio "fionbio" (Slot, Number),
    Seek "lseek" (Slot),
    Stat "fstat" (Slot),
    // Names
    Bind "bind" (Slot, One(HOST), One(PORT)),
    Listen "listen" (Slot, Number),
    Connect "connect" (Slot, One(HOST), One(PORT)),
    Accept "accept" (Slot, New, One(ACCEPT), Bits(MAKE)),
    Name "getsockname" (Slot),
    Peer "getpeername" (Slot),
    // Bytes
    Send "send" (Slot, One(SEND), Number, Bits(MSG)),
    Recv "recv" (Slot, One(RECV), Number, Bits(MSG)),
    Fill "fill" (Slot, Number),
    Drain "drain" (Slot),
    NameLength "recvmsg_name" (Slot, Number),
    SendFile "sendfile" (Slot, Slot, Number),
    Splice "splice" (Slot, Slot, Number),
    Shutdown "shutdown" (Slot, One(HOW)),
    Ioctl "ioctl" (Slot, One(IOCTL)),
    SetOption "setsockopt" (Slot, One(OPTION), Number),
    GetOption "getsockopt" (Slot, One(OPTION)),
    SetTimeout "timeout" (Slot, One(TIMEOUT), Number),
    // Readiness
    Poll "poll" (Slot, Slot, Bits(POLL), Number, One(POLLER)),
    Epoll "epoll_create" (New, Bits(MAKE)),
    Ctl "epoll_ctl" (Slot, One(CTL), Slot, Bits(EVENTS)),
    Wait "epoll_wait" (Slot, Number, Number, One(WAIT)),
    // Processes
    Fork "fork" (Actor),
    Thread "thread" (Actor),
    Exec "exec" (),
    ExecPlain "exec_plain" (),
    Spawn "spawn" (Slot),
    Job "job" (Slot, One(JOB)),
    JobEnd "job_end" (),
    Exit "exit" (),
    Signal "signal" (Actor, One(SIGNAL)),
    Handler "handler" (One(SIGNAL), One(HANDLER)),
    Give "give" (Slot, Slot),
    Take "take" (Slot, New),
    NoFile "nofile" (Number),
    Pause "pause" (Number),
    // Signals at any instant
    React "react" (One(DOES), Slot, One(INSTALLED)),
    Timer "timer" (One(CLOCK), Number, Number),
    StopTimer "timer_stop" (),
    Hand "hand" (New, New),
    Tally "tally" (Slot),
    Serve "serve" (Slot, Number, One(WAY), One(READER)),
    Dial "dial" (One(HOST), One(PORT), Number, Number, One(WAY), One(ANSWER)),
    Churn "churn" (Slot, Number, Bits(CHURN)),
    Brood "brood" (Number, Number, One(NEWS)),
    Doze "doze" (Slot, Number, One(DOZE)),
    ReactChild "react_child" (One(DOES), Slot, One(INSTALLED)),
    // Event loops with many connections
    Calls "calls" (Number),
    ServeLoop "serve_loop" (Slot, Number, Bits(LOOP)),
    DialLoop "dial_loop" (One(HOST), One(PORT), Number, Number, Number, Number, Bits(LOOP)),
}

/// Number of slots of a process.
pub const SLOTS: usize = 16;

/// Maximum number of actors of a program.
pub const ACTORS: usize = 5;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The step's actor.
    pub actor: u8,
    /// The step's call.
    pub call: Call,
    /// The step's arguments: as many as `call.kinds()`.
    pub args: Vec<i32>,
}

impl Step {
    /// Returns true if the call may wait for another actor. All other calls complete by themselves,
    /// on a machine of any load.
    pub fn may_wait(&self) -> bool {
        let arg = |i: usize| self.args.get(i).copied().unwrap_or(0);
        let no_wait = |flags: i32| flags & libc::MSG_DONTWAIT != 0;
        match self.call {
            Call::Send => arg(1) < 2 || !no_wait(arg(3)),
            Call::Recv => arg(1) < 2 || !no_wait(arg(3)),
            Call::Poll => arg(3) != 0,
            Call::Wait => arg(2) != 0,
            Call::Accept | Call::Connect | Call::SendFile | Call::Splice => true,
            // A lingering close waits for the peer.
            Call::Close | Call::CloseRange | Call::Dup2 | Call::Dup3 => true,
            // An actor that has ended does not reply, nor does a stopped one.
            Call::Exit => true,
            _ => false,
        }
    }
}

/// Execution mode of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By the runner itself: one actor, and no call may block.
    #[default]
    Alone,
    /// By processes and threads, one step at a time: each is complete, or observed to block, before
    /// the next begins.
    Ordered,
    /// By processes and threads, each executing its own steps as fast as possible.
    Racing,
    /// Racing, with a timer's signals at any instant.
    Signals,
}

const MODES: &[(&str, Mode)] =
    &[("alone", Mode::Alone), ("ordered", Mode::Ordered), ("racing", Mode::Racing), ("signals", Mode::Signals)];

impl Mode {
    /// Returns true if each actor executes its own steps as fast as possible.
    pub fn races(self) -> bool {
        matches!(self, Mode::Racing | Mode::Signals)
    }

    fn name(self) -> &'static str {
        MODES.iter().find(|(_, mode)| *mode == self).map_or("", |(name, _)| name)
    }
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// The generator's profile, which is only part of the name.
    pub profile: String,
    /// The program's seed.
    pub seed: u64,
    /// The program's execution mode.
    pub mode: Mode,
    /// The program's steps, in order.
    pub steps: Vec<Step>,
}

impl Program {
    /// Returns the first line of its text.
    pub fn head(&self) -> String {
        format!("program profile={} seed={} mode={}", self.profile, self.seed, self.mode.name())
    }

    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Result<Program> {
        let mut program = Program::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or("").trim();
            let mut words = line.split_whitespace();
            let Some(first) = words.next() else { continue };
            match first {
                "program" => {
                    for word in words {
                        match word.split_once('=') {
                            Some(("profile", value)) => program.profile = value.into(),
                            Some(("seed", value)) => program.seed = value.parse().context("seed")?,
                            Some(("mode", value)) => {
                                let known = MODES.iter().find(|(name, _)| *name == value);
                                program.mode = known.context("mode")?.1;
                            }
                            _ => bail!("{line}: what is {word}?"),
                        }
                    }
                }
                _ => program.steps.push(step(line).with_context(|| line.to_owned())?),
            }
        }
        Ok(program)
    }
}

fn step(line: &str) -> Result<Step> {
    let mut words = line.split_whitespace();
    let actor = words.next().and_then(|word| word.strip_suffix(':')).context("no actor")?.parse()?;
    let name = words.next().context("no call")?;
    let call = *Call::ALL.iter().find(|call| call.name() == name).context("no such call")?;
    let mut args = Vec::new();
    for kind in call.kinds() {
        let word = words.next().context("too few arguments")?;
        args.push(match kind {
            Kind::Slot => slot(word.strip_prefix('s'))?,
            Kind::New => slot(word.strip_prefix(">s"))?,
            Kind::One(table) => number_of(table, word).context("not known")?,
            Kind::Bits(table) => bits_of(table, word).context("not known")?,
            Kind::Number => word.parse()?,
            Kind::Actor => word.strip_prefix('@').context("no actor")?.parse()?,
        });
    }
    if words.next().is_some() {
        bail!("too many arguments");
    }
    if usize::from(actor) >= ACTORS {
        bail!("too many actors");
    }
    Ok(Step { actor, call, args })
}

fn slot(word: Option<&str>) -> Result<i32> {
    let number: i32 = word.context("no slot")?.parse()?;
    if !(0..SLOTS as i32).contains(&number) {
        bail!("slots are 0 to {}", SLOTS - 1);
    }
    Ok(number)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.actor, self.call.name())?;
        for (kind, arg) in self.call.kinds().iter().zip(&self.args) {
            match kind {
                Kind::Slot => write!(f, " s{arg}")?,
                Kind::New => write!(f, " >s{arg}")?,
                Kind::One(table) => write!(f, " {}", name_of(table, *arg).unwrap_or("?"))?,
                Kind::Bits(table) => write!(f, " {}", bits(table, *arg))?,
                Kind::Number => write!(f, " {arg}")?,
                Kind::Actor => write!(f, " @{arg}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.head())?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}
