//! Stores the compiler's version in the programs, because instruction counts are comparable only
//! for one version.

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = std::process::Command::new(rustc).arg("--version").output();
    let version = version.map(|v| String::from_utf8_lossy(&v.stdout).trim().to_owned()).unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo:rustc-env=FS_RUSTC={version}, {target}");
    println!("cargo:rerun-if-changed=build.rs");
}
