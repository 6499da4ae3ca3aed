//! Compiles cloud.proto through protox: nobody installs protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cloud.proto");
    let descriptors = protox::compile(["cloud.proto"], ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
