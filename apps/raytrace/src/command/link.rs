//! Emulated links, as people write them.

use std::time::Duration;

/// Reads the delay of a link, `250us`, `1.5ms`, `2s` or `0`; ten seconds at most.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(10);
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
        Ok(delay) if delay <= LONGEST => Ok(delay),
        Ok(_) => Err(format!("a link takes {} s at most", LONGEST.as_secs())),
        Err(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read() {
        for (text, micros) in [("250us", 250), ("1.5ms", 1500), ("2s", 2_000_000), ("0", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_micros(micros)));
        }
        for text in ["", "1", "ms", "-1s", "1h", "11s", "1..5s", "äs", "1e300s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
