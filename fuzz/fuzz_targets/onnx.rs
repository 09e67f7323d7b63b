#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weightfs_fuzz::onnx::run(bytes);
});
