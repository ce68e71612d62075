//! What a process knows of its accelerated sockets: BSD socket calls on descriptor numbers over shared-memory channels.
