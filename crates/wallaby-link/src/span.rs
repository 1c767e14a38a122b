//! Spans of time, as people write them on a command line.

use std::time::Duration;
use thiserror::Error;

/// The longest delay of an emulated link that [`parse_delay`] takes.
pub const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Why a text is no span of time, or not one that is possible here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// It is not a number with a unit.
    #[error("'{0}' is not a span of time such as 250us, 1ms or 2s")]
    Unreadable(String),
    /// It is longer than what is possible.
    #[error("'{text}' is too long: {longest:?} at most")]
    TooLong {
        /// What was written.
        text: String,
        /// What is possible.
        longest: Duration,
    },
}

/// Reads the delay of an emulated link, for [`crate::emulate`]: a span such as `250us`,
/// of [`LONGEST_DELAY`] at most.
///
/// ```
/// use std::time::Duration;
/// use wallaby_link::parse_delay;
///
/// assert_eq!(parse_delay("250us")?, Duration::from_micros(250));
/// assert!(parse_delay("1h").is_err());
/// # Ok::<(), wallaby_link::SpanError>(())
/// ```
///
/// # Errors
/// It is no span, or too long.
pub fn parse_delay(text: &str) -> Result<Duration, SpanError> {
    parse_span(text, LONGEST_DELAY)
}

/// Reads a number with the unit `ns`, `us`, `ms`, `s` or `m`, or `0`.
///
/// # Errors
/// It is none, or longer than `longest`.
pub fn parse_span(text: &str, longest: Duration) -> Result<Duration, SpanError> {
    let text = text.trim();
    let unreadable = || SpanError::Unreadable(text.to_owned());
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| unreadable())?;
    let seconds = match unit.trim() {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(unreadable()),
    };
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(span) if span <= longest => Ok(span),
        // What does not fit into a duration either.
        _ => Err(SpanError::TooLong {
            text: text.to_owned(),
            longest,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, nanoseconds) in [
            ("3ns", 3),
            ("250us", 250_000),
            ("3µs", 3_000),
            ("3μs", 3_000),
            ("1.5ms", 1_500_000),
            (" 1.5 ms ", 1_500_000),
            ("2s", 2_000_000_000),
            ("1m", 60_000_000_000),
            ("0", 0),
            ("0s", 0),
        ] {
            let span = Duration::from_nanos(nanoseconds);
            assert_eq!(parse_span(text, Duration::MAX), Ok(span), "{text}");
        }
    }

    #[test]
    fn the_rest_is_refused() {
        for text in [
            "", "5", "ms", "-1ms", "1h", "1.2.3s", "1 parsec", "äs", "1e300s", "NaNs", "infs",
        ] {
            let refused = parse_span(text, Duration::MAX).unwrap_err();
            assert_eq!(refused, SpanError::Unreadable(text.to_owned()), "{text}");
        }
    }

    #[test]
    fn spans_have_a_limit() {
        assert_eq!(parse_delay("10s"), Ok(LONGEST_DELAY));
        let refused = parse_delay("10.1s").unwrap_err().to_string();
        assert_eq!(refused, "'10.1s' is too long: 10s at most");
        for text in ["1m", "99999999999999999999999999999s"] {
            let refused = parse_delay(text).unwrap_err();
            assert!(matches!(refused, SpanError::TooLong { .. }), "{text}");
        }
        assert!(parse_span(&format!("{}s", "9".repeat(400)), Duration::MAX).is_err());
    }
}
