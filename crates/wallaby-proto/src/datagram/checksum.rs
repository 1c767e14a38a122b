//! The checksum at the end of each datagram.

/// Of what is longer three parts are computed at a time, which is faster from then on.
#[cfg(any(test, target_arch = "x86_64"))]
const SHORT: usize = 512;

/// CRC32C over all bytes. The library's is made for long inputs: of a datagram with one small message it spends most time on the
/// bytes before and after aligned words.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= SHORT && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has these instructions.
        return unsafe { crc32c_short(bytes) };
    }
    ::crc32c::crc32c(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn crc32c_short(bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    let (words, rest) = bytes.as_chunks();
    let mut sum = u64::from(u32::MAX);
    for word in words {
        sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
    }
    let mut sum = sum as u32; // all that it is
    let (halves, rest) = rest.as_chunks();
    for half in halves {
        sum = _mm_crc32_u32(sum, u32::from_le_bytes(*half));
    }
    for byte in rest {
        sum = _mm_crc32_u8(sum, *byte);
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_one_that_all_know() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn short_and_long_ones_are_the_same_wherever_they_lie() {
        let bytes: Vec<u8> = (0..2 * SHORT as u32)
            .map(|index| ((index * 167) >> 3) as u8)
            .collect();
        for len in 0..=SHORT + 1 {
            let start = len % 9;
            let part = &bytes[start..start + len];
            assert_eq!(crc32c(part), ::crc32c::crc32c(part), "{len} from {start}");
        }
    }
}
