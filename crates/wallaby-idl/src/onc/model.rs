//! An interface as it is meant: every name looked up, every number known, every rule kept.

/// Everything that a file defines.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Constants, in the order of the file.
    pub constants: Vec<Constant>,
    /// Types, in the order of the file.
    pub types: Vec<Definition>,
    /// Programs, in the order of the file.
    pub programs: Vec<Program>,
}

/// A constant.
#[derive(Debug, Clone)]
pub struct Constant {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its documentation.
    pub docs: Vec<String>,
    /// Its value.
    pub value: Value,
}

/// What a constant is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i128),
    /// A string, which rpcgen takes too.
    Text(String),
}

/// A type.
#[derive(Debug, Clone)]
pub struct Definition {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its documentation.
    pub docs: Vec<String>,
    /// What it is.
    pub shape: Shape,
}

/// What a type is.
#[derive(Debug, Clone)]
pub enum Shape {
    /// Numbers with names.
    Enum(Vec<Enumerator>),
    /// Values one after another.
    Struct(Vec<Field>),
    /// One of several contents, as a number says.
    Union(Union),
    /// Another name.
    Typedef(Form),
}

/// A number with a name.
#[derive(Debug, Clone)]
pub struct Enumerator {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its number.
    pub value: i32,
    /// Its documentation.
    pub docs: Vec<String>,
}

/// A part of a struct.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its type.
    pub form: Form,
    /// Its documentation.
    pub docs: Vec<String>,
}

/// A choice.
#[derive(Debug, Clone)]
pub struct Union {
    /// The name of what makes the choice.
    pub discriminant: String,
    /// Its type: an integer, a bool or an enum.
    pub selector: Type,
    /// One for each case.
    pub arms: Vec<Arm>,
    /// What all other numbers mean, if they mean anything.
    pub default: Option<Content>,
}

/// A case of a union.
#[derive(Debug, Clone)]
pub struct Arm {
    /// The number that means it.
    pub value: i64,
    /// How the file calls the number, if it has a name.
    pub name: Option<String>,
    /// The variant's name in Rust.
    pub rust: String,
    /// What it holds.
    pub content: Content,
}

/// What a case holds.
#[derive(Debug, Clone)]
pub struct Content {
    /// `None`: nothing.
    pub form: Option<Form>,
    /// Its documentation.
    pub docs: Vec<String>,
}

/// A type with what stands around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// The type as it is.
    Plain(Type),
    /// There, or not.
    Optional(Type),
    /// A linked list of structs, whose own field for the next one is left out.
    List(Type),
    /// As many as stated.
    FixedArray(Type, u32),
    /// At most as many as stated.
    Array(Type, Option<u32>),
    /// As many bytes as stated.
    FixedOpaque(u32),
    /// At most as many bytes as stated.
    Opaque(Option<u32>),
    /// A string of at most as many bytes as stated.
    Text(Option<u32>),
}

/// A type that a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A type of the language, by its name in Rust.
    Scalar(&'static str),
    /// The type with this index in [`Model::types`].
    Defined(usize),
    /// A type from elsewhere, by its path in Rust.
    External(String),
}

/// A program.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its number.
    pub number: u32,
    /// Its documentation.
    pub docs: Vec<String>,
    /// Its versions.
    pub versions: Vec<Version>,
}

/// A version of a program.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust.
    pub rust: String,
    /// Its number.
    pub number: u32,
    /// Its documentation.
    pub docs: Vec<String>,
    /// Its procedures.
    pub procedures: Vec<Procedure>,
}

/// A procedure.
#[derive(Debug, Clone)]
pub struct Procedure {
    /// Its name in the file.
    pub name: String,
    /// Its name in Rust, as a function.
    pub rust: String,
    /// The name in Rust of its number.
    pub rust_number: String,
    /// Its number.
    pub number: u32,
    /// Its documentation.
    pub docs: Vec<String>,
    /// Names in Rust and types of its arguments.
    pub arguments: Vec<(String, Form)>,
    /// What it answers; `None`: that it is done.
    pub result: Option<Form>,
}

impl Form {
    /// The type in it, if it has one with a name.
    #[must_use]
    pub fn element(&self) -> Option<&Type> {
        match self {
            Self::Plain(kind)
            | Self::Optional(kind)
            | Self::List(kind)
            | Self::FixedArray(kind, _)
            | Self::Array(kind, _) => Some(kind),
            Self::FixedOpaque(_) | Self::Opaque(_) | Self::Text(_) => None,
        }
    }
}

impl Shape {
    /// All that a value of this type holds.
    pub fn forms(&self) -> Box<dyn Iterator<Item = &Form> + '_> {
        match self {
            Self::Enum(_) => Box::new(std::iter::empty()),
            Self::Struct(fields) => Box::new(fields.iter().map(|field| &field.form)),
            Self::Union(union) => {
                let contents = union.arms.iter().map(|arm| &arm.content);
                let contents = contents.chain(union.default.iter());
                Box::new(contents.filter_map(|content| content.form.as_ref()))
            }
            Self::Typedef(form) => Box::new(std::iter::once(form)),
        }
    }

    pub(super) fn forms_mut(&mut self) -> Vec<&mut Form> {
        match self {
            Self::Enum(_) => Vec::new(),
            Self::Struct(fields) => fields.iter_mut().map(|field| &mut field.form).collect(),
            Self::Union(union) => {
                let contents = union.arms.iter_mut().map(|arm| &mut arm.content);
                let contents = contents.chain(union.default.iter_mut());
                contents
                    .filter_map(|content| content.form.as_mut())
                    .collect()
            }
            Self::Typedef(form) => vec![form],
        }
    }
}

impl Model {
    /// The type with this name in the file.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.types.iter().position(|known| known.name == name)
    }

    /// Everything that types and procedures hold.
    pub(super) fn forms(&self) -> impl Iterator<Item = &Form> {
        let types = self.types.iter().flat_map(|known| known.shape.forms());
        let versions = self.programs.iter().flat_map(|program| &program.versions);
        let procedures = versions.flat_map(|version| &version.procedures);
        types.chain(procedures.flat_map(|procedure| {
            let arguments = procedure.arguments.iter().map(|(_, form)| form);
            arguments.chain(&procedure.result)
        }))
    }

    /// Whether a value of the type `from` can hold one of `to`, over the forms that `passes` lets through.
    pub(super) fn reaches(&self, from: usize, to: usize, passes: impl Fn(&Form) -> bool) -> bool {
        let mut seen = vec![false; self.types.len()];
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            for form in self.types[next].shape.forms().filter(|form| passes(form)) {
                if let Some(Type::Defined(inner)) = form.element() {
                    if *inner == to {
                        return true;
                    }
                    if !std::mem::replace(&mut seen[*inner], true) {
                        open.push(*inner);
                    }
                }
            }
        }
        false
    }
}
