//! A checksum of arguments.
//!
//! It is to tell a client's mistakes apart, not its tricks: who finds two arguments with the same checksum gets its own
//! answers mixed up.

/// A checksum of bytes, with what the processor has for it.
pub(super) fn checksum(bytes: &[u8], secret: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= LONG && is_x86_feature_detected!("aes") {
        // SAFETY: the processor has these instructions.
        return unsafe { rounds::checksum(bytes, secret) };
    }
    in_products(bytes, secret)
}

/// Four lanes of sixteen bytes at a time.
fn in_products(bytes: &[u8], secret: u64) -> u64 {
    let keys = LANES.map(|lane| lane ^ secret);
    let mut lanes = keys.map(|key| key.rotate_left(32) ^ MULTIPLIER);
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        mix(&mut lanes, &keys, block);
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        mix(&mut lanes, &keys, &block);
    }
    let [a, b, c, d] = lanes;
    let sum = fold(bytes.len() as u64 ^ a, MULTIPLIER) ^ fold(b ^ secret, c | 1);
    fold(sum ^ d, MULTIPLIER)
}

/// Written out: this runs over all that arrives over UDP.
fn mix(lanes: &mut [u64; 4], keys: &[u64; 4], block: &[u8; BLOCK]) {
    let ([a, b, c, d], []) = block.as_chunks() else {
        return;
    };
    lanes[0] = mixed(lanes[0], keys[0], a);
    lanes[1] = mixed(lanes[1], keys[1], b);
    lanes[2] = mixed(lanes[2], keys[2], c);
    lanes[3] = mixed(lanes[3], keys[3], d);
}

/// One product for two words. Nobody knows the key or the lane, so nobody can make a factor 0, which would hide the other.
#[inline]
fn mixed(lane: u64, key: u64, part: &[u8; 16]) -> u64 {
    let both = u128::from_le_bytes(*part);
    let (low, high) = (both as u64, (both >> 64) as u64);
    fold(low ^ key, high ^ lane)
}

/// Both halves of a product: each bit of what goes in shows in many of what comes out.
#[inline]
pub(super) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Four lanes of sixteen bytes.
const BLOCK: usize = 64;
/// Numbers with about as many ones as zeros.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const LANES: [u64; 4] = [
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
    0x8ebc_6af0_9c88_c6e3,
];
/// From so many bytes on, what the processor has is quicker.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 512;

/// Rounds of AES, which take sixteen bytes in the time of a product, and several at a time.
#[cfg(target_arch = "x86_64")]
mod rounds {
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_xor_si128,
    };

    use super::{LANES, MULTIPLIER};

    const BLOCK: usize = 128;

    /// Eight lanes: a round of each takes as long as those of all others.
    #[target_feature(enable = "aes")]
    pub(super) fn checksum(bytes: &[u8], secret: u64) -> u64 {
        let mut lanes = [pair(secret, MULTIPLIER); 8];
        for (turn, lane) in (0..).zip(&mut lanes) {
            let key = pair(LANES[turn as usize % 4], secret.rotate_left(turn + 1));
            *lane = _mm_aesenc_si128(*lane, key);
        }
        let (blocks, rest) = bytes.as_chunks();
        for block in blocks {
            mix(&mut lanes, block);
        }
        if !rest.is_empty() {
            let mut block = [0; BLOCK];
            block[..rest.len()].copy_from_slice(rest);
            mix(&mut lanes, &block);
        }
        let end = pair(bytes.len() as u64, secret);
        let mut sum = end;
        for lane in lanes {
            sum = _mm_aesenc_si128(_mm_aesenc_si128(_mm_xor_si128(sum, lane), end), end);
        }
        _mm_cvtsi128_si64(_mm_aesenc_si128(sum, end)) as u64
    }

    #[target_feature(enable = "aes")]
    fn mix(lanes: &mut [__m128i; 8], block: &[u8; BLOCK]) {
        for (lane, part) in lanes.iter_mut().zip(block.as_chunks().0) {
            let both = u128::from_le_bytes(*part);
            *lane = _mm_aesenc_si128(*lane, pair(both as u64, (both >> 64) as u64));
        }
    }

    #[target_feature(enable = "aes")]
    fn pair(low: u64, high: u64) -> __m128i {
        _mm_set_epi64x(high.cast_signed(), low.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices(checksum: fn(&[u8], u64) -> u64, length: usize) {
        let mut bytes = vec![0; length];
        let sum = checksum(&bytes, 7);
        bytes.push(0);
        assert_ne!(checksum(&bytes, 7), sum, "{length} and one more");
        bytes.pop();
        for place in 0..length {
            bytes[place] = 1;
            assert_ne!(checksum(&bytes, 7), sum, "byte {place} of {length}");
            bytes[place] = 0;
        }
        assert_ne!(checksum(&bytes, 8), sum, "a secret of its own");
    }

    #[test]
    fn a_checksum_notices_each_byte_and_the_length() {
        for length in [0, 1, 7, 8, 31, 32, 33, 100, 511, 512, 640, 1_000, 5_000] {
            notices(checksum, length);
            notices(in_products, length);
        }
    }

    #[test]
    fn a_checksum_notices_what_changed_places() {
        for length in [64, 128, 1_024, 4_096] {
            let bytes: Vec<u8> = (0..length).map(|place| (place / 16) as u8).collect();
            for distance in (16..length).step_by(16) {
                let mut changed = bytes.clone();
                let (head, tail) = changed.split_at_mut(distance);
                head[..16].swap_with_slice(&mut tail[..16]);
                if changed != bytes {
                    assert_ne!(checksum(&changed, 7), checksum(&bytes, 7), "{distance}");
                    assert_ne!(
                        in_products(&changed, 7),
                        in_products(&bytes, 7),
                        "{distance}"
                    );
                }
            }
        }
    }
}
