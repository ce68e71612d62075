//! execl(3) and its like: functions of an open number of arguments, which stable Rust cannot define.
//!
//! Each is a few instructions that keep the argument registers, do what is due before an exec, and jump to the C library's function.

use core::arch::naked_asm;
use core::ffi::c_void;

use crate::descriptor;
use crate::sys::real::address;

macro_rules! before_exec {
    ($($(#[$doc:meta])* $name:ident, $prepare:ident;)*) => {
        $(
            extern "C" fn $prepare() -> *mut c_void {
                descriptor::before_exec();
                address::$name()
            }

            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
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
                    "call {prepare}",
                    "mov r11, rax",
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
                    "bl {prepare}",
                    "mov x16, x0",
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

before_exec! {
    /// execl(3).
    execl, prepare_execl;
    /// execlp(3).
    execlp, prepare_execlp;
    /// execle(3).
    execle, prepare_execle;
}
