use super::*;

fn output_size<A, B, T>(_: impl Fn(A, B) -> T) -> usize {
    size_of::<T>()
}

#[test]
fn idle_connection_is_small() {
    // tokio adds about 100 bytes, and rounds the sum up to a multiple of 128: 256 bytes for the
    // whole task.
    let size = output_size(connection);
    assert!(size <= 112, "{size} bytes, of which a stream has {}", size_of::<Stream>());
}

#[test]
fn numbered_path_returns_that_many_bytes() {
    let site = |longest| Site {
        body: Bytes::from_static(b"body"),
        longest: Bytes::from(vec![b'x'; longest]),
        options: ServeOptions::default(),
        tls: None,
        stats: Arc::new(Stats::new(1)),
        core: 0,
    };
    let lengths = |longest| ["/0", "/10", "/11", "/", "/a", "*", ""].map(|path| site(longest).answer(path).len());
    assert_eq!(lengths(10), [0, 10, 4, 4, 4, 4, 4]);
    assert_eq!(lengths(0), [4; 7]);
}
