//! A picture that grows: light is added in whole numbers, so that the order in which it comes does not matter.

use glam::DVec3;
use serde::{Deserialize, Serialize};

/// Light, red, green and blue, in whole numbers of a 2^24th part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount(pub [u64; 3]);

/// Light for a pixel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contribution {
    /// Which pixel, row by row.
    pub pixel: u32,
    /// How much.
    pub amount: Amount,
}

/// The light of all pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<Amount>,
    /// Samples of each pixel until now, on average, times pixels.
    paths: u64,
}

impl Amount {
    const UNIT: f64 = (1u64 << 24) as f64;
    /// No single contribution is brighter: so sums of 2^24 of them fit.
    const BRIGHTEST: f64 = 65_536.0;

    /// Of light in numbers; what is no number is dark.
    pub fn of(light: DVec3) -> Self {
        let whole = |light: f64| (light.clamp(0.0, Self::BRIGHTEST) * Self::UNIT).round() as u64;
        Self(light.to_array().map(whole))
    }

    /// Adds; too much is as much as there can be, in whatever order it comes.
    pub fn add(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Joins what is for the same pixel; in the order of pixels.
pub fn join(contributions: &mut Vec<Contribution>) {
    contributions.sort_unstable_by_key(|contribution| contribution.pixel);
    contributions.dedup_by(|next, first| {
        let same = next.pixel == first.pixel;
        if same {
            first.amount.add(next.amount);
        }
        same
    });
}

impl Picture {
    /// A dark one.
    pub fn new(width: u32, height: u32) -> Self {
        Self {
            width,
            height,
            pixels: vec![Amount::default(); width as usize * height as usize],
            paths: 0,
        }
    }

    /// Adds light. What is for a pixel that does not exist is for another picture, and false is returned.
    #[must_use]
    pub fn add(&mut self, contribution: Contribution) -> bool {
        let pixel = self.pixels.get_mut(contribution.pixel as usize);
        let exists = pixel.is_some();
        if let Some(pixel) = pixel {
            pixel.add(contribution.amount);
        }
        exists
    }

    /// So many paths are complete.
    pub fn count(&mut self, paths: u64) {
        self.paths += paths;
    }

    /// How many paths are complete.
    pub fn paths(&self) -> u64 {
        self.paths
    }

    /// The colours of all pixels, three bytes each, as they are to be shown.
    ///
    /// Of a picture that still grows all pixels are shown as if they had as many samples as they have on average.
    pub fn colours(&self) -> Vec<u8> {
        let pixels = self.pixels.len().max(1) as f64;
        let samples = (self.paths.max(1) as f64 / pixels).max(1.0 / pixels);
        let scale = 1.0 / (Amount::UNIT * samples);
        let shown = |light: &u64| shown(*light as f64 * scale);
        self.pixels
            .iter()
            .flat_map(|pixel| pixel.0.iter().map(shown))
            .collect()
    }

    /// The picture as a PNG file.
    ///
    /// # Errors
    ///
    /// If the picture is larger than such a file can be.
    pub fn png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_source_srgb(png::SrgbRenderingIntent::Perceptual);
        encoder.set_compression(png::Compression::High);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.colours())?;
        writer.finish()?;
        Ok(file)
    }
}

/// Light as a byte of sRGB, bright light compressed as film does: the curve of Narkowicz, "ACES Filmic Tone Mapping
/// Curve" (2016).
fn shown(light: f64) -> u8 {
    let light = light * 0.8;
    let film = light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14);
    let film = film.clamp(0.0, 1.0);
    let encoded = match film <= 0.003_130_8 {
        true => film * 12.92,
        false => 1.055 * libm::pow(film, 1.0 / 2.4) - 0.055,
    };
    (encoded * 255.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_even_when_it_is_too_much() {
        let amounts = [1, u64::MAX - 5, 3, 77].map(|amount| Amount([amount; 3]));
        let sum = |amounts: &mut dyn Iterator<Item = Amount>| {
            let mut sum = Amount::default();
            amounts.for_each(|amount| sum.add(amount));
            sum
        };
        assert_eq!(
            sum(&mut amounts.into_iter()),
            sum(&mut amounts.into_iter().rev())
        );
    }

    #[test]
    fn what_is_no_number_is_dark_and_what_is_endless_bright() {
        assert_eq!(Amount::of(DVec3::NAN), Amount::default());
        assert_eq!(Amount::of(DVec3::splat(-1.0)), Amount::default());
        assert_eq!(Amount::of(DVec3::INFINITY).0, [1 << 40; 3]);
    }

    #[test]
    fn light_becomes_colours_and_a_file() {
        let mut picture = Picture::new(2, 1);
        let white = Amount::of(DVec3::splat(50.0));
        assert!(picture.add(Contribution {
            pixel: 1,
            amount: white
        }));
        assert!(!picture.add(Contribution {
            pixel: 2,
            amount: white
        }));
        picture.count(2);
        assert_eq!(picture.colours(), [0, 0, 0, 255, 255, 255]);
        let file = picture.png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; 6];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, picture.colours());
    }
}
