//! Why sockets of a core are not `Send`, in words that the compiler shows.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// Nothing implements it: what the compiler says then is what it is there for. Of a task it shows the notes, of a socket alone no
/// more than the name.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot leave the core that created it, so it is not `Send`",
    label = "not `Send`: see docs/SEND.md of fastsock",
    note = "docs/SEND.md of fastsock explains it. `fs_compat::send` has a type of the same name for any thread: use that with \
            axum, tonic, quinn and `tokio::spawn`",
    note = "or stay on the core: use `fs_rt::spawn_local` instead of `tokio::spawn`, and a local executor for hyper"
)]
pub(crate) trait SeeDocsSendMd {}

/// A field of `T` that keeps it from being `Send`. The compiler names the first field that does, so it is the first one.
pub(crate) struct OnItsCore<T>(PhantomData<*const T>);

// SAFETY: it never holds, as no type is a `SeeDocsSendMd`.
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
