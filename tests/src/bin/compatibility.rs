//! Writes docs/COMPATIBILITY.md from what the test `unmodified` found.

fn main() -> anyhow::Result<()> {
    let path = fs_tests::apps::workspace().join("docs/COMPATIBILITY.md");
    // What `make compat` has written there stays.
    let rest = fs_tests::compat::table::section();
    let blank = if rest.is_empty() { "" } else { "\n" };
    std::fs::write(&path, fs_tests::unmodified::table::markdown()? + blank + &rest)?;
    println!("{}", path.display());
    Ok(())
}
