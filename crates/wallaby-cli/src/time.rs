//! Spans of time as people write and read them: `250us`, `1ms`, `2s` in; `1.25 ms` out.

use std::time::Duration;

/// Longer ones are mistakes, and no clock reaches that far.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Reads `250us`, `2s` or `1m`, for deadlines, which can't be zero.
pub(crate) fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("this time can't be zero".to_owned()),
        time if time > LONGEST => Err("this time can't be longer than a year".to_owned()),
        time => Ok(time),
    }
}

/// Writes a span with three digits and the unit that fits. humantime, which reads them here, writes each digit: `1ms 234us 567ns`.
pub(crate) fn show(time: Duration) -> String {
    show_micros(time.as_secs_f64() * 1e6)
}

/// Writes a number of microseconds with three digits and the unit that fits.
pub(crate) fn show_micros(micros: f64) -> String {
    if micros < 999.5 {
        format!("{} µs", three_digits(micros))
    } else if micros < 999.5e3 {
        format!("{} ms", three_digits(micros / 1e3))
    } else {
        format!("{} s", three_digits(micros / 1e6))
    }
}

fn three_digits(number: f64) -> String {
    if number.fract() == 0.0 {
        // Asked for or counted, not measured: more digits would say more than is known.
        format!("{number}")
    } else if number < 9.995 {
        format!("{number:.2}")
    } else if number < 99.95 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_not_zero() {
        assert_eq!(parse_nonzero("2s"), Ok(Duration::from_secs(2)));
        assert!(parse_nonzero("0ms").is_err());
        assert!(parse_nonzero("soon").is_err());
    }

    #[test]
    fn writes_three_digits_of_what_has_them() {
        assert_eq!(show(Duration::from_secs(2)), "2 s");
        assert_eq!(show(Duration::ZERO), "0 µs");
        assert_eq!(show_micros(8.0), "8 µs");
        assert_eq!(show(Duration::from_nanos(1_234)), "1.23 µs");
        assert_eq!(show(Duration::from_micros(999)), "999 µs");
        assert_eq!(show(Duration::from_micros(12_345)), "12.3 ms");
        assert_eq!(show(Duration::from_millis(2_001)), "2.00 s");
    }
}
