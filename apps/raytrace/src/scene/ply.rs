//! PLY files (the Stanford polygon format): text, or bytes in either order.

use super::input::{Input, number, shown};
use super::mesh::Mesh;
use super::{Limits, Scene, SceneError};
use crate::material::Material;
use glam::DVec3;
use indicatif::ProgressBar;
use std::path::Path;

/// How its numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    LittleEndian,
    BigEndian,
}

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    F32,
    F64,
}

/// What an element has of something.
#[derive(Clone, Debug)]
struct Property {
    name: String,
    /// The type of the length, if it is a list.
    length: Option<Number>,
    number: Number,
}

/// A kind of element: so many of them.
#[derive(Clone, Debug)]
struct Kind {
    name: String,
    count: u64,
    properties: Vec<Property>,
}

/// A file after its header.
struct Reading {
    input: Input,
    format: Format,
    line: String,
    /// Where in the line of text the next number begins.
    at: usize,
}

/// More lines than this before the data are no header.
const HEADER: usize = 1000;
/// A face with more corners than this is none.
const CORNERS: u64 = 1 << 16;

/// Reads a file.
///
/// # Errors
///
/// If it cannot be read, with the line or the element.
pub fn read(path: &Path, limits: &Limits, bar: &ProgressBar) -> Result<Scene, SceneError> {
    let mut input = Input::open(path, limits, bar)?;
    let (format, kinds) = header(&mut input)?;
    let mut reading = Reading {
        input,
        format,
        line: String::new(),
        at: 0,
    };
    let mut mesh = Mesh {
        materials: vec![Material::default()],
        ..Mesh::default()
    };
    for kind in &kinds {
        for number in 0..kind.count {
            let taken = reading.element(kind, &mut mesh);
            taken.map_err(|error| within(error, kind, number))?;
        }
    }
    if let Some(kind) = kinds.iter().find(|kind| kind.name == "tristrips")
        && mesh.faces.is_empty()
    {
        let what = format!(
            "its {} strips of triangles are not understood: only faces are",
            kind.count
        );
        return Err(reading.input.wrong(what));
    }
    Ok(mesh.finish(path.display().to_string(), Vec::new()))
}

/// In a file of bytes there are no lines: says which element it is about.
fn within(error: SceneError, kind: &Kind, number: u64) -> SceneError {
    let also = |place: String| format!("{place}, {} {number}", kind.name);
    match error {
        SceneError::Wrong { place, what } => SceneError::Wrong {
            place: also(place),
            what,
        },
        SceneError::TooMuch { place, what, limit } => SceneError::TooMuch {
            place: also(place),
            what,
            limit,
        },
        other => other,
    }
}

fn header(input: &mut Input) -> Result<(Format, Vec<Kind>), SceneError> {
    let mut line = String::new();
    input.line(&mut line)?;
    if line.trim() != "ply" {
        return Err(input.wrong(format!("expected 'ply', found '{}'", shown(&line))));
    }
    let mut format = None;
    let mut kinds: Vec<Kind> = Vec::new();
    for _ in 0..HEADER {
        if !input.line(&mut line)? {
            return Err(input.wrong("the file ends within its header"));
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let not_understood = || input.wrong(format!("'{}' is not understood", shown(&line)));
        match words[..] {
            ["end_header"] => {
                let format = format.ok_or_else(|| input.wrong("the header names no format"))?;
                return Ok((format, kinds));
            }
            ["format", name, _] => {
                format = Some(match name {
                    "ascii" => Format::Text,
                    "binary_little_endian" => Format::LittleEndian,
                    "binary_big_endian" => Format::BigEndian,
                    _ => return Err(not_understood()),
                });
            }
            ["element", name, count] => kinds.push(Kind {
                name: name.to_owned(),
                count: counted(name, count, input)?,
                properties: Vec::new(),
            }),
            ["property", "list", length, of, name] => {
                let (length, number) = (Number::named(length), Number::named(of));
                let (Some(length), Some(number), Some(kind)) = (length, number, kinds.last_mut())
                else {
                    return Err(not_understood());
                };
                kind.properties.push(Property {
                    name: name.to_owned(),
                    length: Some(length),
                    number,
                });
            }
            ["property", of, name] => {
                let (Some(number), Some(kind)) = (Number::named(of), kinds.last_mut()) else {
                    return Err(not_understood());
                };
                kind.properties.push(Property {
                    name: name.to_owned(),
                    length: None,
                    number,
                });
            }
            ["comment" | "obj_info", ..] | [] => {}
            _ => return Err(not_understood()),
        }
    }
    Err(input.too_much("lines in a header", HEADER as u64))
}

/// How many elements there are said to be. Room is only made for those that come.
fn counted(name: &str, count: &str, input: &Input) -> Result<u64, SceneError> {
    let most = u64::from(input.limits().triangles) * 3;
    let count: u64 = count
        .parse()
        .map_err(|_| input.wrong(format!("'{}' is no number of elements", shown(count))))?;
    if matches!(name, "vertex" | "face") && count > most {
        return Err(input.too_much("points or faces", most));
    }
    Ok(count)
}

impl Reading {
    fn element(&mut self, kind: &Kind, mesh: &mut Mesh) -> Result<(), SceneError> {
        if self.format == Format::Text {
            self.at = 0;
            if !self.input.line(&mut self.line)? {
                return Err(self.input.wrong("the file ends too early"));
            }
        }
        match kind.name.as_str() {
            "vertex" => self.point(kind, mesh),
            "face" => self.face(kind, mesh),
            _ => {
                for property in &kind.properties {
                    self.values(property, &mut Vec::new())?;
                }
                // Elements of nothing would cost time and never end the file.
                match kind.properties.is_empty() && self.format != Format::Text {
                    true => Err(self.input.wrong("elements without properties")),
                    false => Ok(()),
                }
            }
        }
    }

    fn point(&mut self, kind: &Kind, mesh: &mut Mesh) -> Result<(), SceneError> {
        let mut point = DVec3::NAN;
        let mut normal = DVec3::NAN;
        let mut values = Vec::new();
        for property in &kind.properties {
            self.values(property, &mut values)?;
            let value = values.first().copied().unwrap_or(f64::NAN);
            match property.name.as_str() {
                "x" => point.x = value,
                "y" => point.y = value,
                "z" => point.z = value,
                "nx" => normal.x = value,
                "ny" => normal.y = value,
                "nz" => normal.z = value,
                _ => {}
            }
        }
        const LARGEST: f64 = 1e60;
        if !(point.abs().max_element() <= LARGEST && point.is_finite()) {
            let what = format!("expected numbers x, y and z, found {point}");
            return Err(self.input.wrong(what));
        }
        mesh.points.push(point);
        if normal.is_finite() {
            mesh.normals.push(normal.normalize_or_zero().as_vec3());
        }
        Ok(())
    }

    fn face(&mut self, kind: &Kind, mesh: &mut Mesh) -> Result<(), SceneError> {
        // Either all points have normals, or none.
        let has_normals = mesh.normals.len() == mesh.points.len();
        let mut values = Vec::new();
        for property in &kind.properties {
            self.values(property, &mut values)?;
            if !matches!(property.name.as_str(), "vertex_indices" | "vertex_index") {
                continue;
            }
            let points = mesh.points.len();
            let place = |value: &f64| {
                let is_place = value.fract() == 0.0 && *value >= 0.0 && *value < points as f64;
                let place = *value as u32;
                is_place
                    .then_some((place, has_normals.then_some(place)))
                    .ok_or(*value)
            };
            let corners: Result<Vec<_>, f64> = values.iter().map(place).collect();
            let corners = corners.map_err(|index| {
                let what = format!("index {index}, but there are {points} points");
                self.input.wrong(what)
            })?;
            if corners.len() < 3 {
                let found = corners.len();
                let what = format!("expected three or more corners, found {found}");
                return Err(self.input.wrong(what));
            }
            if !mesh.add(&corners, 0, self.input.limits()) {
                let limit = self.input.limits().triangles;
                return Err(self.input.too_much("triangles", limit.into()));
            }
        }
        Ok(())
    }

    /// The numbers of a property: one, or those of a list.
    fn values(&mut self, property: &Property, values: &mut Vec<f64>) -> Result<(), SceneError> {
        values.clear();
        let count = match property.length {
            None => 1,
            Some(length) => {
                let count = self.value(length)?;
                if !(count >= 0.0 && count <= CORNERS as f64 && count.fract() == 0.0) {
                    let what = format!("a list of {count} numbers: 0 to {CORNERS} are understood");
                    return Err(self.input.wrong(what));
                }
                count as u64
            }
        };
        for _ in 0..count {
            values.push(self.value(property.number)?);
        }
        Ok(())
    }

    fn value(&mut self, of: Number) -> Result<f64, SceneError> {
        if self.format == Format::Text {
            let rest = self.line.get(self.at..).unwrap_or_default();
            let word = rest.trim_start();
            let begin = self.at + rest.len() - word.len();
            let word = word.split_whitespace().next().unwrap_or_default();
            self.at = begin + word.len();
            if word.is_empty() {
                return Err(self.input.wrong("too few numbers in the line"));
            }
            return number(word).map_err(|what| self.input.wrong(what));
        }
        let mut bytes = [0u8; 8];
        let bytes = &mut bytes[..of.size()];
        self.input.bytes(bytes)?;
        if self.format == Format::BigEndian {
            bytes.reverse();
        }
        Ok(of.value(bytes))
    }
}

impl Number {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "char" | "int8" => Self::I8,
            "uchar" | "uint8" => Self::U8,
            "short" | "int16" => Self::I16,
            "ushort" | "uint16" => Self::U16,
            "int" | "int32" => Self::I32,
            "uint" | "uint32" => Self::U32,
            "float" | "float32" => Self::F32,
            "double" | "float64" => Self::F64,
            _ => return None,
        })
    }

    fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Of bytes, as many as its size, the least first.
    fn value(self, bytes: &[u8]) -> f64 {
        let mut all = [0u8; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        let whole = u64::from_le_bytes(all);
        match self {
            Self::I8 => f64::from(whole as i8),
            Self::U8 => f64::from(whole as u8),
            Self::I16 => f64::from(whole as i16),
            Self::U16 => f64::from(whole as u16),
            Self::I32 => f64::from(whole as i32),
            Self::U32 => f64::from(whole as u32),
            Self::F32 => f64::from(f32::from_bits(whole as u32)),
            Self::F64 => f64::from_bits(whole),
        }
    }
}
