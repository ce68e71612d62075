//! The reason why a core's sockets are not `Send`, for the compiler's messages.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// No type implements it, so the compiler shows these messages. For a task it shows the notes; for
/// a socket alone, only the trait's name.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot leave the core that created it, so it is not `Send`",
    label = "not `Send`: see docs/SEND.md of fastsock",
    note = "docs/SEND.md of fastsock explains it. `fastsock::net` has a type of the same name for any thread: use that with \
            axum, tonic, quinn and `tokio::spawn`",
    note = "or stay on the core: use `fastsock::spawn_local` instead of `tokio::spawn`, and a local executor for hyper"
)]
pub(crate) trait SeeDocsSendMd {}

/// A field of `T` that makes it `!Send`. Must be the first field: the compiler names the first one
/// that is not `Send`.
pub(crate) struct OnItsCore<T>(PhantomData<*const T>);

// SAFETY: never applies, because no type implements `SeeDocsSendMd`.
unsafe impl<T: SeeDocsSendMd> Send for OnItsCore<T> {}

// SAFETY: as above.
unsafe impl<T: SeeDocsSendMd> Sync for OnItsCore<T> {}

impl<T> OnItsCore<T> {
    pub(crate) const HERE: Self = Self(PhantomData);
}

impl<T> std::fmt::Debug for OnItsCore<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnItsCore")
    }
}
