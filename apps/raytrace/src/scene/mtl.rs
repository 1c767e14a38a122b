//! Libraries of materials: Wavefront's .mtl files.
//!
//! Of their many models of light we take what a path tracer can do: `illum` 3, 5 and 8 are mirrors by `Ks`; 4, 6, 7 and 9,
//! or a `d` below 1 with an `Ni` above 1, are glass by `Ni` and `Tf`; a high exponent `Ns` with some `Ks` is a clear coat
//! over `Kd`; all else is matt. Light is `Ke`, or a `Ka` above 1, as files have it from before there was a `Ke`.

use super::input::{Input, number, shown};
use super::{Limits, SceneError};
use crate::material::{Finish, Material};
use glam::DVec3;
use std::path::Path;

/// What a file says of a material.
#[derive(Clone, Copy, Debug)]
struct Said {
    ambient: DVec3,
    diffuse: DVec3,
    specular: DVec3,
    emission: DVec3,
    filter: DVec3,
    exponent: f64,
    index: f64,
    opacity: f64,
    model: u32,
}

/// The materials of a library, by name, in the order of the file.
///
/// # Errors
///
/// If it cannot be read.
pub fn read(path: &Path, limits: &Limits) -> Result<Vec<(String, Material)>, SceneError> {
    let mut input = Input::open(path, limits)?;
    let mut said: Vec<(String, Said)> = Vec::new();
    let mut line = String::new();
    while input.line(&mut line)? {
        let text = line.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        if word == "newmtl" {
            if said.len() >= limits.materials {
                return Err(input.too_much("materials", limits.materials as u64));
            }
            said.push((rest.to_owned(), Said::default()));
        } else if let Some((_, material)) = said.last_mut() {
            let taken = material.take(word, rest);
            taken.map_err(|what| input.wrong(format!("{word}: {what}")))?;
        }
    }
    Ok(said
        .into_iter()
        .map(|(name, said)| (name, said.material()))
        .collect())
}

impl Default for Said {
    fn default() -> Self {
        Self {
            ambient: DVec3::ZERO,
            diffuse: DVec3::splat(0.75),
            specular: DVec3::ZERO,
            emission: DVec3::ZERO,
            filter: DVec3::ONE,
            exponent: 0.0,
            index: 1.0,
            opacity: 1.0,
            model: 2,
        }
    }
}

impl Said {
    fn take(&mut self, word: &str, rest: &str) -> Result<(), String> {
        match word {
            "Ka" => self.ambient = colour(rest, self.ambient)?,
            "Kd" => self.diffuse = colour(rest, self.diffuse)?,
            "Ks" => self.specular = colour(rest, self.specular)?,
            "Ke" => self.emission = colour(rest, self.emission)?,
            "Tf" => self.filter = colour(rest, self.filter)?,
            "Ns" => self.exponent = number(rest)?,
            "Ni" => self.index = number(rest)?,
            "d" => self.opacity = number(rest.trim_start_matches("-halo").trim())?,
            "Tr" => self.opacity = 1.0 - number(rest)?,
            "illum" => {
                let model = rest.parse();
                self.model =
                    model.map_err(|_| format!("'{}' is no model of light", shown(rest)))?;
            }
            // Textures, and what others have added.
            _ => {}
        }
        Ok(())
    }

    fn material(&self) -> Material {
        // Whatever scatters all light makes it wander about without end.
        const MOST: f64 = 0.95;
        // From this exponent on a highlight is so small that it is a reflection.
        const SHARP: f64 = 100.0;
        let (matt, shine) = (
            self.diffuse.clamp(DVec3::ZERO, DVec3::splat(MOST)),
            self.specular,
        );
        let shine = shine.clamp(DVec3::ZERO, DVec3::ONE);
        let strongest = shine.max_element();
        let is_glass =
            matches!(self.model, 4 | 6 | 7 | 9) || self.opacity < 1.0 && self.index > 1.0;
        let is_mirror = matches!(self.model, 3 | 5 | 8) && strongest > 0.0;
        let finish = if is_glass {
            // Files often leave the index at 1, or even at 0.
            let index = if self.index > 1.0 {
                self.index.min(4.0)
            } else {
                1.5
            };
            let tint = self.filter.clamp(DVec3::ZERO, DVec3::ONE);
            Finish::Glass { tint, index }
        } else if is_mirror && strongest >= matt.max_element() {
            Finish::Mirror(shine)
        } else if is_mirror || self.model == 2 && strongest > 0.0 && self.exponent >= SHARP {
            Finish::Glazed(matt)
        } else {
            Finish::Matt(matt)
        };
        let lamp = match (
            self.emission.max_element() > 0.0,
            self.ambient.max_element() > 1.0,
        ) {
            (true, _) => self.emission,
            (false, true) => self.ambient,
            (false, false) => DVec3::ZERO,
        };
        Material {
            emission: lamp.max(DVec3::ZERO),
            finish,
        }
    }
}

/// One number for all colours, or three.
fn colour(text: &str, before: DVec3) -> Result<DVec3, String> {
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else {
        return Err("expected one or three numbers, found none".to_owned());
    };
    if matches!(first, "spectral" | "xyz") {
        return Ok(before);
    }
    let red = number(first)?;
    match (words.next(), words.next()) {
        (None, _) => Ok(DVec3::splat(red)),
        (Some(green), Some(blue)) => Ok(DVec3::new(red, number(green)?, number(blue)?)),
        (Some(_), None) => Err(format!(
            "expected one or three numbers, found '{}'",
            shown(text)
        )),
    }
}
