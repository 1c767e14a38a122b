//! Functions as ordinary functions, and the bytes that modules of other releases and languages rely on.

mod bytes;
mod functions;
