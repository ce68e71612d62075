#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fs_fuzz::pairs(data);
});
