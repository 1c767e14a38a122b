//! Random numbers: node ids, tokens, secrets.

use crate::error::BindError;

/// Unguessable bytes from the system; inside a simulation, bytes that its seed decides.
pub(crate) fn bytes<const LEN: usize>() -> Result<[u8; LEN], BindError> {
    let mut bytes = [0; LEN];
    #[cfg(feature = "turmoil")]
    if crate::simulation::fill(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes).map_err(|error| BindError::Random(error.to_string()))?;
    Ok(bytes)
}

/// A number that nobody can guess, from the system; inside a simulation one that its seed decides. The largest if the system has
/// none.
pub fn number() -> u64 {
    bytes().map_or(u64::MAX, u64::from_ne_bytes)
}
