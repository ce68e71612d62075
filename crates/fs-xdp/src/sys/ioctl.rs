//! Requests about network devices by name: `SIOCGIF*` and `SIOCETHTOOL`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket for these requests. Belongs to the network namespace of the thread that opened it.
pub(crate) struct Control(OwnedFd);

impl Control {
    pub(crate) fn open() -> io::Result<Control> {
        // SAFETY: a plain system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and ours.
        Ok(Control(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn request(&self, name: &str, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        set_name(request, name)?;
        // SAFETY: `request` is a live `ifreq`; callers pair numbers with the union's member that
        // they fill or read.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), number, &raw mut *request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The present name of the device with this index.
    pub(crate) fn name_of(&self, index: u32) -> io::Result<String> {
        let mut request = empty();
        request.ifr_ifru.ifru_ifindex = index as libc::c_int;
        // SAFETY: a live `ifreq` with the member that this request reads; it fills the name.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(request.ifr_name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect())
    }

    /// The device's MTU in bytes.
    pub(crate) fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut request = empty();
        self.request(name, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the request has filled this member.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
    }

    /// `IFF_*` flags.
    pub(crate) fn flags(&self, name: &str) -> io::Result<u16> {
        let mut request = empty();
        self.request(name, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the request has filled this member.
        Ok(unsafe { request.ifr_ifru.ifru_flags } as u16)
    }

    /// Hardware type (`ARPHRD_*`) and address.
    pub(crate) fn hardware(&self, name: &str) -> io::Result<(u16, [u8; 6])> {
        let mut request = empty();
        self.request(name, libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the request has filled this member.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok((address.sa_family, mac))
    }

    /// Sets `IFF_UP`, for devices that we have made.
    pub(crate) fn set_up(&self, name: &str) -> io::Result<()> {
        let flags = self.flags(name)?;
        let mut request = empty();
        request.ifr_ifru.ifru_flags = (flags | libc::IFF_UP as u16) as libc::c_short;
        self.request(name, libc::SIOCSIFFLAGS, &mut request)
    }

    /// Executes an ethtool command. The result replaces the contents of `data`.
    pub(crate) fn ethtool(&self, name: &str, data: &mut EthtoolBuffer) -> io::Result<()> {
        let mut request = empty();
        request.ifr_ifru.ifru_data = data.words.as_mut_ptr().cast();
        self.request(name, libc::SIOCETHTOOL, &mut request)
    }
}

/// Memory for an ethtool command and its result, in 32-bit words. (All structures of
/// `linux/ethtool.h` that are used here start with one and consist of integers.) Always larger than
/// the fixed structures, so that a result fits.
pub(crate) struct EthtoolBuffer {
    words: Vec<u64>,
}

impl EthtoolBuffer {
    /// Extra space for a kernel structure whose size the command does not declare.
    const SLACK: usize = 512;

    /// Creates a buffer for `command`, whose structure has `bytes` bytes, including variable parts.
    pub(crate) fn new(command: u32, bytes: usize) -> Self {
        let mut buffer = Self { words: vec![0; (bytes + Self::SLACK) / 8 + 1] };
        buffer.set(0, command);
        buffer
    }

    /// Sets the 32-bit word at byte offset `at`.
    pub(crate) fn set(&mut self, at: usize, value: u32) {
        self.set_bytes(at, &value.to_ne_bytes());
    }

    /// Sets bytes, starting at offset `at`.
    pub(crate) fn set_bytes(&mut self, at: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let (word, shift) = ((at + i) / 8, (at + i) % 8);
            let mut raw = self.words[word].to_ne_bytes();
            raw[shift] = byte;
            self.words[word] = u64::from_ne_bytes(raw);
        }
    }

    /// The 32-bit word at byte offset `at`.
    pub(crate) fn get(&self, at: usize) -> u32 {
        let mut raw = [0; 4];
        for (i, byte) in raw.iter_mut().enumerate() {
            *byte = self.byte(at + i);
        }
        u32::from_ne_bytes(raw)
    }

    /// The byte at offset `at`.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.words[at / 8].to_ne_bytes()[at % 8]
    }
}

/// The device's index in this network namespace.
pub(crate) fn index_of(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: a live C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn empty() -> libc::ifreq {
    // SAFETY: an `ifreq` is integers and a pointer that null suits.
    unsafe { std::mem::zeroed() }
}

/// Writes a device's name into a request.
pub(crate) fn set_name(request: &mut libc::ifreq, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(())
}
