//! Spans of time as people write and read them: `250us`, `1ms`, `2s` in; `1.25 ms` out.

use std::time::Duration;

/// Reads `250us`, `1.5ms`, `2s`, `1m` or `0`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong(text))?;
    let seconds = match unit.trim() {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "" if number == 0.0 => 1.0,
        _ => return Err(wrong(text)),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong(text))
}

/// Like [`parse`], for deadlines, which can't be zero.
pub(crate) fn parse_nonzero(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("this time can't be zero".to_owned()),
        time => Ok(time),
    }
}

/// Like [`parse`], for the delay of a link.
pub(crate) fn parse_delay(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(10);
    match parse(text)? {
        delay if delay > LONGEST => Err(format!("a link takes {} at most", show(LONGEST))),
        delay => Ok(delay),
    }
}

fn wrong(text: &str) -> String {
    format!("`{text}` is not a span of time such as 250us, 1ms or 2s")
}

/// Writes a span with three digits and the unit that fits.
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
    fn reads_what_people_write() {
        assert_eq!(parse("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse("1.5 ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert_eq!(parse("3µs"), Ok(Duration::from_micros(3)));
    }

    #[test]
    fn refuses_the_rest() {
        for wrong in [
            "",
            "5",
            "ms",
            "-1ms",
            "1.2.3s",
            "1 parsec",
            "9e99s",
            "99999999999999999999999999999s",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse_nonzero("0ms").is_err());
        assert!(parse_delay("11s").is_err());
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
