//! A packet's way out: route → neighbour → build → batch.

pub(crate) mod batch;
pub(crate) mod build;
pub(crate) mod lone;
pub mod neigh;
pub(crate) mod path_mtu;
pub mod route;
mod run;
pub mod standalone;
