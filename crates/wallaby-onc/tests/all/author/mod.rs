//! Random values of the types of an interface file, as bytes.

use bytes::Bytes;
use wallaby_idl::onc::model::{Form, Model, Shape, Type};

/// Writes random values by what the file says, with no code of the crate under test.
struct Author<'a> {
    model: &'a Model,
    random: fastrand::Rng,
    out: Vec<u8>,
}

impl Author<'_> {
    fn number(&mut self, number: i64) {
        let low = number as u32;
        self.out.extend(low.to_be_bytes());
    }

    fn opaque(&mut self, length: u64) {
        for _ in 0..length {
            let byte = self.random.u8(..);
            self.out.push(byte);
        }
        while !self.out.len().is_multiple_of(4) {
            self.out.push(0);
        }
    }

    /// Bytes that are not zero, because a string of C ends there.
    fn text(&mut self, length: u64) {
        let start = self.out.len();
        self.opaque(length);
        for byte in self.out[start..].iter_mut().take(length as usize) {
            *byte = (*byte).max(1);
        }
    }

    /// A length: none, the longest, or any between.
    fn length(&mut self, limit: Option<u32>, deep: bool) -> u64 {
        let most = u64::from(limit.unwrap_or(40).min(40));
        let length = match self.random.u64(..4) {
            _ if deep => 0,
            0 => 0,
            1 => most,
            _ => self.random.u64(..=most),
        };
        self.number(length as i64);
        length
    }

    fn form(&mut self, form: &Form, depth: u32) {
        let deep = depth > 6;
        match form {
            Form::Plain(kind) => self.kind(kind, depth),
            Form::Optional(kind) => {
                let there = !deep && self.random.u64(..2) == 1;
                self.number(i64::from(there));
                if there {
                    self.kind(kind, depth + 1);
                }
            }
            Form::List(kind) => {
                while !deep && self.random.u64(..4) > 0 {
                    self.number(1);
                    self.kind(kind, depth + 1);
                }
                self.number(0);
            }
            Form::FixedArray(kind, length) => {
                for _ in 0..*length {
                    self.kind(kind, depth + 1);
                }
            }
            Form::Array(kind, limit) => {
                for _ in 0..self.length(limit.map(|limit| limit.min(5)).or(Some(5)), deep) {
                    self.kind(kind, depth + 1);
                }
            }
            Form::FixedOpaque(length) => self.opaque(u64::from(*length)),
            Form::Opaque(limit) => {
                let length = self.length(*limit, false);
                self.opaque(length);
            }
            Form::Text(limit) => {
                let length = self.length(*limit, false);
                self.text(length);
            }
        }
    }

    fn kind(&mut self, kind: &Type, depth: u32) {
        match kind {
            Type::Scalar("bool") => {
                let truth = self.random.u64(..2);
                self.number(truth as i64);
            }
            Type::Scalar("i64" | "u64" | "f64") => self.opaque(8),
            Type::Scalar("i8") => {
                let number = self.random.i8(..);
                self.number(number.into());
            }
            Type::Scalar("u8") => {
                let number = self.random.u8(..);
                self.number(number.into());
            }
            Type::Scalar("i16") => {
                let number = self.random.i16(..);
                self.number(number.into());
            }
            Type::Scalar("u16") => {
                let number = self.random.u16(..);
                self.number(number.into());
            }
            Type::Scalar(_) => self.opaque(4),
            Type::Defined(at) => self.defined(*at, depth),
            Type::External(path) => panic!("no file has types from elsewhere: {path}"),
        }
    }

    fn defined(&mut self, at: usize, depth: u32) {
        let model = self.model;
        match &model.types[at].shape {
            Shape::Enum(values) => {
                let at = self.random.usize(..values.len());
                self.number(values[at].value.into());
            }
            Shape::Struct(fields) => {
                for field in fields {
                    self.form(&field.form, depth);
                }
            }
            Shape::Typedef(form) => self.form(form, depth),
            Shape::Union(union) => {
                let other = union.default.as_ref().and_then(|default| {
                    // A value that has no case of its own, if one is found at once.
                    let start = self.out.len();
                    self.kind(&union.selector, depth);
                    let four: [u8; 4] = self.out.split_off(start).try_into().ok()?;
                    let value = i64::from(i32::from_be_bytes(four));
                    let mut arms = union.arms.iter();
                    let has_case = arms.any(|arm| arm.value as u32 == value as u32);
                    (!has_case && self.random.u64(..2) == 0).then_some((value, default))
                });
                let (value, content) = other.unwrap_or_else(|| {
                    let arm = &union.arms[self.random.usize(..union.arms.len())];
                    (arm.value, &arm.content)
                });
                self.number(value);
                if let Some(form) = &content.form {
                    self.form(form, depth);
                }
            }
        }
    }
}

/// Bytes of a random value of this type.
pub(crate) fn bytes(model: &Model, at: usize, seed: u64) -> Bytes {
    let mut author = Author {
        model,
        random: fastrand::Rng::with_seed(seed),
        out: Vec::new(),
    };
    author.defined(at, 0);
    author.out.into()
}
