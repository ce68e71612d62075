//! The symbols.

/// Defines C symbols whose call is fs-socket's (`Some`) or, when that answers `None`, the C library's with the same
/// arguments.
macro_rules! fall_through {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $ours:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            pub(in crate::sys) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the caller's arguments are as C's function asks, passed on as they are.
                unsafe {
                    match $ours {
                        Some(answer) => answer,
                        None => $crate::sys::real::$name($($arg),*),
                    }
                }
            }
        )*
    };
}

/// Defines C symbols by an expression.
macro_rules! define {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $body:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            pub(in crate::sys) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the caller's arguments are as C's function asks, passed on as they are.
                unsafe { $body }
            }
        )*
    };
}

mod descriptors;
mod identity;
mod limits;
mod messages;
mod names;
mod processes;
mod receive;
mod send;
mod set;
mod signals;
mod spawn;
mod system;
mod wait;

pub(in crate::sys) use descriptors::{__vdprintf_chk, close, vdprintf};
pub(in crate::sys) use processes::{environment, execl};
pub(in crate::sys) use receive::read;
pub(in crate::sys) use send::write;
