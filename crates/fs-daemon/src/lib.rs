//! The daemon: attachments, listeners, directory, access control, and the bridge between shared-memory channels and TCP on the wire.
