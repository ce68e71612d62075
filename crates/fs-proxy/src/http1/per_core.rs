//! State that the lean connections of a core share.

use super::buffers::Buffers;
use super::clock::Clock;
use std::rc::Rc;

/// State that the lean connections of a core share, under all configurations.
#[derive(Default)]
pub(crate) struct Core {
    pub(crate) clock: Rc<Clock>,
    pub(crate) buffers: Rc<Buffers>,
}
