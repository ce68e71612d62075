//! Whether these tests run on an emulated kernel.

/// By QEMU's emulation of Linux (`cargo xtask proof processors`), which has not all that a kernel has. A test asks this, and never for what it is about
/// itself: that is there on a kernel, or the test fails.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os("FS_TEST_RUNNER").is_some()
}
