//! The control protocol between a process and the daemon: decoded messages are encoded again and
//! decode to the same.

use fs_shm::control::{CounterRow, MESSAGE_MAX, Reply, Request, Row, SocketRow};

/// Decodes the bytes as a request, a reply and rows of lists.
pub fn control(data: &[u8]) -> u64 {
    let mut seen = 0;
    let mut buffer = [0; MESSAGE_MAX];
    if let Ok((number, request)) = Request::decode(data) {
        let len = request.encode(number, &mut buffer).expect("a decoded request fits");
        assert_eq!(Request::decode(&buffer[..len]), Ok((number, request)));
        seen |= 1 << (data[0] & 31);
    }
    if let Ok((number, reply, rows)) = Reply::decode(data) {
        let len = reply.encode(number, &mut buffer).expect("a decoded reply fits");
        assert_eq!(Reply::decode(&buffer[..len]), Ok((number, reply, &[][..])));
        assert!(rows.len() <= data.len());
        seen |= 1 << (32 + (data[0] & 15));
    }
    seen | u64::from(rows_of::<SocketRow>(data)) << 48 | u64::from(rows_of::<CounterRow>(data)) << 52
}

fn rows_of<R: Row + PartialEq + std::fmt::Debug>(mut data: &[u8]) -> u8 {
    let mut count = 0u8;
    let mut buffer = [0; 256];
    while let Ok((row, rest)) = R::decode(data) {
        let len = row.encode(&mut buffer).expect("a decoded row fits");
        assert_eq!(R::decode(&buffer[..len]).expect("an encoded row decodes"), (row, &[][..]));
        assert!(rest.len() < data.len());
        data = rest;
        count = count.saturating_add(1);
    }
    count.min(15)
}
