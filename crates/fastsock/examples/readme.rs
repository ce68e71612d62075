//! README's program: an echo server.

// Cargo.toml: fastsock = { path = "../fastsock/crates/fastsock" }
//             tokio = { version = "1", features = ["io-util", "time"] }
use fastsock::{Runtime, local::TcpListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One core for each queue of the device, at most one per CPU. Without the device, or rights to
    // it: kernel sockets. The closure runs once on each core. All cores listen on the same port.
    Runtime::builder().device("eth0").or_kernel().build()?.run(|_core| async {
        let listener = TcpListener::bind("0.0.0.0:7777").await.expect("port 7777");
        loop {
            match listener.accept().await {
                Ok((mut stream, _peer)) => drop(fastsock::spawn_local(async move {
                    let (mut reader, mut writer) = stream.split();
                    tokio::io::copy(&mut reader, &mut writer).await
                })),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return, // A shutdown.
                // For example too many open files: the next ones may work.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    })?;
    Ok(())
}
