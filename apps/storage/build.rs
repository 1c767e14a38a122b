//! NFS version 3 as Rust: the procedures become methods.

fn main() {
    let interface = "../../crates/wallaby-sidecar/tests/nfs3.x";
    wallaby_idl::onc::Compiler::new().methods().build(interface);
}
