//! Writes docs/COMPATIBILITY.md from the results of the test `unmodified`.

fn main() -> anyhow::Result<()> {
    let path = fs_tests::apps::workspace().join("docs/COMPATIBILITY.md");
    // Keeps the section that `make compat` has written.
    let rest = fs_tests::compat::table::section();
    let blank = if rest.is_empty() { "" } else { "\n" };
    std::fs::write(&path, fs_tests::unmodified::table::markdown()? + blank + &rest)?;
    println!("{}", path.display());
    Ok(())
}
