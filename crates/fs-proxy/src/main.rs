//! The program: see the library of the same name.

/// mimalloc serves a thread's small allocations from its own lists, without the C library's
/// searches and locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    fs_proxy::run()
}
