//! Finds a type's schema by reading values of it that are invented.
//!
//! Like the walk that makes fingerprints this one answers what a type's `Deserialize` asks for, and notes it. That one has to
//! come to the same number in all releases; this one may learn. It reads the type again and again, and chooses differently each
//! time: variants that it has not seen, other samples where a value was refused, and at last a way round what refuses all of
//! them: none of an option, an empty list, another variant, the fields behind by their names. It ends when a reading brings
//! nothing new.
//!
//! A type that is met inside itself, or again in the same reading, is made as small as can be. So recursion ends at once where any
//! value ends; [`DEPTH`] bounds it where none does.

use std::any::type_name;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::de::value::{StrDeserializer, U32Deserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

use super::{Content, Definition, Field, Schema, Shape, Variant};

/// Steps that one reading may take: each place in a value is one.
const STEPS: u32 = 1 << 16;

/// Steps that all readings of a type may take.
const ALL_STEPS: u32 = 1 << 21;

/// How deep a value may be. It bounds the stack, of which each level takes some kilobytes without optimisation.
const DEPTH: u32 = 64;

/// Texts to try: one of them parses as what most types are that are written as text.
const TEXTS: [&str; 10] = [
    "",
    "a",
    "0",
    "tcp://127.0.0.1:1",
    "http://localhost/",
    "127.0.0.1",
    "127.0.0.1:1",
    "00000000-0000-4000-8000-000000000000",
    "1970-01-01T00:00:00Z",
    "1970-01-01",
];

/// How many bytes to try: those of ids, addresses and keys.
const SIZES: [usize; 6] = [0, 16, 32, 4, 8, 64];

/// Numbers to try.
const NUMBERS: [u8; 3] = [1, 0, 2];

/// The schema of a type.
pub(crate) fn of<T: DeserializeOwned>() -> Schema {
    let mut walk = Walk {
        places: vec![Place::default()],
        ..Walk::default()
    };
    while walk.begin() {
        let read = T::deserialize(Probe::new(&mut walk, ROOT));
        if !walk.learn(read.err()) {
            break;
        }
    }
    walk.schema()
}

const ROOT: usize = 0;

/// What is known of a type so far.
#[derive(Default)]
struct Walk {
    places: Vec<Place>,
    types: Vec<Type>,
    /// Which reading this is.
    reading: u32,
    steps: u32,
    /// How many steps there were before it.
    taken: u32,
    depth: u32,
    /// How many types are being made as small as can be.
    frugal: u32,
    /// Whether this reading has brought anything new.
    changed: bool,
    /// Where the latest sample was given.
    sampled: Option<usize>,
    /// The innermost choice inside which the reading has failed.
    failed_in: Option<Choice>,
}

/// A place where a value goes.
#[derive(Default)]
struct Place {
    kind: Kind,
    parts: Vec<usize>,
    /// Which sample it is given.
    sample: usize,
    /// What is inside fails: it is left empty.
    closed: bool,
}

#[derive(Default, Clone, PartialEq)]
enum Kind {
    #[default]
    Unknown,
    Leaf(Shape),
    Option,
    Seq,
    Map,
    /// With so many parts.
    Tuple(usize),
    Named(usize),
}

/// A type with a name.
struct Type {
    /// The name by which it is told from others of the same short name.
    name: &'static str,
    /// `None` for a struct.
    variants: Option<&'static [&'static str]>,
    /// Of a struct its one content, of an enum that of each variant.
    bodies: Vec<Body>,
    /// It is being read.
    open: bool,
    /// The reading in which it was met last.
    met: u32,
    /// It has variants of which nothing was seen, or something in it has.
    leads: bool,
    /// The first variant of which there was a value: one that ends.
    base: Option<usize>,
}

#[derive(Default)]
struct Body {
    kind: BodyKind,
    parts: Vec<usize>,
    names: &'static [&'static str],
    /// Fields are read by their names, this one is next: one before it is refused.
    by_name: Option<usize>,
    /// It was entered, a value of it was made, it fails.
    tried: bool,
    whole: bool,
    closed: bool,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum BodyKind {
    #[default]
    Unknown,
    Unit,
    Newtype,
    /// With so many parts.
    Tuple(usize),
    Fields,
}

/// Who has parts.
#[derive(Clone, Copy)]
enum Owner {
    Place(usize),
    /// A type, and which of its contents.
    Body(usize, usize),
}

/// What can be done differently in the next reading.
#[derive(Clone, Copy)]
enum Choice {
    /// Whether there is anything here.
    Place(usize),
    /// Which variant this is.
    Variant(usize, usize),
    /// Whether fields are read in order.
    Fields(usize, usize),
}

impl Walk {
    /// Begins a reading, if there may be another one.
    fn begin(&mut self) -> bool {
        self.taken += if self.reading > 0 {
            STEPS - self.steps + 1
        } else {
            0
        };
        (self.types.iter_mut()).for_each(|known| known.leads = false);
        self.reading += 1;
        self.steps = STEPS;
        self.changed = false;
        self.sampled = None;
        self.failed_in = None;
        while let Some(of) = (0..self.types.len()).find(|of| self.newly_leads(*of)) {
            self.types[of].leads = true;
        }
        self.taken < ALL_STEPS
    }

    /// Whether it was not known yet that a type leads to variants of which nothing was seen.
    fn newly_leads(&self, of: usize) -> bool {
        let known = &self.types[of];
        let unseen = |body: &Body| known.variants.is_some() && !body.whole && !body.closed;
        !known.leads && (known.bodies.iter()).any(|body| unseen(body) || self.leads(&body.parts))
    }

    fn leads(&self, parts: &[usize]) -> bool {
        parts.iter().any(|part| {
            let place = &self.places[*part];
            let named = matches!(place.kind, Kind::Named(of) if self.types[of].leads);
            named || self.leads(&place.parts)
        })
    }

    /// Whether another reading may bring more.
    fn learn(&mut self, error: Option<End>) -> bool {
        let Some(error) = error else {
            return self.changed;
        };
        if matches!(error, End::Refused)
            && let Some(place) = self.sampled.and_then(|at| self.places.get_mut(at))
            && place.sample + 1 < samples(&place.kind)
        {
            place.sample += 1;
            return true;
        }
        if self.changed {
            return true;
        }
        match self.failed_in {
            None => return false,
            Some(Choice::Place(at)) => self.places[at].closed = true,
            Some(Choice::Variant(of, variant)) => self.types[of].bodies[variant].closed = true,
            Some(Choice::Fields(of, body)) => {
                let body = &mut self.types[of].bodies[body];
                let next = body.by_name.map_or(body.parts.len(), |next| next + 1);
                body.by_name = Some(next);
            }
        }
        true
    }

    fn step(&mut self) -> Result<(), End> {
        self.steps = self.steps.checked_sub(1).ok_or(End::Cut)?;
        Ok(())
    }

    /// Notes what is at a place.
    fn note(&mut self, at: usize, kind: Kind) -> Result<(), End> {
        self.step()?;
        if matches!(kind, Kind::Tuple(len) if len > STEPS as usize) {
            return Err(End::Cut);
        }
        let place = &mut self.places[at];
        if place.kind == Kind::Unknown {
            place.kind = kind;
            self.changed = true;
        }
        Ok(())
    }

    fn part(&mut self, of: Owner, index: usize) -> usize {
        let next = self.places.len();
        let parts = match of {
            Owner::Place(at) => &mut self.places[at].parts,
            Owner::Body(of, body) => &mut self.types[of].bodies[body].parts,
        };
        if let Some(part) = parts.get(index) {
            return *part;
        }
        parts.push(next);
        self.places.push(Place::default());
        next
    }

    /// Does what is one level deeper.
    fn deeper<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, End>) -> Result<T, End> {
        if self.depth >= DEPTH {
            return Err(End::Cut);
        }
        self.depth += 1;
        let result = act(self);
        self.depth -= 1;
        result
    }

    /// Notes that a reading failed inside this choice, if in no other inside it.
    fn choose<T>(&mut self, choice: Choice, result: Result<T, End>) -> Result<T, End> {
        if result.is_err() {
            self.failed_in.get_or_insert(choice);
        }
        result
    }

    /// Whether something is put where there may be nothing.
    fn fills(&self, at: usize) -> bool {
        self.frugal == 0 && !self.places[at].closed
    }

    /// Reads a type with a name: `read` is told its number.
    fn named<T>(
        &mut self,
        at: usize,
        name: &'static str,
        variants: Option<&'static [&'static str]>,
        read: impl FnOnce(&mut Self, usize) -> Result<T, End>,
    ) -> Result<T, End> {
        let same = |known: &Type| known.name == name && known.variants == variants;
        let known = self.types.iter().position(same);
        let of = known.unwrap_or(self.types.len());
        if known.is_none() {
            let bodies = variants.map_or(1, <[_]>::len);
            self.types.push(Type {
                name,
                variants,
                bodies: (0..bodies).map(|_| Body::default()).collect(),
                open: false,
                met: 0,
                leads: true,
                base: None,
            });
        }
        self.note(at, Kind::Named(of))?;
        let known = &mut self.types[of];
        let (open, met) = (known.open, known.met == self.reading);
        (known.open, known.met) = (true, self.reading);
        self.frugal += u32::from(open || met);
        let result = self.deeper(|walk| read(walk, of));
        self.frugal -= u32::from(open || met);
        self.types[of].open = open;
        result
    }

    fn body(&mut self, of: usize, body: usize, kind: BodyKind, names: &'static [&'static str]) {
        let Some(known) = self.types[of].bodies.get_mut(body) else {
            return;
        };
        if known.kind == BodyKind::Unknown {
            (known.kind, known.names) = (kind, names);
            self.changed = true;
        }
    }

    /// The variant to read; none if there is no value that ends.
    fn variant(&mut self, of: usize) -> Option<usize> {
        let known = &self.types[of];
        let frugal = self.frugal > 0;
        let fresh = |body: &Body| match frugal {
            true => !body.tried,
            false => !body.whole && !body.closed,
        };
        let fresh = known.bodies.iter().position(fresh);
        let first = |which: &dyn Fn(&Body) -> bool| known.bodies.iter().position(which);
        let variant = match frugal {
            true => (known.base.or(fresh)).or_else(|| first(&|body| !body.closed)),
            false => (fresh.or_else(|| first(&|body| !body.closed && self.leads(&body.parts))))
                .or(known.base),
        }?;
        self.types[of].bodies[variant].tried = true;
        Some(variant)
    }

    fn made(&mut self, of: usize, variant: usize) {
        let known = &mut self.types[of];
        known.base.get_or_insert(variant);
        if self.frugal == 0 {
            let whole = &mut known.bodies[variant].whole;
            self.changed |= !std::mem::replace(whole, true);
        }
    }

    // What was found.

    fn schema(&self) -> Schema {
        let mut names: Vec<String> = Vec::new();
        let mut times: BTreeMap<String, u32> = BTreeMap::new();
        for known in &self.types {
            let name = short(known.name);
            let times = times.entry(name.clone()).or_default();
            *times += 1;
            names.push(match *times {
                1 => name,
                times => format!("{name}#{times}"),
            });
        }
        let types = self.types.iter().zip(&names);
        Schema {
            root: self.shape(ROOT, &names),
            types: types
                .map(|(known, name)| (name.clone(), self.definition(known, &names)))
                .collect(),
        }
    }

    fn shape(&self, at: usize, names: &[String]) -> Shape {
        let place = &self.places[at];
        let part = |index: usize| {
            let part = place.parts.get(index);
            Box::new(part.map_or(Shape::Unknown, |part| self.shape(*part, names)))
        };
        match &place.kind {
            Kind::Unknown => Shape::Unknown,
            Kind::Leaf(shape) => shape.clone(),
            Kind::Option => Shape::Option(part(0)),
            Kind::Seq => Shape::Seq(part(0)),
            Kind::Map => Shape::Map(part(0), part(1)),
            Kind::Tuple(len) => Shape::Tuple(self.shapes(&place.parts, *len, names)),
            Kind::Named(of) => Shape::Named(names[*of].clone()),
        }
    }

    /// So many parts, seen or not.
    fn shapes(&self, parts: &[usize], len: usize, names: &[String]) -> Vec<Shape> {
        let parts = parts.iter().map(|part| self.shape(*part, names));
        let mut shapes: Vec<Shape> = parts.collect();
        shapes.resize(len, Shape::Unknown);
        shapes
    }

    fn definition(&self, known: &Type, names: &[String]) -> Definition {
        let content = |body: &Body| {
            let shapes = |len| self.shapes(&body.parts, len, names);
            match body.kind {
                BodyKind::Unknown => Content::Unknown,
                BodyKind::Tuple(len) if len > STEPS as usize => Content::Unknown,
                BodyKind::Unit => Content::Unit,
                BodyKind::Newtype => Content::Newtype(shapes(1).pop().unwrap_or_default()),
                BodyKind::Tuple(len) => Content::Tuple(shapes(len)),
                BodyKind::Fields => {
                    let fields = body.names.iter().zip(shapes(body.names.len()));
                    let field = |(name, shape): (&&str, _)| Field {
                        name: (*name).to_owned(),
                        shape,
                    };
                    Content::Fields(fields.map(field).collect())
                }
            }
        };
        let Some(variants) = known.variants else {
            return Definition::Struct(known.bodies.first().map(content).unwrap_or_default());
        };
        let variants = variants.iter().zip(&known.bodies);
        let variant = |(name, body): (&&str, &Body)| Variant {
            name: (*name).to_owned(),
            content: content(body),
        };
        Definition::Enum(variants.map(variant).collect())
    }
}

/// A type's name without the modules that it and its parameters are in.
fn short(name: &str) -> String {
    let delimiters = ['<', '>', ',', ' ', '(', ')', '[', ']', '&', ';', '='];
    name.split_inclusive(delimiters)
        .map(|path| path.rsplit("::").next().unwrap_or(path))
        .collect()
}

/// How many samples there are of a kind.
fn samples(kind: &Kind) -> usize {
    match kind {
        Kind::Leaf(Shape::Str) => TEXTS.len(),
        Kind::Leaf(Shape::Bytes) => SIZES.len(),
        Kind::Leaf(Shape::Bool) => 2,
        Kind::Leaf(Shape::Unit | Shape::Char) => 1,
        Kind::Leaf(_) => NUMBERS.len(),
        _ => 1,
    }
}

/// Why a reading has ended early.
#[derive(Debug)]
enum End {
    /// The type refuses what was invented.
    Refused,
    /// It was taking too long, or it was clear that it would end so.
    Cut,
}

impl Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for End {}

impl de::Error for End {
    fn custom<T: Display>(_: T) -> Self {
        Self::Refused
    }

    fn missing_field(_: &'static str) -> Self {
        Self::Cut
    }
}

/// Answers what is asked for at one place.
struct Probe<'r> {
    walk: &'r mut Walk,
    at: usize,
}

impl<'r> Probe<'r> {
    fn new(walk: &'r mut Walk, at: usize) -> Self {
        Self { walk, at }
    }

    /// Notes a value without parts; which sample it is to be.
    fn leaf(&mut self, shape: Shape) -> Result<usize, End> {
        self.walk.note(self.at, Kind::Leaf(shape))?;
        self.walk.sampled = Some(self.at);
        Ok(self.walk.places[self.at].sample)
    }

    fn number(&mut self, shape: Shape) -> Result<u8, End> {
        let sample = self.leaf(shape)?;
        Ok(NUMBERS.get(sample).copied().unwrap_or(1))
    }

    /// Something that is there any number of times, once or not at all.
    fn elements<T>(
        self,
        kind: Kind,
        visit: impl FnOnce(Parts<'_>) -> Result<T, End>,
    ) -> Result<T, End> {
        let Self { walk, at } = self;
        walk.note(at, kind)?;
        let owner = Owner::Place(at);
        if !walk.fills(at) {
            return visit(Parts::new(walk, owner, 0));
        }
        let result = walk.deeper(|walk| visit(Parts::new(walk, owner, 1)));
        walk.choose(Choice::Place(at), result)
    }
}

macro_rules! numbers {
    ($($method:ident => $visit:ident($shape:ident),)*) => {
        $(fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
            visitor.$visit(self.number(Shape::$shape)?.into())
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = End;

    numbers! {
        deserialize_i16 => visit_i16(I16),
        deserialize_i32 => visit_i32(I32),
        deserialize_i64 => visit_i64(I64),
        deserialize_i128 => visit_i128(I128),
        deserialize_u8 => visit_u8(U8),
        deserialize_u16 => visit_u16(U16),
        deserialize_u32 => visit_u32(U32),
        deserialize_u64 => visit_u64(U64),
        deserialize_u128 => visit_u128(U128),
        deserialize_f32 => visit_f32(F32),
        deserialize_f64 => visit_f64(F64),
    }

    fn deserialize_bool<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        visitor.visit_bool(self.leaf(Shape::Bool)? > 0)
    }

    fn deserialize_i8<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        visitor.visit_i8(self.number(Shape::I8)? as i8)
    }

    fn deserialize_char<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        self.leaf(Shape::Char)?;
        visitor.visit_char('a')
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        let sample = self.leaf(Shape::Str)?;
        visitor.visit_str(TEXTS.get(sample).copied().unwrap_or_default())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        let sample = self.leaf(Shape::Bytes)?;
        let size = SIZES.get(sample).copied().unwrap_or_default();
        visitor.visit_bytes(&[0; 64][..size])
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, End> {
        self.leaf(Shape::Unit)?;
        visitor.visit_unit()
    }

    /// No format that does not describe itself can read this.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, End> {
        Err(End::Cut)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, End> {
        Err(End::Cut)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, End> {
        Err(End::Cut)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        let Self { walk, at } = self;
        walk.note(at, Kind::Option)?;
        if !walk.fills(at) {
            return visitor.visit_none();
        }
        let inner = walk.part(Owner::Place(at), 0);
        let result = walk.deeper(|walk| visitor.visit_some(Probe::new(walk, inner)));
        walk.choose(Choice::Place(at), result)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, End> {
        let name = type_name::<V::Value>();
        self.walk.named(self.at, name, None, |walk, of| {
            walk.body(of, 0, BodyKind::Unit, &[]);
            visitor.visit_unit()
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, End> {
        let name = type_name::<V::Value>();
        self.walk.named(self.at, name, None, |walk, of| {
            walk.body(of, 0, BodyKind::Newtype, &[]);
            let inner = walk.part(Owner::Body(of, 0), 0);
            visitor.visit_newtype_struct(Probe::new(walk, inner))
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        self.elements(Kind::Seq, |parts| visitor.visit_seq(parts))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, End> {
        self.elements(Kind::Map, |parts| visitor.visit_map(parts))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, End> {
        let Self { walk, at } = self;
        walk.note(at, Kind::Tuple(len))?;
        walk.deeper(|walk| visitor.visit_seq(Parts::new(walk, Owner::Place(at), len)))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, End> {
        let name = type_name::<V::Value>();
        self.walk.named(self.at, name, None, |walk, of| {
            walk.body(of, 0, BodyKind::Tuple(len), &[]);
            visitor.visit_seq(Parts::new(walk, Owner::Body(of, 0), len))
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, End> {
        let name = type_name::<V::Value>();
        self.walk.named(self.at, name, None, |walk, of| {
            read_fields(walk, (of, 0), fields, visitor)
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, End> {
        let name = type_name::<V::Value>();
        let read = |walk: &mut Walk, of: usize| {
            let variant = walk.variant(of).ok_or(End::Cut)?;
            let result = visitor.visit_enum(OneOf {
                walk: &mut *walk,
                of,
                variant,
            });
            if result.is_ok() {
                walk.made(of, variant);
            }
            walk.choose(Choice::Variant(of, variant), result)
        };
        self.walk.named(self.at, name, Some(variants), read)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Reads fields in order or, behind one that is refused, one by its name: then the reading ends, as the others are missing.
fn read_fields<'de, V: Visitor<'de>>(
    walk: &mut Walk,
    (of, body): (usize, usize),
    fields: &'static [&'static str],
    visitor: V,
) -> Result<V::Value, End> {
    walk.body(of, body, BodyKind::Fields, fields);
    let owner = Owner::Body(of, body);
    let choice = Choice::Fields(of, body);
    let next = walk.types[of].bodies[body].by_name;
    if let (Some(next), 0) = (next, walk.frugal)
        && next < fields.len()
    {
        (0..=next).for_each(|index| {
            walk.part(owner, index);
        });
        let mut parts = Parts::new(walk, owner, fields.len());
        parts.next = next;
        parts.one = Some(fields[next]);
        let result = visitor.visit_map(parts);
        if result.is_ok() {
            walk.types[of].bodies[body].by_name = Some(next + 1);
            walk.changed = true;
        }
        return walk.choose(choice, result);
    }
    let result = visitor.visit_seq(Parts::new(walk, owner, fields.len()));
    let known = &mut walk.types[of].bodies[body];
    let unread = known.parts.len() < fields.len();
    match &result {
        // Some have several names: which one belongs to which place is not known.
        Ok(_) if unread => known.kind = BodyKind::Tuple(known.parts.len()),
        Err(_) if unread && next.is_none() => return walk.choose(choice, result),
        _ => {}
    }
    result
}

/// The parts of something, in order.
struct Parts<'r> {
    walk: &'r mut Walk,
    of: Owner,
    next: usize,
    len: usize,
    /// Only the field of this name.
    one: Option<&'static str>,
}

impl<'r> Parts<'r> {
    fn new(walk: &'r mut Walk, of: Owner, len: usize) -> Self {
        Self {
            walk,
            of,
            next: 0,
            len,
            one: None,
        }
    }

    fn read<'de, T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, End> {
        let part = self.walk.part(self.of, self.next);
        self.next += 1;
        seed.deserialize(Probe::new(self.walk, part))
    }
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = End;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, End> {
        match self.next < self.len {
            true => self.read(seed).map(Some),
            false => Ok(None),
        }
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = End;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, End> {
        if let Some(name) = self.one.take() {
            self.len = 0;
            let name: StrDeserializer<'_, End> = name.into_deserializer();
            return seed.deserialize(name).map(Some);
        }
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, End> {
        self.read(seed)
    }
}

/// A variant of an enum.
struct OneOf<'r> {
    walk: &'r mut Walk,
    of: usize,
    variant: usize,
}

impl<'de> EnumAccess<'de> for OneOf<'_> {
    type Error = End;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), End> {
        let number: U32Deserializer<End> = (self.variant as u32).into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for OneOf<'_> {
    type Error = End;

    fn unit_variant(self) -> Result<(), End> {
        self.walk.body(self.of, self.variant, BodyKind::Unit, &[]);
        self.walk.step()
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, End> {
        let Self { walk, of, variant } = self;
        walk.body(of, variant, BodyKind::Newtype, &[]);
        let inner = walk.part(Owner::Body(of, variant), 0);
        seed.deserialize(Probe::new(walk, inner))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, End> {
        let Self { walk, of, variant } = self;
        walk.body(of, variant, BodyKind::Tuple(len), &[]);
        visitor.visit_seq(Parts::new(walk, Owner::Body(of, variant), len))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, End> {
        let body = (self.of, self.variant);
        read_fields(self.walk, body, fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;
    use std::num::NonZeroU64;
    use std::time::Duration;

    use serde::Deserialize;
    use wallaby_proto::Address;

    use super::*;

    /// What the schema says, in text: its root, then the types by their names.
    fn check<T: DeserializeOwned>(expected: &str) {
        let schema = of::<T>();
        let mut text = schema.root.to_string();
        for (name, definition) in &schema.types {
            text += &match definition {
                Definition::Struct(content) => format!("; {name}{}", in_words(content)),
                Definition::Enum(variants) => {
                    let variant =
                        |variant: &Variant| variant.name.clone() + &in_words(&variant.content);
                    let variants: Vec<String> = variants.iter().map(variant).collect();
                    format!("; {name} = {}", variants.join(" | "))
                }
            };
        }
        assert_eq!(text, expected);
    }

    fn in_words(content: &Content) -> String {
        let field = |field: &Field| format!("{}: {}", field.name, field.shape);
        match content {
            Content::Unknown => " ?".into(),
            Content::Unit => String::new(),
            Content::Newtype(shape) => format!("({shape})"),
            Content::Tuple(shapes) => Shape::Tuple(shapes.clone()).to_string(),
            Content::Fields(fields) => {
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!(" {{ {} }}", fields.join(", "))
            }
        }
    }

    macro_rules! shapes {
        ($($item:item)*) => {$(
            #[derive(Deserialize)]
            #[allow(dead_code, reason = "only its shape matters")]
            $item
        )*};
    }

    shapes! {
        struct Document { id: u64, title: Option<String>, tags: HashMap<String, Vec<Tag>>, size: Size }
        enum Tag { Plain, Counted(u32), Ranged { from: i8, to: i8 }, Pair(char, bool) }
        struct Size(u64, f32);
        struct Meters(f64);
        struct Nothing;
        struct Page<T> { items: Vec<T>, next: Option<u64> }
        struct Tree { left: Option<Box<Self>>, right: Option<Box<Self>>, leaves: Vec<Self> }
        enum List { Cons(u32, Box<Self>), Nil }
        enum First { Again(Box<Self>), Twice(Box<Self>, Box<Self>), End(u8) }
        enum Never { Again(Box<Self>) }
        enum Even { Odd(Odd), End }
        enum Deep { Here(Option<Tag>, Even), There(List) }
        enum Odd { Even(Box<Even>), Both(Box<Even>, Vec<Even>) }
        struct Entry { at: Address, name: String, host: SocketAddr, since: Duration, count: NonZeroU64 }
        struct Stubborn { first: u8, refused: Refusing, then: Meters, last: Option<Refusing> }
        enum Partly { Refused(Refusing), Fine(u8) }
        #[serde(deny_unknown_fields)]
        struct Renamed { #[serde(rename = "type")] kind: u8, #[serde(default)] more: Vec<u8> }
    }

    /// It refuses all that is invented.
    struct Refusing;

    impl<'de> Deserialize<'de> for Refusing {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            match text.as_str() {
                "the magic word" => Ok(Self),
                _ => Err(de::Error::custom("not the magic word")),
            }
        }
    }

    #[test]
    fn plain_types() {
        check::<()>("()");
        check::<(u8, i128, char)>("(u8, i128, char)");
        check::<[u16; 5]>("[u16; 5]");
        check::<Vec<(String, Option<bool>)>>("Vec<(String, Option<bool>)>");
        check::<Result<u8, String>>(
            "Result<u8, String>; Result<u8, String> = Ok(u8) | Err(String)",
        );
    }

    #[test]
    fn types_with_names() {
        check::<Document>(
            "Document; Document { id: u64, title: Option<String>, tags: Map<String, Vec<Tag>>, size: Size }; \
             Size(u64, f32); Tag = Plain | Counted(u32) | Ranged { from: i8, to: i8 } | Pair(char, bool)",
        );
        check::<(Meters, Nothing)>("(Meters, Nothing); Meters(f64); Nothing");
        check::<Renamed>("Renamed; Renamed { type: u8, more: Vec<u8> }");
        check::<(Page<u8>, Page<Meters>)>(
            "(Page<u8>, Page<Meters>); Meters(f64); Page<Meters> { items: Vec<Meters>, next: Option<u64> }; \
             Page<u8> { items: Vec<u8>, next: Option<u64> }",
        );
    }

    #[test]
    fn types_of_one_name_are_told_apart() {
        mod other {
            #[derive(serde::Deserialize)]
            #[expect(dead_code, reason = "only its shape matters")]
            pub(super) struct Meters {
                value: u8,
            }
        }
        check::<(Meters, other::Meters)>("(Meters, Meters#2); Meters(f64); Meters#2 { value: u8 }");
    }

    #[test]
    fn recursive_types_end() {
        check::<Tree>("Tree; Tree { left: Option<Tree>, right: Option<Tree>, leaves: Vec<Tree> }");
        check::<List>("List; List = Cons(u32, List) | Nil");
        check::<First>("First; First = Again(First) | Twice(First, First) | End(u8)");
        check::<Never>("Never; Never = Again(Never)");
        check::<Even>("Even; Even = Odd(Odd) | End; Odd = Even(Even) | Both(Even, Vec<Even>)");
        check::<Vec<Deep>>(
            "Vec<Deep>; Deep = Here(Option<Tag>, Even) | There(List); Even = Odd(Odd) | End; List = Cons(u32, List) | Nil; \
             Odd = Even(Even) | Both(Even, Vec<Even>); Tag = Plain | Counted(u32) | Ranged { from: i8, to: i8 } | Pair(char, bool)",
        );
    }

    #[test]
    fn texts_that_parse_are_found() {
        check::<(Address, Vec<Address>)>("(String, Vec<String>)");
        check::<Entry>(
            "Entry; Duration { secs: u64, nanos: u32 }; Entry { at: String, name: String, host: SocketAddr, \
             since: Duration, count: u64 }; SocketAddr = V4(([u8; 4], u16)) | V6(([u8; 16], u16))",
        );
    }

    #[test]
    fn what_refuses_everything_hides_little() {
        check::<Stubborn>(
            "Stubborn; Meters(f64); Stubborn { first: u8, refused: String, then: Meters, last: Option<String> }",
        );
        check::<(Option<Refusing>, u8)>("(Option<String>, u8)");
        check::<(Vec<Refusing>, u8)>("(Vec<String>, u8)");
        check::<(Partly, u8)>("(Partly, u8); Partly = Refused(String) | Fine(u8)");
        // The parts of a tuple have no names by which they could be asked for.
        check::<(u8, Refusing, u8)>("(u8, String, ?)");
    }

    /// A value of it has more parts than any machine has bytes.
    macro_rules! wide {
        ($name:ident, $part:ty) => {
            #[derive(Deserialize)]
            #[expect(dead_code, reason = "only its shape matters")]
            struct $name([Box<$part>; 16]);
        };
    }

    wide!(Wide0, Vec<u8>);
    wide!(Wide1, Wide0);
    wide!(Wide2, Wide1);
    wide!(Wide3, Wide2);
    wide!(Wide4, Wide3);
    wide!(Wide5, Wide4);
    wide!(Wide6, Wide5);

    struct Endless;

    impl<'de> Deserialize<'de> for Endless {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_tuple(usize::MAX, de::IgnoredAny)?;
            Ok(Self)
        }
    }

    #[test]
    fn types_without_bounds_have_bounds_here() {
        let schema = of::<(u8, Wide6)>();
        assert_eq!(schema.root.to_string(), "(u8, Wide6)");
        assert_eq!(schema.types.len(), 7, "{schema:?}");
        check::<(u8, Endless)>("(u8, ?)");
    }
}
