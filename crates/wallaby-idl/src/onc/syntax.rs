//! An interface file as it is written: definitions in order, names not yet looked up.

use super::expression::Expression;
use super::source::Place;

/// A name and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) place: Place,
}

/// A definition with its documentation.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) name: Name,
    pub(super) docs: Vec<String>,
    pub(super) kind: ItemKind,
}

#[derive(Debug, Clone)]
pub(super) enum ItemKind {
    Constant(Expression),
    TextConstant(String),
    Enum(Vec<Enumerator>),
    Struct(Vec<Declaration>),
    Union(Box<Union>),
    Typedef(Declaration),
    Program(Program),
}

#[derive(Debug, Clone)]
pub(super) struct Enumerator {
    pub(super) name: Name,
    pub(super) value: Option<Expression>,
    pub(super) docs: Vec<String>,
}

/// A type and what it is the type of.
#[derive(Debug, Clone)]
pub(super) struct Declaration {
    pub(super) name: Name,
    pub(super) form: Form,
    pub(super) docs: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) enum Form {
    Void,
    Plain(Type),
    Optional(Type),
    Fixed(Type, Expression),
    Variable(Type, Option<Expression>),
}

#[derive(Debug, Clone)]
pub(super) struct Type {
    pub(super) kind: TypeKind,
    pub(super) place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypeKind {
    /// A type of the language, by its name in Rust.
    Scalar(&'static str),
    Opaque,
    String,
    Named(String),
}

#[derive(Debug, Clone)]
pub(super) struct Union {
    pub(super) discriminant: Declaration,
    pub(super) arms: Vec<Arm>,
    pub(super) default: Option<Declaration>,
}

/// The cases that have the same content.
#[derive(Debug, Clone)]
pub(super) struct Arm {
    pub(super) cases: Vec<Expression>,
    pub(super) content: Declaration,
}

#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) number: Expression,
    pub(super) versions: Vec<Version>,
}

#[derive(Debug, Clone)]
pub(super) struct Version {
    pub(super) name: Name,
    pub(super) number: Expression,
    pub(super) procedures: Vec<Procedure>,
    pub(super) docs: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Procedure {
    pub(super) name: Name,
    pub(super) number: Expression,
    pub(super) result: Form,
    /// Argument types; names where the file has some.
    pub(super) arguments: Vec<(Option<Name>, Form)>,
    pub(super) docs: Vec<String>,
}
