//! System calls and memory that safe Rust cannot express. `unsafe` lives here only.
