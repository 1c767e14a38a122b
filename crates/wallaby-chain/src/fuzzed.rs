//! What other servers say of a chain, for who fuzzes what reads it.

use bytes::Bytes;
use wallaby::codec::{Codec, Postcard};
use wallaby::{Address, Status};

use crate::exception::{Exception, hosts};
use crate::stack::Stack;

/// What travels with a request, if these bytes are of a chain: read, and written again.
///
/// # Errors
///
/// If they cannot be read.
pub fn stack(bytes: &[u8]) -> Result<Option<Bytes>, Status> {
    let Some(stack) = Stack::read(bytes)? else {
        return Ok(None);
    };
    let written = stack.to_bytes().expect("it has been read");
    let mut next = stack.clone();
    next.advance(&Address::Mem("next".into()));
    let next = next.to_bytes().expect("it has been read");
    assert!(Stack::read(&next).is_ok(), "it goes on and cannot be read");
    // What it is told as, if it ends here.
    let exception = stack.exception(7, &Status::internal("it ends"));
    drop(format!(
        "{} {:?}",
        exception.to_status(),
        hosts(&exception.to_status())
    ));
    let raised = Postcard::encode(&exception).expect("it is small");
    assert_eq!(Exception::read(raised), Ok(exception));
    Ok(Some(written))
}

/// What goes to who catches: read, and written again.
///
/// # Errors
///
/// If it cannot be read.
pub fn exception(bytes: Bytes) -> Result<Bytes, Status> {
    let exception = Exception::read(bytes)?;
    assert_eq!(exception.to_status().code(), exception.code());
    Ok(Postcard::encode(&exception).expect("it is small"))
}
