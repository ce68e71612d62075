//! libfastsock.so: the BSD socket symbols for unmodified binaries (LD_PRELOAD).
