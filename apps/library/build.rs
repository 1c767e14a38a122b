//! Compiles the interface as it was and as it is; for tests one that has all that services can have.

fn main() {
    let compiler = wallaby_build::Compiler::new;
    compiler().name("v1").build(["proto/v1/library.proto"]);
    compiler().build(["proto/v2/library.proto"]);
    let kinds = "../../crates/wallaby-build/tests/protos/kinds.proto";
    compiler().name("kinds").build([kinds]);
}
