//! Calls that move bytes, on one descriptor, have the same results as on the kernel, and use the
//! ring.

mod common;

macro_rules! cases {
    ($($name:ident,)*) => {
        $(#[test]
        fn $name() {
            common::same("data", stringify!($name));
        })*
    };
}

cases! { pingpong, bulk, vector, flags, queue, modes, fault, file, raw, cork, many, all, timeout, limit, mark, names, option, tube, unmapped, download, upload, }
