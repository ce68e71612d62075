use super::*;

fn output_size<A, B, T>(_: impl Fn(A, B) -> T) -> usize {
    size_of::<T>()
}

#[test]
fn an_idle_connection_is_small() {
    // tokio adds about 100 bytes, and rounds the sum up to a multiple of 128: 256 bytes for the whole task.
    let size = output_size(connection);
    assert!(size <= 112, "{size} bytes, of which a stream has {}", size_of::<Stream>());
}
