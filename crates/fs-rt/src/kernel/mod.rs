//! The kernel's addresses, routes and neighbours that concern the runtime's devices.

mod change;
mod control_plane;
mod mirror;
mod routes;

pub(crate) use change::WorldChange;
pub(crate) use control_plane::{ControlPlane, Line};
pub(crate) use mirror::Mirror;
pub(crate) use routes::{ConnectRoute, RouteCache, RouteLookup};

#[cfg(test)]
mod tests;
