//! Runs one source on `std::net` and on ours. It compiles on both, so the API is the same, and its
//! assertions hold on both, so the behaviour is.

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
