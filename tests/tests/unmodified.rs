//! Debian's programs, not one line changed, in every placement: each row works, and the counters prove whose sockets
//! carried it. `FS_TEST_APP=redis` runs only the groups with that name.

// runner: beside others

use anyhow::Result;
use fs_tests::unmodified::Placement;
use fs_tests::unmodified::table;

#[test]
fn on_the_kernel() -> Result<()> {
    table::run(Placement::Kernel)
}

#[test]
fn both_accelerated_on_one_host() -> Result<()> {
    table::run(Placement::OneHost)
}

#[test]
fn server_accelerated() -> Result<()> {
    table::run(Placement::Server)
}

#[test]
fn client_accelerated() -> Result<()> {
    table::run(Placement::Client)
}

#[test]
fn both_accelerated_on_two_hosts() -> Result<()> {
    table::run(Placement::TwoHosts)
}

#[test]
fn client_of_the_kernel_reaches_a_preloaded_server_on_loopback() -> Result<()> {
    table::run(Placement::MixedServer)
}

#[test]
fn client_of_the_kernel_reaches_a_preloaded_server_on_the_hosts_address() -> Result<()> {
    table::run(Placement::MixedAddress)
}

#[test]
fn preloaded_client_reaches_a_server_of_the_kernel() -> Result<()> {
    table::run(Placement::MixedClient)
}
