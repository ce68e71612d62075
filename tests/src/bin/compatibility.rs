//! Writes docs/COMPATIBILITY.md from what the test `unmodified` found.

fn main() -> anyhow::Result<()> {
    let path = fs_tests::apps::workspace().join("docs/COMPATIBILITY.md");
    std::fs::write(&path, fs_tests::unmodified::table::markdown()?)?;
    println!("{}", path.display());
    Ok(())
}
