//! Runs hyper's tasks on this core.

use std::future::Future;

/// An executor of this core.
#[derive(Clone, Copy)]
pub(super) struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move {
            task.await;
        });
    }
}
