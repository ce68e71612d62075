//! execl, execlp, execle and dprintf: functions of an open number of arguments.
//!
//! Stable Rust can call such functions, not define them. They are entered through a few instructions that lay the
//! argument registers out in memory and pass on where the other arguments stand on the stack; the rest is Rust.
//! (psABI x86-64 3.2.3: six integer registers, then 8-byte stack slots; AAPCS64 6.8: eight.)

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use super::errno::set_errno;
use super::exports;
use super::scratch::Pointers;

/// Integer arguments in registers.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 6;
/// Integer arguments in registers.
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 8;

/// Most arguments that the kernel would take is bounded by their bytes (execve(2), ARG_MAX); this bounds the walk to
/// the null.
const ARGUMENTS_MAX: usize = 1 << 20;

/// execl.
const PLAIN: u32 = 0;
/// execlp: the program is searched for in PATH.
const SEARCH: u32 = 1;
/// execle: the environment follows the null.
const ENVIRONMENT: u32 = 2;

macro_rules! variadic {
    ($($(#[$doc:meta])* $name:ident = $kind:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    ".cfi_startproc",
                    "lea r10, [rsp + 8]",
                    "sub rsp, 56",
                    ".cfi_adjust_cfa_offset 56",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "mov rdi, rsp",
                    "mov rsi, r10",
                    "mov edx, {kind}",
                    "call {collect}",
                    "add rsp, 56",
                    ".cfi_adjust_cfa_offset -56",
                    "ret",
                    ".cfi_endproc",
                    kind = const $kind,
                    collect = sym collect,
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    ".cfi_startproc",
                    "mov x9, sp",
                    "sub sp, sp, #80",
                    ".cfi_adjust_cfa_offset 80",
                    "stp x0, x1, [sp]",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "str x30, [sp, #64]",
                    ".cfi_rel_offset x30, 64",
                    "mov x0, sp",
                    "mov x1, x9",
                    "mov w2, #{kind}",
                    "bl {collect}",
                    "ldr x30, [sp, #64]",
                    "add sp, sp, #80",
                    ".cfi_adjust_cfa_offset -80",
                    ".cfi_restore x30",
                    "ret",
                    ".cfi_endproc",
                    kind = const $kind,
                    collect = sym collect,
                );
            }
        )*
    };
}

variadic! {
    /// execl(3).
    execl = PLAIN;
    /// execlp(3).
    execlp = SEARCH;
    /// execle(3).
    execle = ENVIRONMENT;
}

/// Makes the array of the arguments and calls the exec that takes one.
///
/// # Safety
/// `registers` holds the argument registers and `stack` is where the other arguments begin, of a call as execl(3) asks.
unsafe extern "C" fn collect(registers: *const usize, stack: *const usize, kind: u32) -> c_int {
    let argument = |i: usize| {
        // SAFETY: by contract: nothing is read behind the null, and the environment of execle.
        unsafe { if i < REGISTERS { *registers.add(i) } else { *stack.add(i - REGISTERS) } }
    };
    let Some(end) = (1..ARGUMENTS_MAX).find(|&i| argument(i) == 0) else {
        set_errno(libc::E2BIG);
        return -1;
    };
    let Some(mut arguments) = Pointers::new(end) else {
        set_errno(libc::ENOMEM);
        return -1;
    };
    for i in 1..end {
        arguments.push(ptr::with_exposed_provenance::<c_char>(argument(i)));
    }
    let envp = match kind {
        ENVIRONMENT => ptr::with_exposed_provenance(argument(end + 1)),
        _ => exports::environment(),
    };
    // SAFETY: by contract.
    unsafe { exports::execl(ptr::with_exposed_provenance(argument(0)), &arguments, kind == SEARCH, envp) }
}

macro_rules! printing {
    ($($(#[$doc:meta])* $name:ident, named: $named:expr, print: $print:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            pub(super) unsafe extern "C-unwind" fn $name() {
                // A va_list (psABI x86-64 3.5.7): offsets of the next integer and floating register in the save area,
                // the stack's arguments, the save area.
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    ".cfi_startproc",
                    "lea r10, [rsp + 8]",
                    "sub rsp, 216",
                    ".cfi_adjust_cfa_offset 216",
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "mov dword ptr [rsp], 8 * {named}",
                    "mov dword ptr [rsp + 4], 48",
                    "mov [rsp + 8], r10",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    "mov rcx, rsp",
                    "call {print}",
                    "add rsp, 216",
                    ".cfi_adjust_cfa_offset -216",
                    "ret",
                    ".cfi_endproc",
                    named = const $named,
                    print = sym $print,
                );
                // A va_list (AAPCS64, appendix B): the stack's arguments, the ends of both save areas, and how far
                // before them the next registers are.
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    ".cfi_startproc",
                    "mov x9, sp",
                    "sub sp, sp, #256",
                    ".cfi_adjust_cfa_offset 256",
                    "stp x0, x1, [sp, #48]",
                    "stp x2, x3, [sp, #64]",
                    "stp x4, x5, [sp, #80]",
                    "stp x6, x7, [sp, #96]",
                    "stp q0, q1, [sp, #112]",
                    "stp q2, q3, [sp, #144]",
                    "stp q4, q5, [sp, #176]",
                    "stp q6, q7, [sp, #208]",
                    "str x30, [sp, #32]",
                    ".cfi_rel_offset x30, 32",
                    "str x9, [sp]",
                    "add x10, sp, #112",
                    "str x10, [sp, #8]",
                    "add x10, sp, #240",
                    "str x10, [sp, #16]",
                    "mov w10, #(8 * {named} - 64)",
                    "str w10, [sp, #24]",
                    "mov w10, #-128",
                    "str w10, [sp, #28]",
                    "mov x3, sp",
                    "bl {print}",
                    "ldr x30, [sp, #32]",
                    "add sp, sp, #256",
                    ".cfi_adjust_cfa_offset -256",
                    ".cfi_restore x30",
                    "ret",
                    ".cfi_endproc",
                    named = const $named,
                    print = sym $print,
                );
            }
        )*
    };
}

printing! {
    /// dprintf(3): the C library writes with a function of its own.
    dprintf, named: 2, print: print;
    /// dprintf of _FORTIFY_SOURCE.
    __dprintf_chk, named: 3, print: print_checked;
}

/// `third` and `list`: the third argument as it came, and the variable ones.
///
/// # Safety
/// As vdprintf(3).
unsafe extern "C-unwind" fn print(fd: c_int, format: *const c_char, _third: usize, list: *mut c_void) -> c_int {
    // SAFETY: by contract.
    unsafe { exports::vdprintf(fd, format, list) }
}

/// # Safety
/// As vdprintf(3), with the flag of _FORTIFY_SOURCE.
unsafe extern "C-unwind" fn print_checked(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    // SAFETY: by contract.
    unsafe { exports::__vdprintf_chk(fd, flag, format, list) }
}
