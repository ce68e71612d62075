//! A packet's way out: route → neighbour → build → batch.

pub mod neigh;
pub mod route;
pub mod standalone;
