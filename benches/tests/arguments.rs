//! Each program accepts the arguments that `cargo xtask bench` passes to it.

use std::path::Path;
use std::process::Command;

/// The programs of this package that `cargo xtask bench` runs.
const PROGRAMS: [(&str, &str); 5] = [
    ("veth", env!("CARGO_BIN_EXE_veth")),
    ("syn_flood", env!("CARGO_BIN_EXE_syn_flood")),
    ("unmodified", env!("CARGO_BIN_EXE_unmodified")),
    ("grid", env!("CARGO_BIN_EXE_grid")),
    ("shared", env!("CARGO_BIN_EXE_shared")),
];

#[test]
fn programs_accept_arguments_of_lab_bench() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut started = 0;
    for quick in [&["--quick"][..], &[]] {
        let parts = [
            "memory",
            "veth",
            "unmodified",
            "grid",
            "shared",
            "raw",
            "short",
            "latency",
            "bulk",
            "beside",
            "proxy",
            "tls",
            "half",
            "held",
            "bodies",
            "flood",
            "broker",
            "fair",
            "killed",
            "loopback",
            "accept",
        ];
        let plan = Command::new(env!("CARGO"))
            .args(["xtask", "bench", "--dry-run"])
            .args(quick)
            .args(parts)
            .current_dir(root)
            .output()
            .unwrap();
        assert!(plan.status.success(), "{plan:?}");
        for line in String::from_utf8(plan.stdout).unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let program = Path::new(words[0]).file_name().unwrap().to_str().unwrap();
            if program == "cargo" {
                // The harness of the package's other targets refuses criterion's arguments.
                let named = words.windows(2).any(|pair| pair == ["--bench", "in_memory"]);
                assert!(words[1] != "bench" || named, "{line}");
                continue;
            }
            let (_, path) = PROGRAMS.iter().find(|(name, _)| *name == program).unwrap_or_else(|| panic!("{line}"));
            let output = Command::new(path).args(&words[1..]).arg("--dry-run").output().unwrap();
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
            started += 1;
        }
    }
    assert_eq!(started, 2 * PROGRAMS.len());
    let refused = Command::new(PROGRAMS[1].1).args(["--dry-run", "no-such-part"]).output().unwrap();
    assert!(!refused.status.success());
}
