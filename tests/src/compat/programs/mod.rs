//! The programs: how each is started, and its faults.

mod applications;
mod mail;
mod proxies;
mod stores;
mod web;

use super::{Act, Fault, Program};

/// Permitted failures of a client whose server dies.
const DEATH: &[&str] = &["refused", "reset", "closed", "stale"];

/// A client process is killed; the others see nothing of it.
const CLIENT_KILLED: Fault = Fault { name: "client killed", permits: &[], act: Act::KillClient };

fn fault(name: &'static str, permits: &'static [&'static str], act: Act) -> Fault {
    Fault { name, permits, act }
}

/// Turns a function that starts a server into one that restarts it.
macro_rules! restart {
    ($start:expr) => {
        |place, server| {
            *server = $start(place)?;
            Ok(())
        }
    };
}
use restart;

/// All, in the order of the table.
pub fn all() -> Vec<Program> {
    let mut all = web::programs();
    all.extend(applications::programs());
    all.extend(proxies::programs());
    all.extend(stores::programs());
    all.extend(mail::programs());
    all
}
