//! Definitions as a model: names looked up, numbers computed, and every rule that does not hold reported.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::expression::{Cursor, Dialect, Expression};
use super::model::{
    Arm, Constant, Content, Definition, Enumerator, Field, Form, Model, Procedure, Program, Shape,
    Type, Union, Value, Version,
};
use super::naming;
use super::source::{Place, Problem, Sources};
use super::syntax::{self, Item, ItemKind, Name, TypeKind};
use super::token::{Kind, Token};

/// Longest array of fixed length: it is an array in Rust, too.
const MAX_FIXED: u32 = 1 << 20;
/// Longest way from a constant over others to its value.
const MAX_STEPS: u32 = 100;

/// Types of C's headers, by their names in Rust.
const C_TYPES: &[(&str, &str)] = &[
    ("bool_t", "bool"),
    ("char", "i8"),
    ("enum_t", "i32"),
    ("int16_t", "i16"),
    ("int32_t", "i32"),
    ("int64_t", "i64"),
    ("int8_t", "i8"),
    ("longlong_t", "i64"),
    ("quad_t", "i64"),
    ("rpcport_t", "u32"),
    ("rpcproc_t", "u32"),
    ("rpcprog_t", "u32"),
    ("rpcprot_t", "u32"),
    ("rpcvers_t", "u32"),
    ("u_char", "u8"),
    ("u_int", "u32"),
    ("u_int16_t", "u16"),
    ("u_int32_t", "u32"),
    ("u_int64_t", "u64"),
    ("u_int8_t", "u8"),
    ("u_long", "u32"),
    ("u_longlong_t", "u64"),
    ("u_quad_t", "u64"),
    ("u_short", "u16"),
    ("uint16_t", "u16"),
    ("uint32_t", "u32"),
    ("uint64_t", "u64"),
    ("uint8_t", "u8"),
];

/// Checks all definitions. `passed` are constants of last resort, `externals` types by their paths in Rust.
pub(super) fn check(
    items: &[Item],
    passed: &BTreeMap<String, Vec<Token>>,
    externals: &BTreeMap<String, String>,
    sources: &Sources,
) -> Result<Model, Vec<Problem>> {
    let mut checker = Checker {
        items,
        passed,
        externals,
        sources,
        constants: BTreeMap::new(),
        values: RefCell::default(),
        types: BTreeMap::new(),
        rust_types: BTreeMap::new(),
        problems: Vec::new(),
    };
    checker.collect();
    let model = checker.model();
    if checker.problems.is_empty() {
        checker.check_sizes(&model);
    }
    if checker.problems.is_empty() {
        Ok(model)
    } else {
        let mut problems = checker.problems;
        problems.sort_by_key(|problem| (problem.place.file, problem.place.start));
        // The first problem of a place is the cause of others there.
        problems.dedup_by_key(|problem| problem.place);
        Err(problems)
    }
}

/// A value that a selector may have.
struct Allowed {
    name: String,
    rust: String,
    value: i64,
}

struct Checker<'a> {
    items: &'a [Item],
    passed: &'a BTreeMap<String, Vec<Token>>,
    externals: &'a BTreeMap<String, String>,
    sources: &'a Sources,
    constants: BTreeMap<&'a str, (Expression, Place)>,
    /// Constants that were computed, each once: constants of constants would multiply.
    values: RefCell<BTreeMap<String, i128>>,
    types: BTreeMap<&'a str, (usize, Place)>,
    /// What types are called in Rust.
    rust_types: BTreeMap<&'a str, String>,
    problems: Vec<Problem>,
}

impl<'a> Checker<'a> {
    /// Finds out what every name stands for.
    fn collect(&mut self) {
        let mut written = BTreeSet::new();
        for item in self.items {
            let name = &item.name;
            match &item.kind {
                // The same one again is harmless, as it is in C.
                ItemKind::Constant(_) if written.contains(name.text.as_str()) => {}
                ItemKind::Constant(value) => {
                    written.insert(name.text.as_str());
                    self.constant(name, value.clone());
                }
                ItemKind::TextConstant(_) => {}
                ItemKind::Program(program) => self.numbers_of(name, program),
                ItemKind::Typedef(declaration) if is_its_own_name(item, declaration) => {}
                kind => {
                    if let ItemKind::Enum(enumerators) = kind {
                        self.enumerators(enumerators);
                    }
                    let at = self.types.len();
                    if let Some((_, first)) = self.types.get(name.text.as_str()) {
                        // Whether a typedef says the same again is known when all names are.
                        if !matches!(kind, ItemKind::Typedef(_)) {
                            self.twice("type", name, *first);
                        }
                        continue;
                    }
                    self.types.insert(&name.text, (at, name.place));
                }
            }
        }
        self.name_types();
    }

    /// Types without a name of their own come last, and leave the others theirs.
    fn name_types(&mut self) {
        let mut names = naming::Names::of_types();
        for is_inner in [false, true] {
            for item in self.items {
                let name = item.name.text.as_str();
                let is_next = self.types.contains_key(name) && name.contains('.') == is_inner;
                if is_next && !self.rust_types.contains_key(name) {
                    let rust = names.take(naming::camel_case(name));
                    self.rust_types.insert(name, rust);
                }
            }
        }
    }

    fn constant(&mut self, name: &'a Name, value: Expression) {
        match self.constants.get(name.text.as_str()) {
            Some((_, first)) => self.twice("constant", name, *first),
            None => drop(self.constants.insert(&name.text, (value, name.place))),
        }
    }

    /// Without a value of its own an enumerator is one more than the one before it.
    fn enumerators(&mut self, enumerators: &'a [syntax::Enumerator]) {
        let mut base: Option<Expression> = None;
        let mut offset = 0;
        for enumerator in enumerators {
            if let Some(value) = &enumerator.value {
                base = Some(value.clone());
                offset = 0;
            }
            let place = enumerator.name.place;
            let offset_now = Expression::Number(offset, place);
            let value = match &base {
                Some(base) if offset == 0 => base.clone(),
                Some(base) => Expression::Binary("+", Box::new(base.clone()), Box::new(offset_now)),
                None => offset_now,
            };
            self.constant(&enumerator.name, value);
            offset += 1;
        }
    }

    /// Programs, versions and procedures are constants too. Versions share names of procedures, so the first counts.
    fn numbers_of(&mut self, name: &'a Name, program: &'a syntax::Program) {
        let mut add = |name: &'a Name, value: &Expression| {
            let entry = self.constants.entry(&name.text);
            entry.or_insert_with(|| (value.clone(), name.place));
        };
        add(name, &program.number);
        for version in &program.versions {
            add(&version.name, &version.number);
            for procedure in &version.procedures {
                add(&procedure.name, &procedure.number);
            }
        }
    }

    fn twice(&mut self, what: &str, name: &Name, first: Place) {
        let message = format!(
            "the {what} `{}` is there already, in line {}: expected another name",
            name.text,
            self.sources.line(first)
        );
        self.problems.push(Problem::new(name.place, message));
    }

    fn model(&mut self) -> Model {
        let mut model = Model::default();
        let mut constants: BTreeMap<&str, (Value, Place)> = BTreeMap::new();
        // The types that are tuples are values, too.
        let mut constant_names = naming::Names::without(self.rust_types.values());
        let mut modules = naming::Names::of_modules();
        let programs = |item: &&'a Item| matches!(item.kind, ItemKind::Program(_));
        let programs = self.items.iter().filter(programs);
        self.different(programs.map(|item| &item.name), "program");
        for item in self.items {
            if self.is_said_already(item) {
                continue;
            }
            let name = &item.name;
            if let Some(value) = self.constant_value(item) {
                match constants.get(name.text.as_str()) {
                    Some((first, _)) if *first == value => continue,
                    Some((_, first)) => self.twice("constant", name, *first),
                    None => {}
                }
                constants.insert(&name.text, (value.clone(), name.place));
                model.constants.push(Constant {
                    name: name.text.clone(),
                    rust: constant_names.take(name.text.to_uppercase()),
                    docs: item.docs.clone(),
                    value,
                });
            } else if let ItemKind::Program(program) = &item.kind {
                let rust = modules.take(naming::snake_case(&name.text));
                model.programs.push(self.program(item, program, rust));
            } else if let Some(shape) = self.shape(item) {
                model.types.push(Definition {
                    name: name.text.clone(),
                    rust: self
                        .rust_types
                        .get(name.text.as_str())
                        .cloned()
                        .unwrap_or_default(),
                    docs: item.docs.clone(),
                    shape,
                });
            }
        }
        model
    }

    /// Whether this is a typedef of a name that is there. The same one again is harmless, as it is in C.
    fn is_said_already(&mut self, item: &Item) -> bool {
        let known = self.types.get(item.name.text.as_str()).copied();
        let Some((at, first)) = known.filter(|(_, first)| *first != item.name.place) else {
            return false;
        };
        let (ItemKind::Typedef(again), Some(said)) = (&item.kind, self.item_of(at)) else {
            return false;
        };
        let is_same = match &said.kind {
            ItemKind::Typedef(said) => self.form(&said.form) == self.form(&again.form),
            _ => false,
        };
        if !is_same && !is_its_own_name(item, again) {
            self.twice("type", &item.name, first);
        }
        true
    }

    fn constant_value(&mut self, item: &Item) -> Option<Value> {
        match &item.kind {
            ItemKind::TextConstant(text) => Some(Value::Text(text.clone())),
            ItemKind::Constant(value) => {
                let number = self.number(
                    value,
                    i128::from(i64::MIN),
                    i128::from(u64::MAX),
                    "a constant",
                );
                Some(Value::Number(number))
            }
            _ => None,
        }
    }

    fn shape(&mut self, item: &Item) -> Option<Shape> {
        match &item.kind {
            ItemKind::Enum(enumerators) => Some(Shape::Enum(self.enumeration(enumerators))),
            ItemKind::Struct(fields) => {
                let names = fields.iter().map(|field| &field.name);
                self.different(names, "field");
                let mut names = naming::Names::default();
                let field = |field: &syntax::Declaration| Field {
                    name: field.name.text.clone(),
                    rust: names.take(naming::snake_case(&field.name.text)),
                    form: self.form(&field.form).unwrap_or(Form::Opaque(None)),
                    docs: field.docs.clone(),
                };
                Some(Shape::Struct(fields.iter().map(field).collect()))
            }
            ItemKind::Union(union) => Some(Shape::Union(self.union(union))),
            ItemKind::Typedef(declaration) if !is_its_own_name(item, declaration) => {
                let form = self.form(&declaration.form).unwrap_or(Form::Opaque(None));
                Some(Shape::Typedef(form))
            }
            _ => None,
        }
    }

    fn enumeration(&mut self, enumerators: &[syntax::Enumerator]) -> Vec<Enumerator> {
        let value = |enumerator: &syntax::Enumerator| {
            let name = Expression::Name(enumerator.name.text.clone(), enumerator.name.place);
            // C takes what would be negative as a number without a sign, too: the bits count.
            let (least, most) = (i128::from(i32::MIN), i128::from(u32::MAX));
            let value = self.number(&name, least, most, "a value of an enum");
            Enumerator {
                name: enumerator.name.text.clone(),
                rust: String::new(),
                value: value as i32,
                docs: enumerator.docs.clone(),
            }
        };
        let mut found: Vec<Enumerator> = enumerators.iter().map(value).collect();
        // The first name of a number is the variant, others are constants.
        let mut names = naming::Names::default();
        let values: Vec<i32> = found.iter().map(|each| each.value).collect();
        let is_variant = |at: usize| !values[..at].contains(&values[at]);
        for (at, each) in found.iter_mut().enumerate() {
            if is_variant(at) {
                each.rust = names.take(naming::camel_case(&each.name));
            }
        }
        for each in found.iter_mut().filter(|each| each.rust.is_empty()) {
            each.rust = names.take(each.name.to_uppercase());
        }
        found
    }

    fn union(&mut self, union: &syntax::Union) -> Union {
        let selector = self.selector(&union.discriminant);
        let allowed = self.values_of(&selector);
        let mut arms: Vec<Arm> = Vec::new();
        let mut names = naming::Names::default();
        for arm in &union.arms {
            let content = self.content(&arm.content);
            for case in &arm.cases {
                let value = self.number(case, i128::from(i32::MIN), i128::from(u32::MAX), "a case");
                let value = match selector {
                    Type::Defined(_) => i64::from(value as i32),
                    _ => i64::try_from(value).unwrap_or_default(),
                };
                let named = match &allowed {
                    Some(values) => values.iter().find(|known| known.value == value),
                    None => None,
                };
                if allowed.is_some() && named.is_none() {
                    let message = format!(
                        "{value} is no value of `{}`, which makes the choice",
                        union.discriminant.name.text
                    );
                    self.problems.push(Problem::new(case.place(), message));
                }
                if arms.iter().any(|arm| arm.value == value) {
                    let message = format!("there is a case for {value} already");
                    self.problems.push(Problem::new(case.place(), message));
                }
                let name = match (named, case) {
                    (Some(Allowed { name, .. }), _) | (None, Expression::Name(name, _)) => {
                        Some(name.clone())
                    }
                    _ => None,
                };
                let rust = match named {
                    Some(known) => known.rust.clone(),
                    None => names.take(naming::case(name.as_deref(), value)),
                };
                arms.push(Arm {
                    value,
                    name,
                    rust,
                    content: content.clone(),
                });
            }
        }
        Union {
            discriminant: union.discriminant.name.text.clone(),
            selector,
            arms,
            default: union.default.as_ref().map(|content| self.content(content)),
        }
    }

    fn content(&mut self, declaration: &syntax::Declaration) -> Content {
        Content {
            form: match declaration.form {
                syntax::Form::Void => None,
                _ => self.form(&declaration.form),
            },
            docs: declaration.docs.clone(),
        }
    }

    /// The type that makes a union's choice, without other names for it.
    fn selector(&mut self, declaration: &syntax::Declaration) -> Type {
        let mut form = self.form(&declaration.form);
        for _ in 0..=self.items.len() {
            match &form {
                Some(Form::Plain(Type::Scalar(
                    scalar @ ("bool" | "i8" | "u8" | "i16" | "u16" | "i32" | "u32"),
                ))) => return Type::Scalar(scalar),
                Some(Form::Plain(Type::Defined(at))) => {
                    match self.item_of(*at).map(|item| &item.kind) {
                        Some(ItemKind::Enum(_)) => return Type::Defined(*at),
                        Some(ItemKind::Typedef(declaration)) => form = self.form(&declaration.form),
                        _ => break,
                    }
                }
                _ => break,
            }
        }
        if form.is_some() {
            let message = "expected an int, an unsigned int, a bool or an enum to make the choice";
            self.problems
                .push(Problem::new(declaration.name.place, message));
        }
        Type::Scalar("i32")
    }

    /// The values that a selector may have, if they are few and have names.
    fn values_of(&mut self, selector: &Type) -> Option<Vec<Allowed>> {
        let allowed = |name: &str, rust: &str, value| Allowed {
            name: name.to_owned(),
            rust: rust.to_owned(),
            value,
        };
        match selector {
            Type::Scalar("bool") => Some(vec![
                allowed("FALSE", "False", 0),
                allowed("TRUE", "True", 1),
            ]),
            Type::Defined(at) => {
                let ItemKind::Enum(enumerators) = &self.item_of(*at)?.kind else {
                    return None;
                };
                let values = self.enumeration(enumerators).into_iter();
                let values = values.map(|it| allowed(&it.name, &it.rust, i64::from(it.value)));
                Some(values.collect())
            }
            _ => None,
        }
    }

    fn item_of(&self, at: usize) -> Option<&'a Item> {
        let name = self.types.iter().find(|(_, (index, _))| *index == at)?.0;
        let is_it = |item: &&Item| {
            item.name.text == **name
                && matches!(
                    item.kind,
                    ItemKind::Enum(_)
                        | ItemKind::Struct(_)
                        | ItemKind::Union(_)
                        | ItemKind::Typedef(_)
                )
        };
        self.items.iter().find(is_it)
    }

    fn form(&mut self, form: &syntax::Form) -> Option<Form> {
        let kind = match form {
            syntax::Form::Void => return None,
            syntax::Form::Plain(kind)
            | syntax::Form::Optional(kind)
            | syntax::Form::Fixed(kind, _)
            | syntax::Form::Variable(kind, _) => kind,
        };
        let is_opaque = kind.kind == TypeKind::Opaque;
        match form {
            syntax::Form::Variable(_, limit) => {
                let limit = limit.as_ref().map(|limit| self.length(limit, u32::MAX));
                Some(match kind.kind {
                    TypeKind::Opaque => Form::Opaque(limit),
                    TypeKind::String => Form::Text(limit),
                    _ => Form::Array(self.kind(kind)?, limit),
                })
            }
            syntax::Form::Fixed(_, length) => {
                let length = self.length(length, MAX_FIXED);
                Some(match is_opaque {
                    true => Form::FixedOpaque(length),
                    false => Form::FixedArray(self.kind(kind)?, length),
                })
            }
            syntax::Form::Optional(_) => self.kind(kind).map(Form::Optional),
            _ => self.kind(kind).map(Form::Plain),
        }
    }

    fn length(&mut self, length: &Expression, most: u32) -> u32 {
        let length = self.number(length, 0, i128::from(most), "a length");
        u32::try_from(length).unwrap_or_default()
    }

    fn kind(&mut self, kind: &syntax::Type) -> Option<Type> {
        let name = match &kind.kind {
            TypeKind::Scalar(scalar) => return Some(Type::Scalar(scalar)),
            TypeKind::Named(name) => name,
            TypeKind::Opaque | TypeKind::String => {
                let message = "expected a type that can stand here: give this one a name with `typedef` first";
                self.problems.push(Problem::new(kind.place, message));
                return None;
            }
        };
        if let Some((at, _)) = self.types.get(name.as_str()) {
            return Some(Type::Defined(*at));
        }
        if let Some(path) = self.externals.get(name) {
            return Some(Type::External(path.clone()));
        }
        let known = C_TYPES.iter().find(|(c, _)| c == name);
        if known.is_none() {
            let message =
                format!("there is no type `{name}`: define it here, or say which Rust type it is");
            self.problems.push(Problem::new(kind.place, message));
        }
        known.map(|(_, rust)| Type::Scalar(rust))
    }

    fn program(&mut self, item: &Item, program: &syntax::Program, rust: String) -> Program {
        let names = program.versions.iter().map(|version| &version.name);
        self.different(names, "version");
        let mut names = naming::Names::default();
        let number = self.wire_number(&program.number);
        let mut versions: Vec<Version> = Vec::new();
        for version in &program.versions {
            let number = self.wire_number(&version.number);
            if versions.iter().any(|other| other.number == number) {
                let message = format!("there is a version {number} already");
                self.problems
                    .push(Problem::new(version.number.place(), message));
            }
            versions.push(Version {
                name: version.name.text.clone(),
                rust: names.take(naming::snake_case(&version.name.text)),
                number,
                docs: version.docs.clone(),
                procedures: self.procedures(&version.procedures),
            });
        }
        Program {
            name: item.name.text.clone(),
            rust,
            number,
            docs: item.docs.clone(),
            versions,
        }
    }

    fn procedures(&mut self, procedures: &[syntax::Procedure]) -> Vec<Procedure> {
        let names = procedures.iter().map(|procedure| &procedure.name);
        self.different(names, "procedure");
        let mut functions = naming::Names::default();
        let mut numbers = naming::Names::of_numbers();
        let mut found: Vec<Procedure> = Vec::new();
        for procedure in procedures {
            let number = self.wire_number(&procedure.number);
            if found.iter().any(|other| other.number == number) {
                let message = format!("there is a procedure {number} already");
                self.problems
                    .push(Problem::new(procedure.number.place(), message));
            }
            let arguments = self.arguments(&procedure.arguments);
            found.push(Procedure {
                name: procedure.name.text.clone(),
                rust: functions.take(naming::snake_case(&procedure.name.text)),
                rust_number: numbers.take(procedure.name.text.to_uppercase()),
                number,
                docs: procedure.docs.clone(),
                arguments,
                result: self.form(&procedure.result),
            });
        }
        found
    }

    fn arguments(&mut self, written: &[(Option<Name>, syntax::Form)]) -> Vec<(String, Form)> {
        self.different(
            written.iter().filter_map(|(name, _)| name.as_ref()),
            "argument",
        );
        let mut names = naming::Names::of_arguments();
        let mut arguments = Vec::new();
        for (at, (name, form)) in written.iter().enumerate() {
            let name = match name {
                Some(name) => naming::snake_case(&name.text),
                None if written.len() == 1 => "argument".to_owned(),
                None => format!("argument{}", at + 1),
            };
            let name = names.take(name);
            arguments.extend(self.form(form).map(|form| (name, form)));
        }
        arguments
    }

    fn wire_number(&mut self, number: &Expression) -> u32 {
        let number = self.number(number, 0, i128::from(u32::MAX), "a number");
        u32::try_from(number).unwrap_or_default()
    }

    /// Names that are there twice are reported.
    fn different<'n>(&mut self, names: impl Iterator<Item = &'n Name>, what: &str) {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(&name.text) {
                let message = format!(
                    "the {what} `{}` is there already: expected another name",
                    name.text
                );
                self.problems.push(Problem::new(name.place, message));
            }
        }
    }

    /// The value of an expression, which has to be in this range. What is wrong is reported once, and 0 taken.
    fn number(&mut self, expression: &Expression, least: i128, most: i128, what: &str) -> i128 {
        let value = self.evaluate(expression, 0).and_then(|value| {
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            let message = format!("expected {what} from {least} to {most}, found {value}");
            Err(Problem::new(expression.place(), message))
        });
        value.unwrap_or_else(|problem| {
            self.problems.push(problem);
            0
        })
    }

    fn evaluate(&self, expression: &Expression, steps: u32) -> Result<i128, Problem> {
        expression.evaluate(&mut |name, place| {
            if steps == MAX_STEPS {
                let message = format!("the value of `{name}` depends on itself");
                return Err(Problem::new(place, message));
            }
            if let Some((value, _)) = self.constants.get(name) {
                if let Some(known) = self.values.borrow().get(name) {
                    return Ok(*known);
                }
                let value = self.evaluate(value, steps + 1)?;
                self.values.borrow_mut().insert(name.to_owned(), value);
                return Ok(value);
            }
            match name {
                "TRUE" => return Ok(1),
                "FALSE" => return Ok(0),
                _ => {}
            }
            let Some(words) = self.passed.get(name) else {
                return Err(Problem::new(
                    place,
                    format!("there is no constant `{name}`: define it here, or say what it is"),
                ));
            };
            let mut cursor = Cursor::new(words);
            let value = Expression::parse(&mut cursor, Dialect::Interface);
            match value {
                Ok(value) if cursor.peek().kind == Kind::End => self.evaluate(&value, steps + 1),
                _ => {
                    let message = format!("`{name}` is defined for C only, and not as a number");
                    Err(Problem::new(place, message))
                }
            }
        })
    }

    /// No type may contain itself without a pointer or an array of variable length between.
    fn check_sizes(&mut self, model: &Model) {
        let is_inline = |form: &Form| matches!(form, Form::Plain(_) | Form::FixedArray(..));
        for at in 0..model.types.len() {
            if model.reaches(at, at, is_inline) {
                let name = &model.types[at].name;
                let place = self.types[name.as_str()].1;
                let message =
                    format!("a value of `{name}` would contain itself: expected a pointer (`*`)");
                self.problems.push(Problem::new(place, message));
            }
        }
    }
}

/// `typedef struct name name;` says nothing in this language.
fn is_its_own_name(item: &Item, declaration: &syntax::Declaration) -> bool {
    matches!(
        &declaration.form,
        syntax::Form::Plain(kind) if kind.kind == TypeKind::Named(item.name.text.clone())
    )
}
