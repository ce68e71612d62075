//! Debian's unchanged programs with the library in the server, the client, or both: each row works,
//! and connections of both get a ring. `FS_TEST_APP=redis` runs only the groups with that name.

use anyhow::Result;
use fs_tests::unmodified::Placement;
use fs_tests::unmodified::table;

#[test]
fn redis() -> Result<()> {
    table::run_group_of(Placement::OneHost, "redis")
}

#[test]
fn nginx_curl_wrk_and_ab() -> Result<()> {
    table::run_group_of(Placement::OneHost, "nginx")
}

#[test]
fn python() -> Result<()> {
    table::run_group_of(Placement::OneHost, "python3 asyncio")
}

#[test]
fn redis_with_clients_on_the_kernel() -> Result<()> {
    table::run_group_of(Placement::MixedServer, "redis")
}

#[test]
#[ignore = "long: make proof"]
fn on_the_kernel() -> Result<()> {
    table::run(Placement::Kernel)
}

#[test]
#[ignore = "long: make proof"]
fn both_ends() -> Result<()> {
    table::run(Placement::OneHost)
}

#[test]
#[ignore = "long: make proof"]
fn servers_with_clients_on_the_kernel() -> Result<()> {
    table::run(Placement::MixedServer)
}

#[test]
#[ignore = "long: make proof"]
fn clients_of_servers_on_the_kernel() -> Result<()> {
    table::run(Placement::MixedClient)
}
