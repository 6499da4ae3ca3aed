//! Compiles peer.proto through protox: nobody installs protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=peer.proto");
    let descriptors = protox::compile(["peer.proto"], ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
