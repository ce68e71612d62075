//! A match service alone, to try the library by hand:
//!
//! ```text
//! cargo run -p fs-preload --example service -- /tmp/control &
//! export LD_PRELOAD=target/debug/libfastsock.so FASTSOCK_CONTROL=/tmp/control FASTSOCK_REPORT=/tmp/report
//! ```

fn main() -> std::io::Result<()> {
    let Some(control) = std::env::args_os().nth(1) else {
        eprintln!("usage: service PATH");
        std::process::exit(2);
    };
    fs_pairs::Service::bind(control.as_ref())?.run()
}
