//! Spans of time as people write them.

use std::time::Duration;
use wallaby::link::{SpanError, parse_span};

/// Reads the period of something that is done again and again; an hour at most.
pub(super) fn parse_period(text: &str) -> Result<Duration, SpanError> {
    const LONGEST: Duration = Duration::from_secs(3600);
    parse_span(text, LONGEST)
}

/// A span with three digits.
pub(super) fn show(span: Duration) -> String {
    let micros = span.as_secs_f64() * 1e6;
    let (value, unit) = match micros {
        _ if micros < 1e3 => (micros, "µs"),
        _ if micros < 1e6 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    match value {
        _ if value < 10.0 => format!("{value:.2} {unit}"),
        _ if value < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown() {
        for (micros, shown) in [
            (250, "250 µs"),
            (1500, "1.50 ms"),
            (2_000_000, "2.00 s"),
            (0, "0.00 µs"),
        ] {
            assert_eq!(show(Duration::from_micros(micros)), shown);
        }
    }

    #[test]
    fn no_period_is_longer_than_an_hour() {
        assert_eq!(parse_period("60m"), Ok(Duration::from_secs(3600)));
        assert!(parse_period("61m").is_err());
    }
}
