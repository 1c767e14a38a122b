//! What other servers say of a chain: where it is and has been, and how it has ended.

use bytes::Bytes;
use wallaby_chain::fuzzed;

pub(crate) fn stack(bytes: &[u8]) {
    if let Ok(Some(written)) = fuzzed::stack(bytes) {
        assert_eq!(fuzzed::stack(&written), Ok(Some(written.clone())));
    }
}

pub(crate) fn exception(bytes: &[u8]) {
    if let Ok(written) = fuzzed::exception(Bytes::copy_from_slice(bytes)) {
        assert_eq!(fuzzed::exception(written.clone()), Ok(written));
    }
}
