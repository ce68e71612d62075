//! execl(3), dprintf(3) and their like: functions of an open number of arguments, which stable Rust cannot define.
//!
//! Each is a few instructions that keep the argument registers, do what is due before the call, and
//! jump to the C library's function.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use super::child;
use crate::descriptor;
use crate::sys::real::address;

macro_rules! variadic {
    ($($(#[$doc:meta])* $name:ident, $prepare:ident: |$first:ident: $type:ty| $before:expr;)*) => {
        $(
            extern "C" fn $prepare($first: $type) -> *mut c_void {
                $before;
                address::$name()
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            pub(crate) unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    // Floating-point arguments: dprintf has such.
                    "sub rsp, 128",
                    "movaps [rsp], xmm0",
                    "movaps [rsp + 16], xmm1",
                    "movaps [rsp + 32], xmm2",
                    "movaps [rsp + 48], xmm3",
                    "movaps [rsp + 64], xmm4",
                    "movaps [rsp + 80], xmm5",
                    "movaps [rsp + 96], xmm6",
                    "movaps [rsp + 112], xmm7",
                    "call {prepare}",
                    "mov r11, rax",
                    "movaps xmm0, [rsp]",
                    "movaps xmm1, [rsp + 16]",
                    "movaps xmm2, [rsp + 32]",
                    "movaps xmm3, [rsp + 48]",
                    "movaps xmm4, [rsp + 64]",
                    "movaps xmm5, [rsp + 80]",
                    "movaps xmm6, [rsp + 96]",
                    "movaps xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    prepare = sym $prepare,
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    "stp x0, x1, [sp, #-80]!",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "str x30, [sp, #64]",
                    "sub sp, sp, #128",
                    "stp q0, q1, [sp]",
                    "stp q2, q3, [sp, #32]",
                    "stp q4, q5, [sp, #64]",
                    "stp q6, q7, [sp, #96]",
                    "bl {prepare}",
                    "mov x16, x0",
                    "ldp q0, q1, [sp]",
                    "ldp q2, q3, [sp, #32]",
                    "ldp q4, q5, [sp, #64]",
                    "ldp q6, q7, [sp, #96]",
                    "add sp, sp, #128",
                    "ldr x30, [sp, #64]",
                    "ldp x6, x7, [sp, #48]",
                    "ldp x4, x5, [sp, #32]",
                    "ldp x2, x3, [sp, #16]",
                    "ldp x0, x1, [sp], #80",
                    "br x16",
                    prepare = sym $prepare,
                );
            }
        )*
    };
}

variadic! {
    /// execl(3).
    execl, prepare_execl: |path: *const c_char| {
        // SAFETY: the caller's argument.
        unsafe { child::before_exec_at(libc::AT_FDCWD, path, 0) }
    };
    /// execlp(3).
    execlp, prepare_execlp: |file: *const c_char| {
        // SAFETY: the caller's argument.
        unsafe { child::before_exec_of(file) }
    };
    /// execle(3).
    execle, prepare_execle: |path: *const c_char| {
        // SAFETY: the caller's argument.
        unsafe { child::before_exec_at(libc::AT_FDCWD, path, 0) }
    };
    /// dprintf(3) writes by a function that no symbol replaces.
    dprintf, prepare_dprintf: |fd: c_int| descriptor::leave_to_kernel(fd);
    /// dprintf with _FORTIFY_SOURCE.
    __dprintf_chk, prepare_dprintf_chk: |fd: c_int| descriptor::leave_to_kernel(fd);
}
