//! Bandwidths as people write them: `1g`, `100m`, `2.5g`, in bits per second.

use std::num::NonZeroU64;

/// Reads `100m` or `1g`.
pub(crate) fn parse(text: &str) -> Result<NonZeroU64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is not a bandwidth such as 100m or 1g, in bits per second");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bits = match unit.trim() {
        "k" => number * 1e3,
        "m" => number * 1e6,
        "g" => number * 1e9,
        _ => return Err(wrong()),
    };
    match NonZeroU64::new(bits as u64) {
        Some(bits) if bits.get() <= MOST => Ok(bits),
        Some(_) => Err("a link of more than 1,000 gigabits a second is not possible".to_owned()),
        None => Err("nothing gets through a link without bandwidth".to_owned()),
    }
}

const MOST: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_have_units() {
        let bits = |text| parse(text).map(NonZeroU64::get);
        assert_eq!(bits("1g"), Ok(1_000_000_000));
        assert_eq!(bits("2.5 g"), Ok(2_500_000_000));
        assert_eq!(bits("100m"), Ok(100_000_000));
        for text in ["", "1", "g", "1x", "-1g", "0m", "2000g", "1.2.3g"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
