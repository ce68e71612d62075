//! Random worlds (`fs_tests::worlds`): some fixed seeds. The long run is `cargo xtask proof worlds`.

use anyhow::{Result, ensure};
use fs_tests::Lab;
use fs_tests::worlds::{Seen, Stage};

/// Worlds of all kinds. Those with an open connection that later rules stop are among them.
const SEEDS: std::ops::Range<u64> = 2_000_027..2_000_043;

#[test]
fn connections_get_the_kernels_verdict() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let (mut stage, mut seen) = (Stage::new(lab)?, Seen::default());
        for seed in SEEDS {
            stage.run(seed, &mut seen)?;
        }
        stage.end()?;
        println!("{}", seen.line(SEEDS.start));
        ensure!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
        ensure!(seen.flows > 0 && seen.stopped > 0, "no rule stopped a ring: {seen:?}");
        ensure!(seen.denied > 0 && seen.denied < seen.dials, "the rules decide nothing: {seen:?}");
        Ok(())
    })
}
