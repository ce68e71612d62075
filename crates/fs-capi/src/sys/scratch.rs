//! Arrays of pointers for exec, made without the allocator: exec runs in forked children, where the heap's lock may be
//! held by a thread that does not exist any more.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

/// A zeroed array of pointers in its own mapping.
pub(super) struct Pointers {
    base: *mut *const c_char,
    room: usize,
    length: usize,
}

impl Pointers {
    /// Room for `n` pointers and the null at the end; `None` when there is no memory.
    pub(super) fn new(n: usize) -> Option<Self> {
        let room = n.checked_add(1)?;
        let bytes = room.checked_mul(size_of::<*const c_char>())?;
        // SAFETY: a new private mapping touches nothing that exists. mmap is async-signal-safe in practice (one system
        // call, errno).
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        Some(Self { base: base.cast(), room, length: 0 })
    }

    /// Appends one; what has no room is left out (callers ask for enough).
    pub(super) fn push(&mut self, pointer: *const c_char) {
        if self.length + 1 < self.room {
            // SAFETY: inside of the mapping; the last element stays null.
            unsafe { *self.base.add(self.length) = pointer };
            self.length += 1;
        }
    }

    /// The array, ended by null.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.base
    }
}

impl Drop for Pointers {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`.
        unsafe { libc::munmap(self.base.cast(), self.room * size_of::<*const c_char>()) };
    }
}

/// How many pointers stand before the null. A null array is an empty one (Linux takes it so, execve(2)).
///
/// # Safety
/// `array` is null or ended by null.
pub(super) unsafe fn length(array: *const *const c_char) -> usize {
    let mut n = 0;
    if !array.is_null() {
        // SAFETY: by contract; the loop ends at the null.
        while !unsafe { *array.add(n) }.is_null() {
            n += 1;
        }
    }
    n
}

/// The dynamic loader's list of libraries to load first (ld.so(8)).
const PRELOAD: &CStr = c"LD_PRELOAD=";

/// Where the daemon is found.
const SERVER: &CStr = c"FASTSOCK_CONTROL=";

/// An environment for a new image that goes on with our sockets.
pub(super) struct Environment {
    pointers: Pointers,
    /// Where the control variable's text stands: behind the pointers' lifetime, in its own mapping.
    _control: Pointers,
}

impl Environment {
    /// `envp` with the variable of the control descriptor and of `sets` (replacing one that is there) and, when the caller has left them
    /// out, LD_PRELOAD and FASTSOCK_CONTROL as this process has them: a program that empties the environment for its
    /// successor (nginx, upgrading its binary) hands its sockets on nevertheless. `None`: no memory.
    ///
    /// # Safety
    /// `envp` is null or an array of strings ended by null.
    pub(super) unsafe fn with_control(envp: *const *const c_char, control: c_int, sets: Option<c_int>) -> Option<Self> {
        // SAFETY: by contract.
        let given = unsafe { length(envp) };
        let mut pointers = Pointers::new(given + 3)?;
        let text = Pointers::new(8)?;
        let variable = text.base.cast::<u8>();
        let (mut digits, mut more) = ([0u8; 10], [0u8; 10]);
        let sets = sets.map(|sets| decimal(sets, &mut more)).unwrap_or_default();
        let comma: &[u8] = if sets.is_empty() { b"" } else { b"," };
        let name = fs_socket::process::exec::CONTROL_VARIABLE.as_bytes().iter();
        for (i, &byte) in name.chain(b"=").chain(decimal(control, &mut digits)).chain(comma).chain(sets).enumerate() {
            // SAFETY: the mapping is zeroed and holds 72 bytes; name, '=', twenty digits and a comma are fewer.
            unsafe { *variable.add(i) = byte };
        }
        for i in 0..given {
            // SAFETY: by contract.
            let entry = unsafe { *envp.add(i) };
            // SAFETY: by contract.
            if !unsafe { has_prefix(entry, fs_socket::process::exec::CONTROL_VARIABLE.as_bytes()) } {
                pointers.push(entry);
            }
        }
        pointers.push(variable.cast());
        for name in [PRELOAD, SERVER] {
            // SAFETY: both environments are arrays of strings ended by null.
            unsafe {
                if find(envp, name).is_null() {
                    let own = find(super::exports::environment(), name);
                    if !own.is_null() {
                        pointers.push(own);
                    }
                }
            }
        }
        Some(Self { pointers, _control: text })
    }

    /// The array, ended by null.
    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// The entry of `envp` that begins with `name` (its `=` included), or null.
///
/// # Safety
/// `envp` is null or an array of strings ended by null.
unsafe fn find(envp: *const *const c_char, name: &CStr) -> *const c_char {
    // SAFETY: by contract.
    for i in 0..unsafe { length(envp) } {
        // SAFETY: by contract.
        let entry = unsafe { *envp.add(i) };
        // SAFETY: by contract.
        if unsafe { has_prefix(entry, name.to_bytes()) } {
            return entry;
        }
    }
    ptr::null()
}

/// Whether a C string begins with these bytes and, when they have none, a `=`.
///
/// # Safety
/// `string` ends with a null byte.
unsafe fn has_prefix(string: *const c_char, prefix: &[u8]) -> bool {
    for (i, &byte) in prefix.iter().enumerate() {
        // SAFETY: no byte before this one was the null.
        if unsafe { *string.add(i) } as u8 != byte {
            return false;
        }
    }
    // SAFETY: as above.
    prefix.last() == Some(&b'=') || unsafe { *string.add(prefix.len()) } as u8 == b'='
}

/// A number not below 0 in decimal digits.
fn decimal(value: c_int, digits: &mut [u8; 10]) -> &[u8] {
    let mut rest = value.max(0);
    let mut at = digits.len();
    loop {
        at -= 1;
        // A digit.
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}
