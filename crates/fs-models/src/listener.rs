//! Listeners that accept from two carriers (`fs-compat/src/net/tcp_listener.rs`): each has a queue of
//! its core's connections, and all share the kernel's queue.
//!
//! A task asks its core first, and the kernel first at every `kernel_first`-th poll. A task that gets
//! nothing waits for both. Connections come in any order, tasks are cancelled and accept again, and
//! listeners are closed. A closed listener's connections go to another one.

use crate::Model;

/// Listeners, each on a core of its own.
const LISTENERS: usize = 2;

/// The rules and the model's size.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The listener of each task.
    pub tasks: Vec<usize>,
    /// Connections that arrive at a core, and at the kernel.
    pub comes: [u8; 2],
    /// Number of polls of which one asks the kernel first.
    pub kernel_first: u8,
    /// Tasks may stop accepting, and start again.
    pub cancels: bool,
    /// Listeners may be closed.
    pub closes: bool,
    /// Left out: the kernel's readiness wakes every task that waits, not only the last one.
    pub wakes_last: bool,
    /// Left out: a task that waits has asked both carriers.
    pub asks_core_only: bool,
    /// Left out: some polls ask the kernel first.
    pub core_first: bool,
    /// Left out: the queued connections of a closed listener move to another one.
    pub drops_at_close: bool,
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// The task will poll.
    Polls,
    /// The task waits for its waker.
    Waits,
    /// The task serves a connection and then accepts again.
    Serves,
    /// The task's future was dropped.
    Cancelled,
    /// The task's listener is closed.
    Over,
}

/// One moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    comes: [u8; 2],
    open: [bool; LISTENERS],
    /// Connections of each core.
    core: [u8; LISTENERS],
    kernel: u8,
    tasks: Vec<Task>,
    /// Tasks whose wakers are registered at each core's queue, and at the kernel's.
    at_core: [Vec<usize>; LISTENERS],
    at_kernel: [Vec<usize>; LISTENERS],
    /// tokio's readiness flag, for each listener.
    ready: [bool; LISTENERS],
    turn: [u8; LISTENERS],
    accepted: u8,
    /// Number of connections that were reset because no listener was open.
    refused: u8,
    /// Number of consecutive accepts of a listener from its core while the kernel had a connection.
    passed_over: [u8; LISTENERS],
}

impl State {
    fn wake(&mut self, tasks: Vec<usize>) {
        for task in tasks {
            if self.tasks[task] == Task::Waits {
                self.tasks[task] = Task::Polls;
            }
        }
    }

    fn come_to_core(&mut self, listener: usize) {
        self.core[listener] += 1;
        let tasks = std::mem::take(&mut self.at_core[listener]);
        self.wake(tasks);
    }

    /// A connection arrives at the kernel, which is an edge for every listener.
    fn come_to_kernel(&mut self) {
        self.kernel += 1;
        for listener in (0..LISTENERS).filter(|listener| self.open[*listener]).collect::<Vec<_>>() {
            self.ready[listener] = true;
            let tasks = std::mem::take(&mut self.at_kernel[listener]);
            self.wake(tasks);
        }
    }

    fn ask_kernel(&mut self, rules: &Rules, listener: usize, task: usize) -> bool {
        if rules.wakes_last {
            self.at_kernel[listener].clear();
        }
        if !self.at_kernel[listener].contains(&task) {
            self.at_kernel[listener].push(task);
            self.at_kernel[listener].sort_unstable();
        }
        if !self.ready[listener] {
            return false;
        }
        // accept(2), or EAGAIN.
        if self.kernel == 0 {
            self.ready[listener] = false;
            return false;
        }
        self.kernel -= 1;
        self.passed_over[listener] = 0;
        true
    }

    fn ask_core(&mut self, listener: usize, task: usize) -> bool {
        if self.core[listener] > 0 {
            self.core[listener] -= 1;
            self.passed_over[listener] = if self.kernel > 0 { self.passed_over[listener] + 1 } else { 0 };
            return true;
        }
        if !self.at_core[listener].contains(&task) {
            self.at_core[listener].push(task);
            self.at_core[listener].sort_unstable();
        }
        false
    }

    /// `poll_accept`.
    fn poll(&mut self, rules: &Rules, task: usize) {
        let listener = rules.tasks[task];
        let turn = self.turn[listener];
        self.turn[listener] = (turn + 1) % rules.kernel_first;
        let first = turn == 0 && !rules.core_first && self.ask_kernel(rules, listener, task);
        let accepts =
            first || self.ask_core(listener, task) || !rules.asks_core_only && self.ask_kernel(rules, listener, task);
        self.tasks[task] = if accepts { Task::Serves } else { Task::Waits };
        self.accepted += u8::from(accepts);
    }

    fn close(&mut self, rules: &Rules, listener: usize) {
        self.open[listener] = false;
        for task in (0..self.tasks.len()).filter(|task| rules.tasks[*task] == listener) {
            self.tasks[task] = Task::Over;
        }
        (self.at_core[listener], self.at_kernel[listener]) = (Vec::new(), Vec::new());
        let (left, other) = (std::mem::take(&mut self.core[listener]), self.open.iter().position(|open| *open));
        match other {
            Some(_) if rules.drops_at_close => {}
            Some(other) => (0..left).for_each(|_| self.come_to_core(other)),
            None => self.refused += left + std::mem::take(&mut self.kernel),
        }
    }
}

impl Model for Rules {
    type State = State;

    fn start(&self) -> State {
        State {
            comes: self.comes,
            open: [0, 1].map(|listener| self.tasks.contains(&listener)),
            core: [0; LISTENERS],
            kernel: 0,
            tasks: vec![Task::Polls; self.tasks.len()],
            at_core: Default::default(),
            at_kernel: Default::default(),
            ready: [true; LISTENERS],
            turn: [0; LISTENERS],
            accepted: 0,
            refused: 0,
            passed_over: [0; LISTENERS],
        }
    }

    fn steps(&self, state: &State) -> Vec<(&'static str, State, bool)> {
        let mut steps = Vec::new();
        let mut step = |name, happens, change: &mut dyn FnMut(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            steps.push((name, next, happens));
        };
        let open = |listener: &usize| state.open[*listener];
        if state.comes[0] > 0 {
            for listener in (0..LISTENERS).filter(open) {
                step("a connection comes to a core", true, &mut |next| {
                    next.comes[0] -= 1;
                    next.come_to_core(listener);
                });
            }
        }
        if state.comes[1] > 0 && state.open.contains(&true) {
            step("a connection comes to the kernel", true, &mut |next| {
                next.comes[1] -= 1;
                next.come_to_kernel();
            });
        }
        for (task, doing) in state.tasks.iter().enumerate() {
            match doing {
                Task::Polls => step("a task polls", true, &mut |next| next.poll(self, task)),
                Task::Serves => step("a task accepts again", true, &mut |next| next.tasks[task] = Task::Polls),
                Task::Cancelled => step("a task begins to accept", false, &mut |next| next.tasks[task] = Task::Polls),
                Task::Waits | Task::Over => {}
            }
            if self.cancels && matches!(doing, Task::Polls | Task::Waits) {
                step("a task is cancelled", false, &mut |next| next.tasks[task] = Task::Cancelled);
            }
        }
        if self.closes {
            for listener in (0..LISTENERS).filter(open) {
                step("a listener is closed", false, &mut |next| next.close(self, listener));
            }
        }
        steps
    }

    fn always(&self, state: &State) -> Result<(), &'static str> {
        let sum = |of: &[u8]| of.iter().sum::<u8>();
        let all = state.accepted + state.refused + state.kernel + sum(&state.core) + sum(&state.comes);
        if all != sum(&self.comes) {
            return Err("a connection is lost, or accepted twice");
        }
        if state.passed_over.iter().any(|times| *times > self.kernel_first) {
            return Err("the kernel's connections wait behind the core's");
        }
        Ok(())
    }

    fn at_rest(&self, state: &State) -> Result<(), &'static str> {
        let sleeps = |listener: usize| {
            (0..state.tasks.len()).any(|task| self.tasks[task] == listener && state.tasks[task] == Task::Waits)
        };
        let waits = |listener: usize| state.core[listener] > 0 || state.kernel > 0;
        if (0..LISTENERS).any(|listener| sleeps(listener) && waits(listener)) {
            return Err("a connection waits, and a task sleeps");
        }
        Ok(())
    }
}
