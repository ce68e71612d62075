//! The program: see the library of the same name.

/// Small allocations of one core are served from lists of each thread's own, without the C library's searches and locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    fs_proxy::run()
}
