//! Spans of time as people write them.

use std::time::Duration;

/// Reads `250us`, `1.5ms`, `2s` or `0`; an hour at most.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(3600);
    let wrong = || format!("'{text}' is not a span of time such as 250us, 1ms or 2s");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).ok_or_else(wrong)?;
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(wrong()),
    };
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(span) if span <= LONGEST => Ok(span),
        Ok(_) => Err(format!("'{text}' is longer than an hour")),
        Err(_) => Err(wrong()),
    }
}

/// Reads the delay of a link: ten seconds at most.
pub(super) fn parse_link(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(10);
    match parse(text)? {
        delay if delay <= LONGEST => Ok(delay),
        _ => Err(format!("a link takes {} s at most", LONGEST.as_secs())),
    }
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
    fn spans_are_read_and_shown() {
        for (text, micros, shown) in [
            ("250us", 250, "250 µs"),
            ("1.5ms", 1500, "1.50 ms"),
            ("2s", 2_000_000, "2.00 s"),
            ("0", 0, "0.00 µs"),
        ] {
            let span = Duration::from_micros(micros);
            assert_eq!(parse(text), Ok(span));
            assert_eq!(show(span), shown);
        }
        for text in ["", "1", "ms", "-1s", "1h", "9999s", "1..5s", "äs"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_link("10s").is_ok() && parse_link("11s").is_err());
    }
}
