//! The same source on `std::net` and on ours: it compiles, so the shape is the same, and asserts, so the answers are.

#![allow(clippy::duplicate_mod)]

mod original {
    use std::net as api;
    include!("shape/std_net.rs");
    include!("shape/std_net_unsafe.rs");
}

mod ours {
    use fs_compat::blocking as api;
    include!("shape/std_net.rs");
    include!("shape/std_net_unsafe.rs");
}
