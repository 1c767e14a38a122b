//! A number for the shape of a type on the wire, found by asking serde.
//!
//! A type's `Deserialize` says what it wants to read: structs with their field names, enums with their variants. A
//! deserializer that invents every value and writes down what it is asked for sees the whole shape. Of an enum one
//! variant shows at a time, so the type is read once more for each further variant. A type whose `Deserialize` refuses
//! invented values shows as much as it asked for until then, which is the same at both ends.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::de::value::U32Deserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

/// Steps that one reading may take; recursive types end there.
const STEPS: u32 = 2048;

/// Readings of one type; an enum with more variants than this shows only the names of the rest.
const READINGS: usize = 256;

/// The fingerprint of a type; never 0, which means "fits any".
pub(crate) fn of<T: DeserializeOwned>() -> u64 {
    let mut shape = String::new();
    let mut plans = vec![Plan::default()];
    let mut readings = 0;
    while let Some(plan) = plans.pop() {
        let mut reading = Reading {
            shape: &mut shape,
            steps: STEPS,
            plan,
            found: Vec::new(),
        };
        // A refusal of invented values is no error: what was asked for until then is the shape.
        let _ = T::deserialize(TypeProbe(&mut reading));
        let found = std::mem::take(&mut reading.found);
        readings += 1;
        let room = READINGS.saturating_sub(readings + plans.len());
        plans.extend(found.into_iter().take(room));
        shape.push('\n');
    }
    wallaby_proto::id::stable_hash(shape.as_bytes()).max(1)
}

/// The fingerprint of a type that is known by its name; never 0.
#[cfg(feature = "protobuf")]
pub(crate) fn of_name(name: &str) -> u64 {
    wallaby_proto::id::stable_hash(name.as_bytes()).max(1)
}

/// Which variant of which enum a reading takes; the first where nothing is said.
type Plan = BTreeMap<&'static str, u32>;

struct Reading<'a> {
    shape: &'a mut String,
    steps: u32,
    plan: Plan,
    /// Plans for the variants that this reading came by and did not take.
    found: Vec<Plan>,
}

impl Reading<'_> {
    /// Writes down what was asked for; an error when the reading has gone on for too long.
    fn note(&mut self, what: impl Display) -> Result<(), ProbeEnd> {
        self.steps = self.steps.checked_sub(1).ok_or(ProbeEnd)?;
        fmt::Write::write_fmt(self.shape, format_args!("{what} ")).map_err(|_| ProbeEnd)
    }

    /// Whether optional things are still invented: recursion has to end.
    fn is_generous(&self) -> bool {
        self.steps > STEPS / 2
    }

    fn variant(&mut self, name: &'static str, variants: usize) -> u32 {
        if let Some(&variant) = self.plan.get(name) {
            return variant;
        }
        self.plan.insert(name, 0);
        for other in (1..variants as u32).rev() {
            let mut plan = self.plan.clone();
            plan.insert(name, other);
            self.found.push(plan);
        }
        0
    }
}

#[derive(Debug)]
struct ProbeEnd;

impl Display for ProbeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for ProbeEnd {}

impl de::Error for ProbeEnd {
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

struct TypeProbe<'r, 'a>(&'r mut Reading<'a>);

macro_rules! invent {
    ($($method:ident => $visit:ident($($value:expr)?),)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeEnd> {
            self.0.note(stringify!($visit))?;
            visitor.$visit($($value)?)
        })*
    };
}

impl<'de> Deserializer<'de> for TypeProbe<'_, '_> {
    type Error = ProbeEnd;

    invent! {
        deserialize_bool => visit_bool(false),
        deserialize_i8 => visit_i8(1),
        deserialize_i16 => visit_i16(1),
        deserialize_i32 => visit_i32(1),
        deserialize_i64 => visit_i64(1),
        deserialize_i128 => visit_i128(1),
        deserialize_u8 => visit_u8(1),
        deserialize_u16 => visit_u16(1),
        deserialize_u32 => visit_u32(1),
        deserialize_u64 => visit_u64(1),
        deserialize_u128 => visit_u128(1),
        deserialize_f32 => visit_f32(1.0),
        deserialize_f64 => visit_f64(1.0),
        deserialize_char => visit_char('a'),
        deserialize_str => visit_str(""),
        deserialize_string => visit_str(""),
        deserialize_bytes => visit_bytes(&[]),
        deserialize_byte_buf => visit_bytes(&[]),
        deserialize_unit => visit_unit(),
        deserialize_identifier => visit_u32(0),
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeEnd> {
        self.0.note("any")?;
        Err(ProbeEnd)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeEnd> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeEnd> {
        self.0.note("option")?;
        if self.0.is_generous() {
            visitor.visit_some(self)
        } else {
            visitor.visit_none()
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        self.0.note(name)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        self.0.note(name)?;
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeEnd> {
        self.0.note("seq")?;
        let elements = usize::from(self.0.is_generous());
        visitor.visit_seq(Elements {
            reading: self.0,
            left: elements,
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        self.0.note(format_args!("tuple{len}"))?;
        visitor.visit_seq(Elements {
            reading: self.0,
            left: len,
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        self.0.note(name)?;
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeEnd> {
        self.0.note("map")?;
        let entries = usize::from(self.0.is_generous());
        visitor.visit_map(Elements {
            reading: self.0,
            left: entries,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        self.0.note(format_args!("{name}{fields:?}"))?;
        visitor.visit_seq(Elements {
            reading: self.0,
            left: fields.len(),
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        let variant = self.0.variant(name, variants.len());
        self.0.note(format_args!("{name}{variants:?}#{variant}"))?;
        visitor.visit_enum(Variant {
            reading: self.0,
            variant,
        })
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

struct Elements<'r, 'a> {
    reading: &'r mut Reading<'a>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = ProbeEnd;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ProbeEnd> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(TypeProbe(self.reading)).map(Some)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = ProbeEnd;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ProbeEnd> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ProbeEnd> {
        seed.deserialize(TypeProbe(self.reading))
    }
}

struct Variant<'r, 'a> {
    reading: &'r mut Reading<'a>,
    variant: u32,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = ProbeEnd;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ProbeEnd> {
        let number: U32Deserializer<ProbeEnd> = self.variant.into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = ProbeEnd;

    fn unit_variant(self) -> Result<(), ProbeEnd> {
        self.reading.note("unit")
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ProbeEnd> {
        self.reading.note("newtype")?;
        seed.deserialize(TypeProbe(self.reading))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProbeEnd> {
        TypeProbe(self.reading).deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeEnd> {
        TypeProbe(self.reading).deserialize_struct("", fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    mod before {
        use super::*;
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only its shape matters")]
        pub(super) struct Document {
            id: u64,
            title: String,
        }
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only its shape matters")]
        pub(super) enum Shape {
            Circle { radius: f64 },
            Square(u32),
        }
    }

    mod after {
        use super::*;
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only its shape matters")]
        pub(super) struct Document {
            id: u64,
            title: Option<String>,
        }
        #[derive(Deserialize)]
        #[expect(dead_code, reason = "only its shape matters")]
        pub(super) enum Shape {
            Circle { radius: f64 },
            Square(u64),
        }
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its shape matters")]
    struct Tree {
        left: Option<Box<Self>>,
        right: Option<Box<Self>>,
        leaves: Vec<Self>,
    }

    #[test]
    fn a_changed_type_has_another_fingerprint() {
        assert_eq!(of::<before::Document>(), of::<before::Document>());
        assert_ne!(of::<before::Document>(), of::<after::Document>());
        assert_ne!(of::<Vec<before::Document>>(), of::<Vec<after::Document>>());
        assert_ne!(of::<(u32, u64)>(), of::<(u64, u32)>());
    }

    #[test]
    fn later_variants_are_seen() {
        assert_ne!(of::<before::Shape>(), of::<after::Shape>());
        assert_ne!(
            of::<(u8, Vec<before::Shape>)>(),
            of::<(u8, Vec<after::Shape>)>()
        );
    }

    #[test]
    fn recursive_types_end() {
        assert_eq!(of::<Tree>(), of::<Tree>());
        assert_ne!(of::<Tree>(), 0);
    }

    #[test]
    fn types_that_refuse_invented_values_still_have_one() {
        assert_eq!(
            of::<wallaby_proto::Address>(),
            of::<wallaby_proto::Address>()
        );
        assert_ne!(
            of::<(std::num::NonZeroU8, u8)>(),
            of::<(std::num::NonZeroU8, u16)>()
        );
    }
}
