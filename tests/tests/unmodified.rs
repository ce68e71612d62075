//! Debian's unchanged programs, in every placement: each row works, and the counters prove which
//! sockets carried it. `FS_TEST_APP=redis` runs only the groups with that name.

use anyhow::Result;
use fs_tests::unmodified::Placement;
use fs_tests::unmodified::table;

#[test]
fn redis_on_one_host() -> Result<()> {
    table::run_group_of(Placement::OneHost, "redis")
}

#[test]
fn nginx_and_curl_on_one_host() -> Result<()> {
    table::run_group_of(Placement::OneHost, "nginx")
}

#[test]
fn redis_serves_over_the_wire() -> Result<()> {
    table::run_group_of(Placement::Server, "redis")
}

#[test]
fn nginx_serves_over_the_wire() -> Result<()> {
    table::run_group_of(Placement::Server, "nginx")
}

#[test]
fn curl_reaches_nginx_over_the_wire() -> Result<()> {
    table::run_group_of(Placement::Client, "nginx")
}

#[test]
#[ignore = "long: make proof"]
fn on_the_kernel() -> Result<()> {
    table::run(Placement::Kernel)
}

#[test]
#[ignore = "long: make proof"]
fn both_accelerated_on_one_host() -> Result<()> {
    table::run(Placement::OneHost)
}

#[test]
#[ignore = "long: make proof"]
fn server_accelerated() -> Result<()> {
    table::run(Placement::Server)
}

#[test]
#[ignore = "long: make proof"]
fn client_accelerated() -> Result<()> {
    table::run(Placement::Client)
}

#[test]
#[ignore = "long: make proof"]
fn both_accelerated_on_two_hosts() -> Result<()> {
    table::run(Placement::TwoHosts)
}

#[test]
#[ignore = "long: make proof"]
fn kernel_client_reaches_a_preloaded_server_on_loopback() -> Result<()> {
    table::run(Placement::MixedServer)
}

#[test]
#[ignore = "long: make proof"]
fn kernel_client_reaches_a_preloaded_server_on_the_hosts_address() -> Result<()> {
    table::run(Placement::MixedAddress)
}

#[test]
#[ignore = "long: make proof"]
fn preloaded_client_reaches_a_kernel_server() -> Result<()> {
    table::run(Placement::MixedClient)
}
