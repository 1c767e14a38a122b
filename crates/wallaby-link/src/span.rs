//! Spans of time, as people write them on a command line.

use std::time::Duration;
use thiserror::Error;

/// The longest delay of an emulated link that [`parse_delay`] takes.
const LONGEST: Duration = Duration::from_secs(10);

/// Why a text is no delay of an emulated link.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum DelayError {
    /// It is not a number with a unit.
    #[error("'{text}' is not a span of time such as 250us, 1ms or 2s: {cause}")]
    Unreadable {
        /// What was written.
        text: String,
        /// What is wrong with it.
        cause: humantime::DurationError,
    },
    /// It is longer than 10 seconds.
    #[error("'{0}' is too long: {LONGEST:?} at most")]
    TooLong(String),
}

/// Reads the delay of an emulated link, for [`crate::emulate`]: `0`, or a number with a unit as in `250us`, of 10 seconds at
/// most.
///
/// ```
/// use std::time::Duration;
/// use wallaby_link::parse_delay;
///
/// assert_eq!(parse_delay("250us")?, Duration::from_micros(250));
/// assert!(parse_delay("1h").is_err());
/// # Ok::<(), wallaby_link::DelayError>(())
/// ```
///
/// # Errors
/// It is no span, or too long.
pub fn parse_delay(text: &str) -> Result<Duration, DelayError> {
    let delay = humantime::parse_duration(text).map_err(|cause| DelayError::Unreadable {
        text: text.to_owned(),
        cause,
    })?;
    match delay <= LONGEST {
        true => Ok(delay),
        false => Err(DelayError::TooLong(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("250us", 250_000),
            ("1.5ms", 1_500_000),
            ("10s", 10_000_000_000),
        ] {
            assert_eq!(parse_delay(text), Ok(Duration::from_nanos(nanoseconds)));
        }
        for text in ["", "5", "ms", "-1ms", "NaNs"] {
            let refused = parse_delay(text).unwrap_err();
            assert!(matches!(refused, DelayError::Unreadable { .. }), "{text}");
        }
        let refused = parse_delay("10.1s").unwrap_err().to_string();
        assert_eq!(refused, "'10.1s' is too long: 10s at most");
    }
}
