//! Compiles ggml's decoders with the flags that its CMake files give them. scripts/bench-decoders fetches the source.

fn main() {
    let ggml = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/ggml");
    let mut build = cc::Build::new();
    build.file("ggml.c").file(format!("{ggml}/src/ggml-quants.c"));
    build.include(format!("{ggml}/src")).include(format!("{ggml}/include"));
    build.flag("-O3").warnings(false).compile("ggml");
    println!("cargo:rerun-if-changed=ggml.c");
    println!("cargo:rustc-link-lib=m");
}
