//! fork: both processes hold every socket.

/// What is carried across fork(2); made by [`before_fork`], used up by exactly one of the `after` calls in each process.
#[derive(Debug)]
#[must_use]
pub struct Forking {
    _made: (),
}

/// Before fork, vfork (which is made a fork) and `clone` without shared memory: the child's attachment is made, tables are held still.
pub fn before_fork() -> Forking {
    Forking { _made: () }
}

/// In the parent, when fork has returned (also when it failed: `made` false).
pub fn after_fork_parent(_forking: Forking, _made: bool) {}

/// In the child, before anything else. No allocation, no lock that another thread could have held.
pub fn after_fork_child(_forking: Forking) {}
